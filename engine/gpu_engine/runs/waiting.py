"""A run that waits for its turn: `queue.json` in its folder says what it waits for.

Waiting is a state of its supervisor (`queue/wait.py`), which holds the run's lock, as while ranks
train, and keeps the reason in state.json. It removes queue.json before it starts the first rank. So
as long as that file is there nothing of the run has begun: if the supervisor was killed, or the
machine was restarted, the run waits on, and another supervisor may be started for it. A run that
gives way (run.give_way) has the file again before its ranks are told to save.

`$GPU_PANEL_HOME/queue/`, 0700:

    line/3f2a       one empty file for each waiting run, so that none of the others is looked at
    next            the number that the next run in the line gets
    s3f2a.lock      held (flock) by the process that starts the supervisors of a sweep's members,
                    and there as long as that has something to do; the name of its machine,
                    or empty: none that rests goes on
    s3f2a.log       its log
    s3f2a.search    what a search asks with, as long as it is to ask for more (`sweep/search.py`)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gpu_engine.common import units
from gpu_engine.common.files import json_inside, write_json_inside
from gpu_engine.common.files import locked as locked_by_another
from gpu_engine.common.paths import private_folder
from gpu_engine.common.records import UnixTime, Whole, find_record
from gpu_engine.runs.state import State
from gpu_engine.runs.sweep import ID
from gpu_engine.spec.host_names import ANY

FILE, PLACE = "queue.json", "place.json"
"""What a run waits for; and what one that makes room has waited for, and waits for again."""
FIRST, BEHIND = "waits for its first check", "for runs ahead of it"
NOBODY = "waits, but nothing starts it: gpu-engine queue has it go on"
"""The reason of a run without a supervisor."""


@dataclass(frozen=True, slots=True)
class Wants:
    """The devices that a run waits for."""

    ids: tuple[str, ...] = ()
    """These, of this machine, by their ids; empty: any `count`."""
    count: Whole = 0
    within: tuple[str, ...] = ()
    """The devices to take them from, if its environment allows only some; empty: all."""
    free: Whole | None = None
    """Bytes of memory that must be free on each; None: not asked."""
    share: bool = False
    """Devices that others use will do."""
    cpu: bool | None = False
    """CPU slots, not GPUs. None: what the first of `hosts` has that answers, as none has yet."""
    hosts: tuple[str, ...] = ()
    """The machines of which one is taken, as entries of devices.hosts; without `count` all of them,
    with the devices that they name. Empty: this one."""
    give_way: bool = False
    """It makes room for others, so it stands behind all that do not."""

    @property
    def text(self) -> str:
        """For people: "GPU 0, GPU 1", "any 2 GPUs with 20.0 GiB free"."""
        what = "device" if self.cpu is None else "CPU slot" if self.cpu else "GPU"
        if self.ids:
            return ", ".join(i if self.cpu else f"GPU {i}" if i.isdigit() else i
                             for i in self.ids)
        if self.hosts and not self.count:
            return " and ".join(self.hosts)
        text = f"any {self.count} {what}{'s' if self.count > 1 else ''}"
        text += f" with {units.size(self.free)} free" if self.free else ""
        if not self.hosts:
            return text
        return text + (" of any host" if ANY in self.hosts else f" on {' or '.join(self.hosts)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Wants):
    """What a run waits for, and its place in the line. Times are Unix seconds."""

    submitted: UnixTime
    number: float
    """Its place among runs of the same priority: the lower goes first."""
    host: str
    """The machine on which it waits; several may share the folder."""
    priority: int = 0
    after: str | None = None
    begin: UnixTime | None = None
    sweep: str | None = None
    """The sweep whose process starts its supervisor; None: it was started at submission."""
    code: str | None = None
    """The name of its code as it was at submission; None: it is not kept."""
    root: str | None = None
    """The folder that `code` was read from: a repository, of which `folder` is a part."""
    at_once: bool = False
    """It does not wait, nor stand in the line: where no host takes it, it has failed."""
    folder: str | None = None
    """Where it was submitted. The plan's folder may be a copy of it, after a start that was too
    late for its devices."""


def folder_beside(run: Path) -> Path:
    """The queue's folder for the runs beside this one."""
    return run.parent.parent / "queue"


