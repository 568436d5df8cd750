"""What a run knows of the sweep that it is a member of: `sweep.json` in its folder.

It is written once, when the run is submitted. Standard library only, as the rest of this room that
a rank imports.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpu_engine.common.files import json_inside, write_json_inside
from gpu_engine.common.records import UnixTime, Whole, find_record

FILE = "sweep.json"
ID = re.compile(r"s[0-9a-f]{1,32}")


@dataclass(frozen=True, slots=True)
class Member:
    """A run's place in its sweep."""

    sweep: str
    """The id of the sweep: "s" and hexadecimal digits, so that it is never a run's."""
    name: str
    """The name of the sweep."""
    index: Whole
    """From 1."""
    of: Whole
    """How many members are to be submitted."""
    begun: UnixTime
    """When the sweep was submitted, Unix seconds; the same for all members."""
    values: dict[str, str] = field(default_factory=dict)
    """Each key that varies → its value, as it was typed for `--grid`."""
    repeat: Whole | None = None
    """Which of the runs with these values it is, from 1; None: there is only one."""
    pick: Whole | None = None
    """devices.pick and devices.free_gib as they were submitted, before the run got its devices."""
    free_gib: float | None = None
    search: str | None = None
    """What asks for the values of a sweep whose members are not all known before: "tpe"."""
    axes: dict[str, str] = field(default_factory=dict)
    """Of a search, or where values were drawn: each key that varies → what its values are taken
    from, as typed for `--grid`."""


def read(run: Path) -> Member | None:
    """The place in its sweep of the run in this folder; None if it is in none."""
    member = find_record(Member, json_inside(run, FILE))
    # A file is named after it.
    return member if member is not None and ID.fullmatch(member.sweep) else None


def write(run: Path, member: Member) -> None:
    """Keep the run's place in its sweep in its folder. Raises OSError."""
    write_json_inside(run, FILE, asdict(member))
