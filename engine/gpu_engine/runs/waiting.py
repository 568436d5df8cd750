"""A run that waits for its turn: `queue.json` in its folder says what it waits for.

The run is in the state queued, nobody holds its lock, and it stays so over a reboot. One small
process a user (`gpu_engine.queue.waiter`) starts such runs. It writes what each of them waits for
to one file, the board, from which all readers take the reason.

`$GPU_PANEL_HOME/queue/`, 0700:

    line/3f2a           one empty file for each waiting run, so that none of the others is looked at
    next                the number that the next run in the line gets
    board-HOST.json     what each run waits for, by the waiter of that machine
    waiter-HOST.lock    held (flock) by that waiter        waiter-HOST.log   its log
    environ-HASH.json   environments of submission; deleted with the last run that needs them
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from gpu_engine.common import procs, units
from gpu_engine.common.files import json_inside, read_json, write_json_inside
from gpu_engine.common.records import Pid, UnixTime, Whole, find_record
from gpu_engine.runs.state import State

FILE = "queue.json"
_BEGINNING = 10.0
"""Seconds in which the waiter that a new run has started should be there."""


@dataclass(frozen=True, slots=True)
class Wants:
    """The devices that a run waits for."""

    ids: tuple[str, ...] = ()
    """These, by their ids; empty: any `count`."""
    count: Whole = 0
    within: tuple[str, ...] = ()
    """The devices to take them from, if its environment allows only some; empty: all."""
    free: Whole | None = None
    """Bytes of memory that must be free on each; None: not asked."""
    share: bool = False
    """Devices that others use will do."""
    cpu: bool = False
    """CPU slots, not GPUs."""
    free_for: float = 0.0
    """Seconds for which they must have been free."""

    @property
    def text(self) -> str:
        """For people: "GPU 0, GPU 1", "any 2 GPUs with 20.0 GiB free"."""
        what = "CPU slot" if self.cpu else "GPU"
        if self.ids:
            return ", ".join(i if self.cpu else f"GPU {i}" if i.isdigit() else i
                             for i in self.ids)
        text = f"any {self.count} {what}{'s' if self.count > 1 else ''}"
        return text + (f" with {units.size(self.free)} free" if self.free else "")


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
    environ: str | None = None
    """The name of the file with the environment it was submitted in."""
    code: str | None = None
    """The name of its code as it was at submission; None: it is not kept."""
    root: str | None = None
    """The folder that `code` was read from: a repository, of which `folder` is a part."""
    folder: str | None = None
    """Where it was submitted. The plan's folder may be a copy of it, after a start that was too
    late for its devices."""


@dataclass(frozen=True, slots=True)
class Board:
    """What the waiter of a machine has decided last."""

    at: UnixTime
    pid: Pid
    ticks: Whole | None
    boot: str | None
    reasons: dict[str, str] = field(default_factory=dict)
    """The run's id → "waits for …", "starts on …"."""

    @property
    def lives(self) -> bool:
        """Whether the waiter that wrote it still runs, on this machine."""
        return self.boot == procs.boot_id() and procs.alive(self.pid, self.ticks)


def folder_beside(run: Path) -> Path:
    """The queue's folder for the runs beside this one."""
    return run.parent.parent / "queue"


def read(run: Path) -> Entry | None:
    """What the run in this folder waits for; None if it does not wait."""
    return find_record(Entry, json_inside(run, FILE))


def write(run: Path, entry: Entry) -> None:
    """Note in the run's folder what it waits for. Raises OSError."""
    write_json_inside(run, FILE, asdict(entry))


def line_folder(folder: Path) -> Path:
    """The folder in `folder`, the queue's, that has a file for each waiting run."""
    return folder / "line"


def enter(run: Path) -> None:
    """Put the run, whose entry is written, into the line. Raises OSError."""
    line = line_folder(folder_beside(run))
    line.mkdir(mode=0o700, parents=True, exist_ok=True)
    (line / run.name).touch(0o600)  # not synced: a waiter that begins takes in who is missing


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


def any_here(folder: Path) -> bool:
    """Whether runs wait there for this machine, or entries are left that nobody can read, which
    whoever starts the runs removes. Several machines may share the folder."""
    entries, host = line(folder), socket.gethostname()
    return any(entry.host == host for entry in entries.values()) \
        or not entries.keys() >= set(ids(folder))


def place(name: str, entry: Entry) -> tuple[float, float, float, str]:
    """What the line is sorted by."""
    return (-entry.priority, entry.number, entry.submitted, name)


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
    somebody holds its lock, as then it is just being started."""
    if recorded.state != "queued" or recorded.pid is not None:
        return None
    entry = read(run)
    if entry is None:
        return None
    if held:
        return replace(recorded, reason="starts")
    return replace(recorded, reason=reasons(folder_beside(run), entry.host).of(run.name, entry))


@dataclass(frozen=True, slots=True)
class Reasons:
    """What the runs of one machine wait for, as far as its waiter has told."""

    board: Board | None
    """None: nobody starts them."""

    def of(self, name: str, entry: Entry) -> str:
        """For people: "waits for GPU 0, which is held by run 77aa"."""
        if self.board is None and time.time() - entry.submitted < _BEGINNING:
            return "waits for its first check"  # what starts it is just beginning
        if self.board is None:
            return "waits, but the queue does not run: gpu-engine queue starts it"
        return self.board.reasons.get(name, "waits for its first check")


def reasons(folder: Path, host: str) -> Reasons:
    """What the runs that wait on that machine wait for; `folder`: the queue's. Equal as long as
    nothing has changed."""
    board, lives = _board(folder, host)
    return Reasons(board if lives or host != socket.gethostname() else None)


def board_path(folder: Path, host: str) -> Path:
    return folder / f"board-{word(host)}.json"


def lock_path(folder: Path, host: str) -> Path:
    return folder / f"waiter-{word(host)}.lock"


def read_board(folder: Path, host: str) -> Board | None:
    """The newest board of that machine's waiter; None if there is none."""
    return find_record(Board, read_json(board_path(folder, host)))


_seen: dict[Path, tuple[int, float, Board | None, bool]] = {}


def _board(folder: Path, host: str) -> tuple[Board | None, bool]:
    """The board and whether its waiter lives. A list of a thousand waiting runs reads it once."""
    path, now = board_path(folder, host), time.monotonic()
    try:
        stamp = path.stat().st_mtime_ns
    except OSError:
        return None, False
    known = _seen.get(path)
    if known is None or known[0] != stamp or now - known[1] > 0.5:
        board = known[2] if known is not None and known[0] == stamp else read_board(folder, host)
        known = _seen[path] = (stamp, now, board, board is not None and board.lives)
    return known[2], known[3]


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
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(folder / "next", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def word(host: str) -> str:
    """A machine's name as a part of a file's name."""
    return "".join(c if c.isalnum() or c in "-._" else "_" for c in host)[:64] or "host"
