"""Why a run failed: which rank failed first, and with which error. Pure, but for `of_events`.

When one rank dies, the others soon fail with connection errors, often within the same second, so a
launcher's "root cause" is a guess. Here it is the earliest failure that is not a communication
error; if there is none, the earliest of all.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from gpu_engine.common import procs, units
from gpu_engine.common.errors import own_fault
from gpu_engine.events import schema
from gpu_engine.events.reader import backwards
from gpu_engine.plan import own_command
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs import disk_room
from gpu_engine.runs.disk_room import Room
from gpu_engine.runs.folder import Cause, Run

_WAKE = re.compile(
    r"connection (reset|closed|refused|aborted)|broken pipe|connectfullmesh|timed? ?out waiting"
    r"|timeout.*(gloo|nccl|store)|(gloo|nccl|store|socket).*(timeout|timed out)|nccl error"
    r"|application timeout|rendezvous|\bpeer\b|watchdog caught collective", re.IGNORECASE)
_MISSING = re.compile(r"Timed out after (\d+) seconds waiting for clients\. (\d+)/(\d+) clients")
"""The error of torchrun's static rendezvous when a node is missing (TCPStore.cpp)."""
_NOT_COMPILED = re.compile(r'^  File "[^"\n]*", line \d+\n(?: .*\n)*'
                           r"(?:SyntaxError|IndentationError|TabError): .*\s*\Z", re.MULTILINE)
_WAKE_TYPES = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError", "PeerLost"})
_WORDS = {"Killed": signal.SIGKILL, "Terminated": signal.SIGTERM, "Aborted": signal.SIGABRT,
          "Segmentation fault": signal.SIGSEGV, "Bus error": signal.SIGBUS}
_CRASHES = {"Segmentation fault": signal.SIGSEGV, "Aborted": signal.SIGABRT,
            "Bus error": signal.SIGBUS, "Floating point exception": signal.SIGFPE,
            "Floating-point exception": signal.SIGFPE, "Illegal instruction": signal.SIGILL}
_CRASH = re.compile(rf"^Fatal Python error: ({'|'.join(_CRASHES)})", re.MULTILINE)
"""What Python's faulthandler says in the log of a rank that a signal ends."""
_EXIT = re.compile(
    r"exitcode\s*: (?P<status>-?\d+)\)?.*\(pid: (?P<pid>\d+)\)"
    r"|[Pp]rocess (?P<told>\d+) (?:closing|via) signal (?P<closing>SIG\w+)"
    r"|process \d+ terminated with signal (?P<spawned>SIG\w+)"
    rf"|^(?:.*: line \d+: +(?P<job>\d+) )?(?P<words>{'|'.join(_WORDS)})\b", re.MULTILINE)
"""How torchrun and accelerate, torch.multiprocessing and shells say that a process has ended, or
that they end it."""
_ROOT = re.compile(r"^Root Cause .*\n(?:.*\n){0,4}? +rank +: (\d+).*\n +exitcode +: (-\d+) ",
                   re.MULTILINE)
"""The rank that torchrun saw end first, and the signal that ended it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of one rank's process."""

    rank: int
    status: int | None
    """Its exit status, negative if a signal ended it; 0: it ended before training did; None: it has
    told nothing of its end, nor has what started it."""
    ended: float
    """When it ended, Unix seconds."""
    error: schema.Error | None = None
    log_tail: str = ""
    """The end of its log, for a process that writes no events."""
    launcher: bool = False
    """Whether the process is not the rank itself but its launcher."""
    asked: bool = True
    """Whether we, or a launcher as far as is known, may have ended it after another had failed."""
    after_end: bool = False
    """Whether its script had ended by itself before a signal ended the process."""

    @property
    def when(self) -> float:
        """When the rank failed, Unix seconds: the time of its error, or of its end."""
        return self.error.t if self.error is not None else self.ended

    @property
    def traceback(self) -> str | None:
        """The traceback in its log that has ended it. Python exits with 1 then; before any other
        status, one that further output follows was caught."""
        trace = traceback_in(self.log_tail) if (self.status or 0) > 0 else None
        caught = trace and self.status != 1 and not self.log_tail.rstrip().endswith(trace.rstrip())
        return None if caught else trace

    @property
    def in_wake(self) -> bool:
        """Whether this looks like a consequence of another rank's failure, or has none."""
        if self.after_end:
            return True
        if self.error is not None:
            kind, message = self.error.type, self.error.message
            if kind != "PeerLost" and own_fault(message):
                return False
            return kind in _WAKE_TYPES or bool(_WAKE.search(message))
        if self.status == -signal.SIGTERM and self.asked:
            return True
        trace = self.traceback
        return trace is not None and bool(_WAKE.search(trace.splitlines()[-1]))


