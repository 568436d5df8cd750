"""The checkpoints of a run as files: listing them, reading manifests, choosing one.

Standard library only, for the panel and the command line; `training/checkpoint.py` writes and loads
them.
"""

from __future__ import annotations

import json
from io import FileIO
from pathlib import Path
from typing import Any, TypedDict

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import open_inside, read_inside
from gpu_engine.spec.schema import parse_best

STATE, MANIFEST = "state.pt", "manifest.json"
EXPORTED = (".safetensors", ".pt", ".pth")
"""How the name of a file that `gpu-engine export` writes may end."""
_MOST_NAMED = 12


class Damaged(Exception):
    """A checkpoint does not match its manifest."""


def name_of(step: int) -> str:
    """The folder name of a step's checkpoint: "step-00000500"."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step in a checkpoint's folder name; None if it is not such a name."""
    digits = name.removeprefix("step-")
    return int(digits) if digits != name and digits.isascii() and digits.isdigit() else None


def listed(folder: Path) -> list[Path]:
    """All checkpoint folders in the order of their steps, damaged ones included. None of them is a
    link, nor is `folder`: then there are none."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir()
                  if p.name.startswith("step-") and p.is_dir() and not p.is_symlink())


def inside(path: Path, name: str) -> tuple[Path, str]:
    """The run folder of the checkpoint `path`, and the name of its file `name` in that."""
    path = path.absolute()
    return path.parent.parent, f"{path.parent.name}/{path.name}/{name}"


def opened(file: Path) -> FileIO:
    """A file of a checkpoint, for reading in pieces of one's own. Raises OSError."""
    return FileIO(open_inside(*inside(file.parent, file.name)))


class FileEntry(TypedDict):
    """A file of a checkpoint, as its manifest has it."""

    size: int
    sha256: str


class _Manifest(TypedDict):
    step: int
    files: dict[str, FileEntry]


class Manifest(_Manifest, total=False):
    """What is known here of a checkpoint's manifest."""

    metrics: dict[str, float]
    """What the evaluation of its step has found."""


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest. Raises Damaged."""
    try:
        manifest: Manifest = json.loads(read_inside(*inside(path, MANIFEST)))
        _check(manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
        raise Damaged(f"{path.name}: its manifest can't be read ({type(err).__name__})") from err
    return manifest


def _check(manifest: Any) -> None:
    """Raise one of the errors that wrong values raise, unless everything here is as it should."""
    files, metrics = manifest["files"], manifest.get("metrics", {})
    if STATE not in files or type(manifest["step"]) is not int or not isinstance(metrics, dict):
        raise TypeError
    for name, entry in files.items():
        if name in (".", "..") or "/" in name or type(entry["size"]) is not int \
                or not isinstance(entry["sha256"], str):
            raise TypeError


def best_of(folder: Path, metric: str, largest: bool) -> tuple[Path, float] | None:
    """(checkpoint, value) with the best value of `metric` in the manifests; None if no manifest
    has one. `largest`: whether the largest value is the best."""
    found = None
    for path in listed(folder):
        try:
            value = read_manifest(path).get("metrics", {}).get(metric)
        except Damaged:
            continue
        if isinstance(value, (int, float)) and value == value and (
                found is None or (value > found[1] if largest else value < found[1])):
            found = (path, float(value))
    return found


def choose(folder: Path, which: str, best: str | None) -> str | None:
    """The name of the checkpoint in `folder` that a person chose: "best" (judged by `best`, the
    value of train.best; without one, by the least loss), a step, or a checkpoint's name. None for
    "newest", which is found while loading, as the last one may be damaged. Raises UserError, which
    says which checkpoints there are.
    """
    text = which.strip()
    if text == "newest":
        return None
    there = [p.name for p in listed(folder)]
    if not there:
        raise UserError(f"{folder}: there is no checkpoint")
    if text == "best":
        metric, largest = parse_best(best) or ("loss", False)
        found = best_of(folder, metric, largest)
        if found is None:
            given = "" if best else " (train.best does not name another)"
            raise UserError(f"no checkpoint has a value {metric!r} of an evaluation{given}, so "
                            f"there is no best one; there are {_steps(there)}")
        return found[0].name
    step = step_of(text) if text.startswith("step-") else _number(text)
    if step is None:
        raise UserError(f"{which!r} is not a checkpoint: use newest, best or a step; there are "
                        f"{_steps(there)}")
    if name_of(step) not in there:
        raise UserError(f"there is no checkpoint of step {step}; there are {_steps(there)}")
    return name_of(step)


def set_aside(folder: Path, after: str, into: str) -> list[str]:
    """Move the checkpoints later than `after` into the folder `into` beside them, and return their
    names. Training will continue from `after` in another way, of which they are no part. Raises
    OSError."""
    later = [p for p in listed(folder) if p.name > after]
    for path in later:
        (folder / into).mkdir(mode=0o700, exist_ok=True)
        path.rename(folder / into / path.name)
    return [p.name for p in later]


def _number(text: str) -> int | None:
    """The whole number in a text such as "1,500" or "1500"; None if there is none."""
    digits = text.replace(",", "").replace("_", "")
    return int(digits) if digits.isascii() and digits.isdigit() else None


def _steps(names: list[str]) -> str:
    """The steps of some checkpoints, the newest last: "step 300, 600"."""
    steps = [f"{step:,}" if (step := step_of(n)) is not None else n for n in names]
    more = f"… {len(steps) - _MOST_NAMED} more, " if len(steps) > _MOST_NAMED else ""
    return f"step {more}{', '.join(steps[-_MOST_NAMED:])}"
