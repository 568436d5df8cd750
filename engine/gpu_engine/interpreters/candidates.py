"""Where the interpreters are that a run takes by itself, in their order."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_engine.interpreters import ask
from gpu_engine.interpreters.ask import Seen


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
    upward = (place for above in (folder, *folder.parents) for place in _venvs(above))
    return _each_once([*active, *upward, *_on_path(environ.get("PATH", "")), own()])


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


def _venvs(folder: Path) -> Iterator[Place]:
    for name in (".venv", "venv"):
        if (place := _venv(folder / name)) is not None:
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