def first_cause(failures: Sequence[Failure], *, oom_kills: int | None = None,
                given: Given | None = None, disks: Sequence[Room] = (),
                ) -> Cause | None:
    """The cause of an attempt's failure; None without failures. `oom_kills`: how many out-of-memory
    kills the kernel counted during the attempt; None: not known. `given`: what the ranks were given
    of the batch, for advice on memory. `disks`: the free space of the run folder, and where else
    the ranks write; a full disk is named first, as the errors that it leads to seldom say so."""
    cause = _first(failures, oom_kills, given)
    if cause is None:
        return None
    silent = cause.rank is not None and cause.type is None and "exited with" in cause.message
    full = disk_room.blame(f"{cause.message}\n{cause.traceback or ''}", disks, silent=silent)
    return replace(cause, message=f"{full}.\n{cause.message}") if full else cause


def of_events(run: Run, ended: Sequence[Failure] = ()) -> Cause | None:
    """The cause of the failure of ranks without a supervisor, by the errors that they have recorded
    in their last attempt; None where there is none. `ended`: how somebody else saw processes end,
    which says nothing more of a rank that has recorded its error."""
    attempts = run.state().attempts
    begun = attempts[-1].started if attempts else 0.0
    found = {one.rank: one for one in ended}
    for path in run.path.glob("ranks/[0-9]*.jsonl"):
        error = next(backwards(path, schema.Error, within=1 << 20), None)
        if path.stem.isdecimal() and error is not None and error.t >= begun:
            found[int(path.stem)] = Failure(int(path.stem), 1, error.t, error)
    return first_cause(list(found.values()))


def _first(failures: Sequence[Failure], oom_kills: int | None,
           given: Given | None) -> Cause | None:
    if not failures:
        return None
    own = [f for f in failures if not f.in_wake] or list(failures)
    # What started the ranks may have ended those of which nothing is known, after another failed.
    own = [f for f in own if f.status is not None] or own
    first = min(own, key=lambda f: f.when)
    if first.error is not None:
        kind, message = first.error.type, first.error.message.strip()
        if _is_gpu_oom(first.error):
            known = _describe_oom(first.error, given)
            message = f"out of GPU memory{': ' * bool(known)}{known}.\n{message}"
        return Cause(message or kind or "failed without a message", first.rank, kind or None,
                     first.error.traceback or None)
    if first.after_end:
        words = f"{procs.describe_exit(first.status or 0)} after its script had reached its end, " \
            "so its training was over"
        if first.status in (-signal.SIGABRT, -signal.SIGSEGV):
            words += ": native code was too late for Python's end, mostly a thread of gloo"
        return Cause(words, first.rank)
    trace = first.traceback
    missing = _MISSING.search(first.log_tail)
    if missing:
        seconds, came, needed = missing.groups()
        return Cause(f"only {came} of {needed} machines connected within {seconds} s; start the "
                     "run on the others, and check master_addr, master_port and firewalls there")
    if trace:
        last = trace.strip().splitlines()[-1]
        kind, _, message = last.partition(": ")
        return Cause(message or last, first.rank, kind, trace)
    words = describe_exit(first.status, oom_kills)
    if first.launcher:
        was = "was " if (first.status or 0) < 0 else ""
        return Cause(f"the ranks' launcher {was}{words}", None, None, first.log_tail or None)
    return Cause(words, first.rank, None, first.log_tail or None)


def describe_exit(status: int | None, oom_kills: int | None = None) -> str:
    """An exit status in words, with its likely reason."""
    if status == 0:
        return "exited with 0 before training ended"
    if status is not None and status > 0:
        return procs.describe_exit(status)
    name = "SIGKILL" if status is None else procs.signal_name(-status)
    if status is None and not oom_kills:
        why = ", and the kernel counted no kill for lack of memory" if oom_kills == 0 else \
            ", SIGKILL where host memory is full"
        return f"ended without an error or an end of its own: killed by a signal{why}"
    if name != "SIGKILL":
        more = {"SIGSEGV": ": a crash in native code",
                "SIGBUS": f": often a full {disk_room.shared_memory()}",
                "SIGABRT": ": native code gave up"}.get(name, "")
        return procs.describe_exit(status or 0) + more
    if oom_kills:
        return "killed by SIGKILL: out of host memory (the kernel counted it)"
    if oom_kills == 0:
        return "killed by SIGKILL: not for lack of memory, as the kernel counted no such kill"
    return "killed by SIGKILL: probably out of host memory"


