"""Where interpreters are: those that a run takes by itself, in their order, and all near by."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_engine.common.files import expanded
from gpu_engine.interpreters import ask
from gpu_engine.interpreters.ask import Seen

_VENVS = (".venv", "venv")
_LISTED = (*_VENVS, "env", ".env")
_MOST = 60
"""Interpreters in the list to choose from."""


@dataclass(frozen=True, slots=True)
class Place:
    """An interpreter, and why it is considered."""

    path: str
    why: str
    """For people: "$VIRTUAL_ENV", "the .venv of /home/me/project"."""
    lies_near: bool = False
    """Whether it is considered because it lies in or near the folder: nobody has named it, and it
    is started for a launch only."""
    stranger: bool = False
    """Whether its environment was made by another user, who could put anything in it: it is not
    started unless a person chooses it."""


def in_order(folder: Path, environ: Mapping[str, str]) -> Iterator[Place]:
    """The interpreters that a run in `folder` is considered for, best first: the active
    environment, the nearest virtual environment upward, the PATH, gpu-panel's own. Those of
    variables are named even if there is nothing."""
    active = [Place(str(Path(prefix) / "bin" / "python"), f"${name}")
              for name in ("VIRTUAL_ENV", "CONDA_PREFIX")
              if (prefix := environ.get(name)) and Path(prefix).is_absolute()]
    upward = (place for above in (folder, *folder.parents) for place in _venvs(above, _VENVS))
    return _each_once([*active, *upward, *_on_path(environ.get("PATH", "")), own()])


def around(folder: Path, environ: Mapping[str, str]) -> list[Place]:
    """All interpreters to choose from: those of `in_order`, other environments in and beside
    `folder` and above it, and conda's."""
    home = expanded(environ.get("HOME") or "~")
    found = [p for p in in_order(folder, environ) if Path(p.path).exists()]
    for above in (folder, *folder.parents):
        found += _venvs(above, _LISTED)
    for inner in (folder, folder.parent):
        found += [p for child in _folders(inner) for p in (_venv(child), *_venvs(child, _LISTED))
                  if p is not None]
    found += _condas(home)
    return list(_each_once(found))[:_MOST]


def inspect(place: Place) -> Seen:
    """What the interpreter has. One that merely lies near by is not started for that; another is
    asked, as by `ask.inspect`."""
    if place.lies_near and not ask.ours(place.path):
        return ask.environment(place.path)
    return ask.inspect(place.path)


def own() -> Place:
    """The interpreter that runs here."""
    return Place(sys.executable, "gpu-panel's own")


def environment_of(python: str) -> Path:
    """The folder of an environment, or of an installation, by its `bin/python`."""
    return Path(python).parent.parent


def _venvs(folder: Path, names: Iterable[str]) -> Iterator[Place]:
    for name in names:
        place = _venv(folder / name)
        if place is not None:
            yield place


def _venv(prefix: Path) -> Place | None:
    """The virtual environment in `prefix`; None if there is none."""
    python = prefix / "bin" / "python"
    try:
        if not python.is_file() or not (prefix / "pyvenv.cfg").is_file():
            return None
        # In a folder such as /tmp anybody may put a .venv above ours.
        owners = {prefix.stat().st_uid, python.parent.stat().st_uid, python.lstat().st_uid}
    except (OSError, ValueError):
        return None
    return Place(str(python), f"the {prefix.name} of {prefix.parent}", lies_near=True,
                 stranger=bool(owners - {0, os.geteuid()}))


def _on_path(path: str) -> Iterator[Place]:
    for folder in path.split(os.pathsep):
        if not folder.startswith("/"):  # it would depend on where one is
            continue
        for name in ("python3", "python"):
            python = Path(folder, name)
            if os.access(python, os.X_OK) and python.is_file():
                yield Place(str(python), f"{name} on the PATH")
                break  # the other one is its second name


def _condas(home: Path) -> Iterator[Place]:
    """The environments that conda has listed."""
    try:
        lines = (home / ".conda" / "environments.txt").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for prefix in (Path(line.strip()) for line in lines if line.startswith("/")):
        if (python := prefix / "bin" / "python").exists():
            yield Place(str(python), f"conda's {prefix.name}")


def _folders(folder: Path) -> list[Path]:
    """The folders in `folder`, in order; none where it can't be read or holds very many."""
    try:
        with os.scandir(folder) as entries:
            found = [e.path for e, _ in zip(entries, range(2000), strict=False) if e.is_dir()]
    except OSError:
        return []
    return [Path(path) for path in sorted(found)[:300]]


def _each_once(places: Iterable[Place]) -> Iterator[Place]:
    """Without a second name for an environment's interpreter. A link between environments is no
    second name: what a virtual environment's python links to has other packages."""
    seen: set[tuple[str, str]] = set()
    for place in places:
        folder, name = os.path.split(place.path)
        key = os.path.realpath(folder), os.path.realpath(place.path) or name
        if ask.ours(place.path):
            key = "", ""
        if key not in seen:
            seen.add(key)
            yield place
