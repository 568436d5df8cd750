"""results.json: what was measured, when, where, with which versions."""

from __future__ import annotations

import dataclasses
import fcntl
import json
from pathlib import Path

PATH = Path(__file__).with_name("results.json")


@dataclasses.dataclass
class Figure:
    """One measure of one program in one case, a value for each round."""

    measure: str
    case: str
    program: str
    values: list[float]
    """In seconds, shares of a core or bytes, as the measure says. The value at an index comes from
    the same round as the others of this group at that index."""


@dataclasses.dataclass
class Group:
    """What was measured together, interleaved."""

    date: str
    """Day and time of its begin, UTC."""
    commit: str
    """gpu-panel's own."""
    machine: dict[str, str]
    versions: dict[str, str]
    """Program → version."""
    load: float
    """Mean load of the machine, its own included, over the minute before the end."""
    figures: list[Figure]
    missing: dict[str, str]
    """Program → why it has no figures here."""


def read(path: Path = PATH) -> dict[str, Group]:
    """Name → group; empty without a file."""
    if not path.exists():
        return {}
    return {name: Group(**{**group, "figures": [Figure(**f) for f in group["figures"]]})
            for name, group in json.loads(path.read_text()).items()}


def keep(name: str, group: Group, path: Path = PATH) -> None:
    """Write one group; the others stay as they are, also if they are being measured."""
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        groups = {**read(path), name: group}
        new = path.with_suffix(".new")
        new.write_text(json.dumps({n: dataclasses.asdict(groups[n]) for n in sorted(groups)},
                                  indent=1) + "\n")
        new.replace(path)
