"""In what a run was started: versions, devices, and the commit of its folder. Written to
`environment.json` in the run folder at each start by whoever starts it, read to compare runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from gpu_engine.common.files import json_inside, write_json_inside
from gpu_engine.common.records import Whole, find_record

FILE = "environment.json"


@dataclass(frozen=True, slots=True)
class Environment:
    """Of the last attempt. None: not known."""

    gpu_panel: str | None = None
    """The version of gpu-panel."""
    python: str | None = None
    """The interpreter of the ranks."""
    torch: str | None = None
    """The version of its torch, "2.13.0+cu130"."""
    driver: str | None = None
    machine: str | None = None
    """The machine's name; of a run on hosts, their names."""
    devices: str | None = None
    """What the devices are called, "2 × NVIDIA H200"."""
    folder: str | None = None
    """Where the run was started."""
    commit: str | None = None
    """The git commit of that folder, in full; None also where hosts ran files of their own."""
    changed_files: Whole | None = None
    """How many files there differed from the commit."""
    code: str | None = None
    """The name of the code that it was started with, in `code/` of the home; None: it is not
    kept."""
    root: str | None = None
    """The folder that `code` was read from: a repository, of which `folder` is a part."""


def write(run: Path, environment: Environment) -> None:
    """Keep it in the run folder. Raises OSError."""
    write_json_inside(run, FILE, asdict(environment))


def read(run: Path) -> Environment:
    """What was kept; all None if nothing was."""
    return find_record(Environment, json_inside(run, FILE)) or Environment()
