"""Each host's part of a run, as `hosts/NAME.json` in the run folder here keeps it.

It keeps the host's name alone. How that host is reached says the person (`host_of`), never the
folder, which somebody may have sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gpu_engine.common.files import json_inside, write_json_inside
from gpu_engine.common.records import Seconds, UnixTime, read_record
from gpu_engine.remote.reach import hosts
from gpu_engine.remote.reach.hosts import BadName, Host, check_name
from gpu_engine.runs import leftovers, trust

FOLDER, FORMER = leftovers.HOSTS, "former"


@dataclass(frozen=True, slots=True)
class Base:
    """How many bytes of a rank's events here are another host's."""

    rank: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a host is told to do, and what is known of it."""

    host: str
    """Its name in devices.hosts."""
    node: int
    ranks: tuple[int, ...]
    spec: dict[str, object]
    folders: tuple[str, ...]
    code: str | None = None
    """The name of the code that it was sent; None: none was."""
    key: str
    """Names the run for the host before it has an id there."""
    trying: bool = False
    """Whether its ranks only try their connection."""
    attempt: int = 1
    """The one that it was told to begin."""
    resume: bool = False
    """Whether a run that is there begins another attempt."""
    checkpoint: str | None = None
    """The one to go on from; None: the newest."""
    fresh: tuple[int, ...] = ()
    """Its ranks that were on another host in the attempt before."""
    bases: tuple[Base, ...] = ()
    """Events here that came from another host: its own follow them."""
    run: str | None = None
    """The run's id there; None: not known to have begun."""
    path: str | None = None
    """Its folder there."""
    skew: Seconds = 0.0
    """Seconds that the clock there is ahead of this one."""
    state: str | None = None
    """How the run there is, as it was told last."""
    heard: UnixTime | None = None
    """Unix seconds when the host last answered."""
    problem: str | None = None
    """Why it can't be reached now; None: it can."""
    since: UnixTime | None = None
    """Since when, unix seconds."""
    asked: bool = False
    """Whether the host may have begun it, as it was asked to, though no answer came (`run`)."""
    behind: bool = False
    """Whether the run has ended without all that the host has recorded: it was away."""
    to_stop: bool = False
    """Whether the run here was stopped while it could not be reached: another `stop` asks it."""


def write(run: Path, part: Part) -> None:
    """Raises OSError."""
    folder = run / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    write_json_inside(run, f"{FOLDER}/{part.host}.json", asdict(part))


def host_of(run: Path, part: Part) -> Host:
    """How the host of a part is reached: as hosts.toml has it, else as ssh knows the name. Raises
    UserError where the run was not started from here, or hosts.toml is wrong."""
    trust.require_started(run)
    return hosts.find(part.host)


def write_instead(run: Path, told: Sequence[Part]) -> None:
    """These are the run's parts from now on. What is known of hosts that were left out is kept for
    `former`. Raises OSError."""
    names = {p.host for p in told}
    for part in read(run):
        if part.host not in names:
            (run / FOLDER / FORMER).mkdir(mode=0o700, exist_ok=True)
            name = f"{part.host}.json"
            (run / FOLDER / name).rename(run / FOLDER / FORMER / name)
    for part in told:
        write(run, part)
        (run / FOLDER / FORMER / f"{part.host}.json").unlink(missing_ok=True)


def forget(run: Path, part: Part) -> None:
    """Nothing of `part` is on its host any more: it begins there anew if the run goes on. Raises
    OSError."""
    (run / FOLDER / FORMER / f"{part.host}.json").unlink(missing_ok=True)
    if part in read(run):
        write(run, replace(part, run=None, path=None, state=None))


def drop(run: Path, part: Part) -> None:
    """The host has no part in the run. Raises OSError."""
    (run / FOLDER / f"{part.host}.json").unlink(missing_ok=True)


def former(run: Path) -> tuple[Part, ...]:
    """The parts of hosts that were left out of later attempts: their run folders are there."""
    return read(run, f"{FOLDER}/{FORMER}")


def read(run: Path, folder: str = FOLDER) -> tuple[Part, ...]:
    """The parts of a run, node 0's first; empty for one that is on this machine alone."""
    found = [_read(run, f"{folder}/{path.name}") for path in sorted((run / folder).glob("*.json"))]
    return tuple(sorted((p for p in found if p is not None), key=lambda p: p.node))


def _read(run: Path, name: str) -> Part | None:
    try:
        part = read_record(Part, json_inside(run, name))
        check_name(part.host)
    except (ValueError, BadName):
        return None
    return part if name.endswith(f"/{part.host}.json") else None