def read(run: Path, file: str = FILE) -> Entry | None:
    """What the run in this folder waits for; None if it does not wait."""
    entry = find_record(Entry, json_inside(run, file))
    if entry is not None and entry.sweep is not None and not ID.fullmatch(entry.sweep):
        return None  # files are named after it
    return entry


def write(run: Path, entry: Entry, file: str = FILE) -> None:
    """Note in the run's folder what it waits for. Raises OSError."""
    write_json_inside(run, file, asdict(entry))


def line_folder(folder: Path) -> Path:
    """The folder in `folder`, the queue's, that has a file for each waiting run."""
    return folder / "line"


def enter(run: Path) -> None:
    """Put the run into the line. Whoever submits it holds its lock, and writes its entry next:
    what of the two reaches the disk first is then the one without which the run is never found.
    Raises OSError."""
    line = line_folder(folder_beside(run))
    private_folder(line)
    (line / run.name).touch(0o600)


def leave(run: Path) -> None:
    """The run waits no longer. Raises OSError."""
    (run / FILE).unlink(missing_ok=True)
    (line_folder(folder_beside(run)) / run.name).unlink(missing_ok=True)


def ids(folder: Path) -> list[str]:
    """The ids of the runs that wait there, in any order."""
    try:
        names = os.listdir(line_folder(folder))  # noqa: PTH208
    except OSError:
        return []
    return [name for name in names if not name.startswith(".")]  # as NFS leaves some


def place(name: str, entry: Entry) -> tuple[bool, float, float, float, str]:
    """What the line is sorted by."""
    return (entry.give_way, -entry.priority, entry.number, entry.submitted, name)


_lines: dict[Path, tuple[dict[str, tuple[int, int]], dict[str, Entry]]] = {}
"""Each line as it was read last: when each run's entry was written and its inode, and the
entries."""


def line(folder: Path) -> dict[str, Entry]:
    """The entries of the runs in the line, in their order; `folder`: the queue's. As long as nobody
    enters, moves or leaves, it is the same dict, so don't change it. A run that is just starting is
    still in it."""
    before, known = _lines.get(folder, ({}, {}))
    stamps: dict[str, tuple[int, int]] = {}
    found: dict[str, Entry] = {}
    for name in ids(folder):
        run = folder.parent / "runs" / name
        try:
            info = os.stat(run / FILE)  # noqa: PTH116  a thousand of them
        except OSError:
            continue
        own = (info.st_mtime_ns, info.st_ino)
        entry = known[name] if before.get(name) == own else read(run)
        if entry is not None:
            stamps[name], found[name] = own, entry
    found = dict(sorted(found.items(), key=lambda pair: place(*pair)))
    if list(known.items()) == list(found.items()):
        found = known
    _lines[folder] = stamps, found
    return found


def judge(recorded: State, run: Path, *, held: bool) -> State | None:
    """The state of a run that waits, with the reason; None if it does not wait. `held`: whether
    somebody holds its lock."""
    entry = read(run) if recorded.live else None
    if entry is None or entry.at_once or (recorded.state in ("running", "stopping") and held):
        return None
    # One that makes room stands in the line again a moment before its state says so.
    if recorded.state == "running" and not entry.give_way:
        return None
    if held:
        return recorded if recorded.reason or recorded.pid else replace(recorded, reason=FIRST)
    served = entry.sweep is not None and locked_by_another(
        sweep_lock(folder_beside(run), entry.sweep))
    # The next supervisor goes on where the last was killed.
    known = recorded.reason if (recorded.reason or "").startswith("waits ") else None
    return replace(recorded, state="queued", pid=None, ticks=None,
                   reason=known or f"waits {BEHIND}" if served else NOBODY)


def sweep_lock(folder: Path, sweep: str) -> Path:
    """What the process holds that starts the supervisors of this sweep's members."""
    return folder / f"{sweep}.lock"


def search_file(folder: Path, sweep: str) -> Path:
    """What the search of this sweep asks with; there as long as it does."""
    return folder / f"{sweep}.search"


def next_number(folder: Path) -> int:
    """The place of the next run in the line: a counter, as a clock may be set back. Raises
    OSError."""
    with locked(folder) as fd:
        text = os.pread(fd, 32, 0).strip()
        number = int(text) if text.isdigit() else 1
        os.pwrite(fd, b"%d\n" % (number + 1), 0)
        return number


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Keeps others from changing what the waiting runs share; yields the counter's descriptor.
    Raises OSError."""
    private_folder(folder)
    fd = os.open(folder / "next", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)
