"""Writing a spec: as a dict, as TOML, or as the `key=value` assignments that change another spec
into it."""

from __future__ import annotations

import copy
import shlex
from dataclasses import dataclass, replace
from typing import Any

from gpu_engine.common.clean import shown_env, shown_params, shown_words
from gpu_engine.common.values import ANY, parse, quote, show
from gpu_engine.spec.schema import SECTIONS, TABLES, RunSpec, keys
from gpu_engine.spec.typed_command import split


def to_dict(spec: RunSpec, *, defaults: bool = True) -> dict[str, Any]:
    """The spec as a nested dict of JSON values without None, which may be changed. With
    `defaults=False`, values that equal the default are left out."""
    out: dict[str, Any] = {"name": spec.name}
    for key in keys().values():
        if not key.section:
            continue
        value = getattr(getattr(spec, key.section), key.name)
        if value is None or value == {} or not (defaults or value != key.default):
            continue
        out.setdefault(key.section, {})[key.name] = copy.deepcopy(value)
    return out


def for_people(spec: RunSpec) -> RunSpec:
    """The spec as it is shown to others, without what looks like a secret."""
    command = spec.task.command
    return replace(spec, run=replace(spec.run, env=shown_env(spec.run.env)), task=replace(
        spec.task, command=None if command is None else shown_words(command),
        params=shown_params(spec.task.params)))


@dataclass(frozen=True)
class Difference:
    """A key that two specs have different values for, both as text that `--set` parses."""

    key: str
    """Dotted: "train.lr", "task.params.width"."""
    before: str | None
    """None: it was not set."""
    after: str | None
    """None: it is not set any more."""


def flat(spec: RunSpec) -> dict[str, str]:
    """Every key that has a value → that value as text that `--set` parses, in the order of the
    schema: {"name": "toy", "train.lr": "0.1", "task.params.width": "8"}."""
    out = {"name": spec.name}
    for section in SECTIONS:
        for key in (k for k in keys().values() if k.section == section):
            value = getattr(getattr(spec, section), key.name)
            if key.dotted == "task.params":
                out |= {f"task.params.{name}": _free(one) for name, one in value.items()}
            elif key.dotted in TABLES and isinstance(value, dict):
                out |= {f"{key.dotted}.{name}": text for name, text in value.items()}
            elif value is not None:
                out[key.dotted] = _command(value) if key.dotted == "task.command" \
                    else _typed(value)
    return out


def compare(base: RunSpec, spec: RunSpec) -> list[Difference]:
    """What has to change in `base` to make it `spec`: the keys that `spec` has in the order of the
    schema, then those that it has no more."""
    before, after = flat(base), flat(spec)
    return [Difference(key, before.get(key), after.get(key))
            for key in dict.fromkeys((*after, *before)) if before.get(key) != after.get(key)]


def differences(base: RunSpec, spec: RunSpec) -> list[str]:
    """The `key=value` assignments with which `read.apply_set` changes `base` into `spec`. What is
    not set any more is not among them: no assignment can say that."""
    return [f"{d.key}={d.after}" for d in compare(base, spec) if d.after is not None]


def to_toml(spec: RunSpec) -> str:
    """The whole spec as TOML."""
    import tomlkit  # late: a rank, which may lack it, imports this file for `to_dict`

    return tomlkit.dumps(to_dict(spec)).encode("utf-8", "backslashreplace").decode()


def _typed(value: Any) -> str:
    """`value` as text that `--set` parses back, given the key's type."""
    if isinstance(value, list):
        bare = all(isinstance(v, str) and v == v.strip() and "," not in v for v in value)
        if value and bare and all(value) and not value[0].startswith(("[", "(", "{")):
            return ",".join(value)
    return repr(value) if isinstance(value, float) else show(value)


def _command(words: list[str]) -> str:
    """A command as it would be typed, where that is read as the same words."""
    text = shlex.join(words)
    try:
        return text if words and split(text) == words else show(words)
    except ValueError:
        return show(words)


def _free(value: Any) -> str:
    """`value` as text that `--set` parses back without knowing the type: a text that would be
    taken for something else is quoted."""
    if isinstance(value, str):
        return quote(value) if parse(value, ANY) != value else value
    return repr(value) if isinstance(value, float) else show(value)
