"""The paths of a rank's files in a run folder.

Standard library only, like `schema`.
"""

from __future__ import annotations

import os
from pathlib import Path

# Relative: in an observed script the package has another name.
from ..common.files import open_inside

FOLDER = "ranks"
"""The folder of these files, in a run folder."""
HOSTS = "hosts"
"""The folder of what is known of a run's hosts, in a run folder."""
NODES = "nodes"
"""The folder with what the supervisors of a Slurm job's other nodes keep, in a run folder."""


def events_path(run: Path, rank: int) -> Path:
    """The events file of `rank` in the run folder `run`."""
    return run / FOLDER / f"{rank:05d}.jsonl"


def log_path(run: Path, rank: int) -> Path:
    """The file with the output of `rank`, unless it shares the log of its launcher."""
    return run / FOLDER / f"{rank:05d}.log"


def inside(path: Path) -> tuple[Path, str]:
    """The run folder and the name in it of one of these files, or of one beside it, as
    `files.open_inside` takes them."""
    folder = path.parent
    if folder.name in (FOLDER, HOSTS, NODES):
        return folder.parent, f"{folder.name}/{path.name}"
    return folder, path.name


def open_to_append(path: Path) -> int:
    """The descriptor of one of these files for writing at its end; it and its folder are made if
    they are not there. Raises OSError."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    return open_inside(*inside(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


DEVICES = "devices.jsonl"
"""The file with the figures of this machine's devices, in a run folder."""


def devices_paths(run: Path) -> dict[str | None, Path]:
    """The files with the figures of devices, by the host whose devices they are; None: this
    machine."""
    found: dict[str | None, Path] = {None: run / DEVICES}
    for folder in (HOSTS, NODES):
        try:
            names = os.listdir(run / folder)  # noqa: PTH208
        except OSError:
            continue
        found |= {name[:-len(DEVICES) - 1]: run / folder / name for name in sorted(names)
                  if name.endswith("." + DEVICES)}
    return found


def ranks_with_files(run: Path) -> list[int]:
    """The ranks that have an events file or a log, in order; none if the folder can't be listed."""
    try:
        names = [Path(name) for name in os.listdir(run / FOLDER)]  # noqa: PTH208
    except OSError:
        return []
    return sorted({int(p.stem) for p in names
                   if p.suffix in (".jsonl", ".log") and p.stem.isdecimal()})


TRACE_REQUEST, TRACES = "trace.json", "traces"
"""The file that asks ranks for a trace of their next steps, and the folder of these traces."""
SNAPSHOT = ".pickle"
"""How the name of a trace ends that is a snapshot of a GPU's memory: what it says is in a file that
ends with .json instead."""
MOST_TRACED = 100
"""Steps."""
