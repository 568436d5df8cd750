"""Find, read, save, rename, copy and delete presets. A preset is data: loading one runs no code.

A name is looked up among the person's own presets first, then among those that come with
gpu-panel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_engine.common import paths
from gpu_engine.common.errors import Problem, SpecError, UserError, meant, telling
from gpu_engine.common.files import expanded, write_atomic
from gpu_engine.spec.read import from_dict, in_our_words, read_toml
from gpu_engine.spec.schema import RunSpec, keys
from gpu_engine.spec.write import Difference, compare, to_dict

DEFAULT = "default"
"""The preset that the panel opens with."""
LONGEST_DESCRIPTION = 200
"""How many characters a description may have."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Preset:
    """A preset file and its content."""

    name: str
    """What `gpu-engine run` accepts for it: a bare name, or the path that was given."""
    path: Path
    shipped: bool
    """Whether it comes with gpu-panel and is not the person's own."""
    data: dict[str, Any]
    """The TOML as a dict, without the description, for `--set` to build on."""
    spec: RunSpec
    description: str = ""
    """What the preset is for, from the key `description`, which is no part of the spec."""


def own_folder() -> Path:
    """The folder of the person's own presets: $GPU_PANEL_HOME/presets, or gpu-panel's folder among
    the user's configuration files if that is not set."""
    return paths.settings_folder() / "presets"


def shipped_folder() -> Path:
    """The folder of the presets that come with the package; in a checkout its `presets/`."""
    inside = Path(__file__).parents[1] / "shipped_presets"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "presets"


def names() -> list[str]:
    """The names of all presets, sorted. A person's own preset hides a shipped one of its name."""
    return sorted({path.stem for path, _ in _files()})


def all_presets() -> Iterator[Preset | tuple[Path, str]]:
    """Every preset in `names()`; for one that can't be read, (its path, why not) instead."""
    for name in names():
        path, _ = _locate(name)
        try:
            yield load(name)
        except UserError as err:
            yield path, str(err)


def load(name: str) -> Preset:
    """Read a preset by its name, or a file by its path (with a "/" or ending in ".toml"). Raises
    UserError if there is none or it can't be read, SpecError for what is wrong in it."""
    if name.endswith(".toml") or "/" in name:
        path, shipped = expanded(name), False
    else:
        path, shipped = _locate(name)
    return _read(name, path, shipped)


def changes(preset: Preset) -> list[Difference] | None:
    """What is different in the person's own preset from the shipped one that it hides; None if it
    hides none."""
    if preset.shipped or "/" in preset.name or not ships(preset.name):
        return None
    hidden = _read(preset.name, shipped_folder() / f"{preset.name}.toml", True)
    return compare(hidden.spec, preset.spec)


def about(preset: Preset) -> str:
    """What the preset is for: its description or, without one, the first sentence of the comment
    at the start of its file. Empty if there is neither."""
    if preset.description:
        return preset.description
    comment: list[str] = []
    try:
        with preset.path.open(encoding="utf-8-sig", errors="replace") as file:
            for line in file:
                if not line.startswith("#"):
                    break
                comment.append(line.lstrip("# ").strip())
    except OSError:
        return ""
    return " ".join(comment).partition(". ")[0].rstrip(".:,;")


def name_problem(name: str) -> str | None:
    """Why a preset can't be saved under `name`; None if it can."""
    if _NAME.fullmatch(name):
        return None
    return (f"{name!r} can't be a preset's name: use at most 64 letters, digits, dots, dashes and "
            "underscores, and begin with a letter or digit")


def near_name(text: str) -> str:
    """The valid name nearest to what was typed; empty if there is none."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:64]


def ships(name: str) -> bool:
    """Whether a preset of this name comes with the package (the person's own may hide it)."""
    return _NAME.fullmatch(name) is not None and (shipped_folder() / f"{name}.toml").is_file()


def description_problem(text: str) -> str | None:
    """Why a preset can't have this description; None if it can."""
    if len(text) <= LONGEST_DESCRIPTION and all(c.isprintable() for c in text):
        return None
    return f"expected a text in one line, at most {LONGEST_DESCRIPTION} characters"


def save(name: str, spec: RunSpec, description: str | None = None) -> Path:
    """Save `spec` as the person's own preset `name`. Comments in an earlier file are kept, and its
    description if `description` is None; an empty one is removed. Raises UserError if the name is
    not allowed or the folder can't be written."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    wrong = name_problem(name) or description_problem(description or "")
    if wrong is not None:
        raise UserError(wrong)
    path = own_folder() / f"{name}.toml"
    try:
        earlier = path if path.exists() else shipped_folder() / f"{name}.toml"
        document = tomlkit.parse(earlier.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, TOMLKitError):
        document = tomlkit.document()
    if description is None:
        description = str(document.get("description") or "")
    said = {"description": description} if description else {}
    _merge(document, said | to_dict(spec), said | to_dict(spec, defaults=False))
    with telling(f"{path}: can't be written"):
        paths.private_folder(path.parent)
        write_atomic(path, tomlkit.dumps(document))
    return path


def _merge(document: Any, whole: dict[str, Any], needed: dict[str, Any]) -> None:
    """Bring `document` to the values of `whole`, changing only what differs. A key that it already
    has stays, even with a default value; a missing one is added only if it is in `needed`."""
    for key in [k for k in document if k not in whole]:
        del document[key]
    for key, value in whole.items():
        there = document.get(key)
        if isinstance(value, dict) and isinstance(there, dict):
            _merge(there, value, needed.get(key, {}))
        elif key in document and there != value:
            document[key] = value
        elif key not in document and key in needed:
            document[key] = needed[key]


def _read(name: str, path: Path, is_shipped: bool) -> Preset:
    """Read a preset's file. Raises as `load` does."""
    data = read_toml(path, own=not is_shipped and "/" not in name
                     and not name.endswith(".toml"))
    description = data.pop("description", "")
    wrong = description_problem(description) if isinstance(description, str) else "expected a text"
    if wrong is not None:
        raise SpecError([Problem("description", description, wrong)])
    spec = from_dict(data)
    for key in keys().values():
        if key.name in data.get(key.section, ()):  # the form offers a choice by the schema's word
            data[key.section][key.name] = in_our_words(key, data[key.section][key.name])
    return Preset(name, path, is_shipped, data, spec, description.strip())


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
    raise UserError(f"there is no preset {name!r}; {meant(name, names())} (to name a file, include "
                    "its .toml)", "preset", name, "gpu-engine presets")