def traceback_in(text: str) -> str | None:
    """The last Python traceback in a text; None if there is none. A script that can't be compiled
    has one without its first line."""
    start = text.rfind("Traceback (most recent call last)")
    if start < 0:
        broken = _NOT_COMPILED.search(text)
        return broken[0].rstrip() if broken is not None else None
    lines = text[start:].splitlines()
    end = next((i for i, line in enumerate(lines[1:], 2) if line and not line[0].isspace()),
               len(lines))
    return "\n".join(lines[:end])


def exits_in(log: str) -> dict[int | None, int]:
    """How processes have ended, by what those that started them say in their log: the exit status
    by pid, as it is said first; under None that of one without a pid."""
    told: dict[int | None, int] = {}
    for match in _EXIT.finditer(log):
        said = match.groupdict()
        pid = said["pid"] or said["told"] or said["job"]
        name = said["closing"] or said["spawned"]
        number = _WORDS[said["words"]] if said["words"] else getattr(signal, name or "", 0)
        if said["status"] or number:
            told.setdefault(int(pid) if pid else None, int(said["status"] or -int(number)))
    return told


def crash_in(log: str) -> int | None:
    """The exit status of a process whose log says that a signal ended it, last."""
    said = [found[1] for found in _CRASH.finditer(log)]
    return -_CRASHES[said[-1]] if said else None


def root_in(log: str) -> tuple[int, int] | None:
    """(rank, exit status) of what torchrun says that a signal has ended first."""
    root = _ROOT.search(log)
    return None if root is None else (int(root[1]), int(root[2]))


# --- out of memory -------------------------------------------------------------------------------

def oom_kills(root: Path = Path("/")) -> int | None:
    """How many out-of-memory kills the kernel has counted: in our cgroup, else on the whole
    machine; None if no count can be read."""
    places = [root / "proc/vmstat"]
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            if not names:
                places.insert(0, root / f"sys/fs/cgroup{path}/memory.events")
            elif names == "memory":  # cgroups of version 1
                places.insert(0, root / f"sys/fs/cgroup/memory{path}/memory.oom_control")
    for place in places:
        with contextlib.suppress(OSError):
            for line in place.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill" and value.strip().isdigit():
                    return int(value)
    return None


def _is_gpu_oom(error: schema.Error) -> bool:
    """Whether an error event says that a GPU ran out of memory."""
    message = error.message.lower()
    return error.type == "OutOfMemoryError" or ("out of memory" in message and "cuda" in message)


class Given(NamedTuple):
    """What the ranks were given of the batch."""

    per_gpu: int
    """Examples in one forward pass."""
    accumulate: int | None
    """Backward passes a step; None: that did not reach them."""

    @classmethod
    def by(cls, plan: LaunchPlan) -> Given | None:
        """By a plan. None: the ranks have a batch of their own, which is not known: a person's own
        command knows only what its placeholders tell it."""
        command, batch = plan.spec.task.command, plan.batch
        if command is None:
            return cls(batch.per_gpu, batch.accumulate)
        told = own_command.used(command)
        if "batch.per_gpu" not in told:
            return None
        return cls(batch.per_gpu, batch.accumulate if "batch.accumulate" in told else None)


def _describe_oom(error: schema.Error, given: Given | None) -> str:
    """How much memory was requested and in use, which lines held most if that was recorded, and
    which batch would likely fit."""
    figures = [f"{name} {units.size(value)}" for name, value in (
        ("requested", error.requested), ("allocated", error.allocated),
        ("reserved", error.reserved)) if value is not None]
    held = f"held most: {', '.join(error.held_by[:3])}" if error.held_by else ""
    advice = fitting(given) if given is not None else ""
    return "; ".join(filter(None, (", ".join(figures), held, advice)))


def fitting(given: Given) -> str:
    """Advice on which batch would likely fit: the largest divisor of the batch of at most its half,
    so that accumulation can keep the global batch."""
    size, accumulate = given
    if size == 1:
        return "the batch is already 1 per GPU: use a smaller model, bf16 or a larger GPU"
    fits = max(d for d in range(1, size // 2 + 1) if size % d == 0)
    advice = f"{units.counted(fits, 'example')} per GPU instead of {size} would likely fit"
    if accumulate is None:
        return advice
    return f"{advice}; batch.accumulate={accumulate * size // fits} keeps the global batch"
