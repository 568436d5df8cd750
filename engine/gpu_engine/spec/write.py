"""Writing a spec: as a dict, as TOML, or as the `key=value` assignments that change another spec
into it."""

from __future__ import annotations

from typing import Any

from gpu_engine.common.values import ANY, parse, quote, show
from gpu_engine.spec.schema import SECTIONS, RunSpec, keys


def to_dict(spec: RunSpec, *, defaults: bool = True) -> dict[str, Any]:
    """The spec as a nested dict of JSON values without None. With `defaults=False`, values that
    equal the default are left out."""
    out: dict[str, Any] = {"name": spec.name}
    for key in keys().values():
        if not key.section:
            continue
        value = getattr(getattr(spec, key.section), key.name)
        if value is None or value == {} or not (defaults or value != key.default):
            continue
        out.setdefault(key.section, {})[key.name] = \
            list(value) if isinstance(value, tuple) else value
    return out


def differences(base: RunSpec, spec: RunSpec) -> list[str]:
    """The `key=value` assignments with which `read.apply_set` changes `base` into `spec`."""
    out = [] if base.name == spec.name else [f"name={spec.name}"]
    for section in SECTIONS:
        for key in (k for k in keys().values() if k.section == section):
            before = getattr(getattr(base, section), key.name)
            after = getattr(getattr(spec, section), key.name)
            if key.dotted == "task.params":
                out += [f"task.params.{name}={_free(value)}" for name, value in after.items()
                        if before.get(name, ...) != value]
            elif before != after and after is not None:
                out.append(f"{key.dotted}={_typed(after)}")
    return out


def to_toml(spec: RunSpec) -> str:
    """The whole spec as TOML."""
    import tomlkit

    return tomlkit.dumps(to_dict(spec))


def _typed(value: Any) -> str:
    """`value` as text that `--set` parses back, given the key's type."""
    if isinstance(value, list | tuple):
        bare = all(isinstance(v, str) and v == v.strip() and "," not in v for v in value)
        if value and bare and all(value) and not value[0].startswith(("[", "(", "{")):
            return ",".join(value)
    return repr(value) if isinstance(value, float) else show(value)


def _free(value: Any) -> str:
    """`value` as text that `--set` parses back without knowing the type: a text that would be
    taken for something else is quoted."""
    if isinstance(value, str):
        return quote(value) if parse(value, ANY) != value else value
    return repr(value) if isinstance(value, float) else show(value)
