"""Presets: find, read and save them. Data, not code: loading one runs nothing.

A name is looked up in the person's own folder first, then among those that ship.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import write_atomic
from gpu_engine.spec.read import from_dict, read_toml
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import to_dict

DEFAULT = "default"
"""The preset that the panel opens with."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Preset:
    """A preset file and what it says."""

    name: str
    """How `gpu-engine run` takes it: a bare name, or the path that was given."""
    path: Path
    shipped: bool
    data: dict[str, Any]
    """As the TOML says, for `--set` to build on."""
    spec: RunSpec


def own_folder() -> Path:
    """Where a person's presets are kept: $GPU_PANEL_HOME/presets, else the config folder."""
    given = os.environ.get("GPU_PANEL_HOME")
    if given:
        return Path(given).expanduser().absolute() / "presets"
    from platformdirs import user_config_path

    return user_config_path("gpu-panel") / "presets"


def shipped_folder() -> Path:
    """The presets that come with the package; in a checkout, its `presets/`."""
    inside = Path(__file__).parents[1] / "shipped_presets"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "presets"


def names() -> list[str]:
    """Every preset's name, own and shipped, sorted; an own one hides a shipped one."""
    return sorted({path.stem for path, _ in _files()})


def all_presets() -> Iterator[Preset | tuple[Path, str]]:
    """Every preset that `names` has; for one that can't be read, its path and why not."""
    for name in names():
        path, _ = _locate(name)
        try:
            yield load(name)
        except UserError as err:
            yield path, str(err)


def load(name: str) -> Preset:
    """Read a preset by name or path. Raises UserError, SpecError."""
    if name.endswith(".toml") or "/" in name:
        path, shipped = Path(name).expanduser(), False
    else:
        path, shipped = _locate(name)
    data = read_toml(path)
    return Preset(name, path, shipped, data, from_dict(data))


def name_problem(name: str) -> str | None:
    """Why a preset can't be saved under `name`; None where it can."""
    if _NAME.fullmatch(name):
        return None
    return (f"{name!r} can't be a preset's name: letters, digits, dot, dash and underscore, "
            "beginning with a letter or digit, at most 64")


def ships(name: str) -> bool:
    """Whether a preset of this name comes with the package; one's own stands in its place."""
    return _NAME.fullmatch(name) is not None and (shipped_folder() / f"{name}.toml").is_file()


def remove(name: str) -> Path:
    """Delete the person's own preset `name`, readable or not; what it stood in place of is there
    again. Returns its path. Raises UserError where there is none, or only a shipped one."""
    path = own_folder() / f"{name}.toml"
    if _NAME.fullmatch(name) is None or not os.path.lexists(path):
        if ships(name):
            raise UserError(f"{name} ships with gpu-panel and stays; only presets of your own, in "
                            f"{own_folder()}, can be deleted")
        raise UserError(f"you have no preset {name!r} in {own_folder()}")
    try:
        path.unlink()
    except OSError as err:
        raise UserError(f"{path}: can't be deleted: {err.strerror}") from None
    return path


def save(name: str, spec: RunSpec) -> Path:
    """Save `spec` as the person's own preset `name`; comments in an earlier file survive.

    Raises UserError for a name that can't be one, or a folder that can't be written.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    wrong = name_problem(name)
    if wrong is not None:
        raise UserError(wrong)
    path = own_folder() / f"{name}.toml"
    try:
        earlier = path if path.exists() else shipped_folder() / f"{name}.toml"
        document = tomlkit.parse(earlier.read_text(encoding="utf-8"))
    except (OSError, ValueError, TOMLKitError):
        document = tomlkit.document()
    _merge(document, to_dict(spec), to_dict(spec, defaults=False))
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(path, tomlkit.dumps(document))
    except OSError as err:
        raise UserError(f"{path}: can't be written: {err.strerror}") from None
    return path


def _merge(document: Any, whole: dict[str, Any], needed: dict[str, Any]) -> None:
    """Make `document` say what `whole` says, touching no more than differs: what it names stays
    named, a default too, and what it lacks is added where it is `needed`."""
    for key in [k for k in document if k not in whole]:
        del document[key]
    for key, value in whole.items():
        there = document.get(key)
        if isinstance(value, dict) and isinstance(there, dict):
            _merge(there, value, value if key == "params" else needed.get(key, {}))
        elif key in document and there != value:
            document[key] = value
        elif key not in document and key in needed:
            document[key] = needed[key]


def _files() -> Iterator[tuple[Path, bool]]:
    for folder, shipped in ((own_folder(), False), (shipped_folder(), True)):
        try:
            found = sorted(folder.glob("*.toml"))
        except OSError:
            continue
        yield from ((path, shipped) for path in found if _NAME.fullmatch(path.stem))


def _locate(name: str) -> tuple[Path, bool]:
    for path, shipped in _files():
        if path.stem == name:
            return path, shipped
    import difflib

    there = names()
    near = difflib.get_close_matches(name, there, n=1)
    hint = f"did you mean {near[0]}?" if near else "there are " + (", ".join(there) or "none")
    raise UserError(f"there is no preset {name!r}; {hint} (a file is given with its .toml)")
