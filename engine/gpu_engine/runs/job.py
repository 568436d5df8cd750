"""The Slurm job of a run: `slurm.json` in its run folder.

The ranks keep state.json while they train. What happens before, between and after that only Slurm
knows: the job waits, is requeued, is cancelled. Whoever looks at the runs asks Slurm
(`slurm/watch.py`) and notes the answer here, so that every reader of the folder finds the same
state without asking (`runs/judge.py`). Standard library only: a rank imports this.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu_engine.common import units
from gpu_engine.common.files import json_inside, write_inside, write_json_inside
from gpu_engine.common.records import UnixTime, Whole, find_record

FILE, STOP, SCRIPT, OUTPUT = "slurm.json", "stop", "job.sh", "supervisor.log"
OURS = "GPU_PANEL_SLURM_JOB"
"""The variable in which our batch scripts give the number of their job."""
BY_SLURM = "by Slurm: near the time limit, for another job, as a node failed, or by scancel"
"""Who has stopped a run whose ranks were told so by Slurm, which does not tell them why."""
GONE = "GONE"
"""Our word for a job that Slurm no longer knows."""
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT",
                      "RESV_DEL_HOLD"})
_OVER = frozenset({"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL",
                   "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT", GONE})
_WHY_OVER = {
    "TIMEOUT": "reached its time limit", "DEADLINE": "reached its deadline",
    "NODE_FAIL": "ended because a node failed", "BOOT_FAIL": "ended because a node failed to boot",
    "OUT_OF_MEMORY": "ran out of memory", "PREEMPTED": "was preempted",
    "REVOKED": "was revoked", "FAILED": "failed",
    "COMPLETED": "ended without an event from its ranks",
    GONE: "is no longer known to Slurm",
}


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked of Slurm when the job was submitted."""

    nodes: Whole
    per_node: Whole
    """GPUs of each node; on CPU slots, ranks."""
    options: tuple[str, ...] = ()
    """Further options of sbatch, as KEY=VALUE or KEY."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job, as Slurm described it last. Times are Unix seconds."""

    id: Whole
    state: str = "PENDING"
    """Slurm's word for it, or GONE."""
    reason: str | None = None
    """Slurm's word for why it waits or has ended."""
    restarts: Whole = 0
    expected: UnixTime | None = None
    """When a waiting job will probably start; None: Slurm does not say."""
    ended: UnixTime | None = None
    nodes: str | None = None
    """The nodes that it has or had, compressed: "gpu[03-05]"; None: it never ran."""
    words: str | None = None
    """Of a job that has ended: the last line of its output, or what Slurm said of it."""
    request: Request | None = None
    """None: gpu-panel has not submitted it."""
    doubt: str | None = None
    """Why Slurm can't be asked now; None: it can."""
    since: UnixTime | None = None
    """Since when it can't be asked."""

    @property
    def waits(self) -> bool:
        return self.state in _WAITING

    @property
    def over(self) -> bool:
        """Whether it has ended for good."""
        return self.state in _OVER

    def sentence(self) -> str:
        """For people: "Slurm job 41007 waits (Resources)"."""
        if self.waits:
            text = self._waiting()
        elif self.state == "CANCELLED":
            who = self.reason if (self.reason or "").startswith("by ") else ""
            text = f"was cancelled {who}".rstrip() \
                + ("" if self.nodes or self.restarts else " before it ran")
        elif self.over:
            text = _WHY_OVER.get(self.state, self.state)
        else:
            text = f"is {self.state.lower()}" + (f" on {self.nodes}" if self.nodes else "")
        if self.over and self.words:
            text += f": {self.words}"
        if self.doubt is not None:
            text += f"; Slurm can't be asked since {_clock(self.since)}: {self.doubt}"
        return f"Slurm job {self.id} {text}"

    def _waiting(self) -> str:
        # With some reasons Slurm lists nodes: "ReqNodeNotAvail, UnavailableNodes:gpu[1-3]".
        reason = self.reason if self.reason not in (None, "", "None") else None
        if reason is None and self.expected is None:
            return "was submitted"  # Slurm has not looked at it; it may begin at any moment
        return "waits" + (f" ({reason})" if reason is not None else "") \
            + (f", probably until {_clock(self.expected)}" if self.expected else "")


def here(environ: Mapping[str, str] = os.environ) -> Job | None:
    """The job whose batch script, one of ours, has started this process. Within an allocation of a
    person's own, which may hold other things, there is none: it would not be the run's to end."""
    number, count = environ.get(OURS, ""), environ.get("SLURM_RESTART_COUNT", "")
    if not number.isdigit() or number != environ.get("SLURM_JOB_ID"):
        return None
    return Job(int(number), state="RUNNING", restarts=int(count) if count.isdigit() else 0,
               nodes=environ.get("SLURM_JOB_NODELIST"))


def read(run: Path) -> Job | None:
    """The job of the run in this folder; None if it has none."""
    return find_record(Job, json_inside(run, FILE))


def to_dict(run: Path) -> dict[str, object]:
    """{"slurm": the job} as it is told to scripts; empty if the run has none."""
    job = read(run)
    return {"slurm": asdict(job)} if job is not None else {}


def write(run: Path, job: Job) -> None:
    """Raises OSError."""
    write_json_inside(run, FILE, asdict(job))


def forget(run: Path) -> None:
    """The run is a job's no longer. Raises OSError."""
    for name in (FILE, STOP):
        (run / name).unlink(missing_ok=True)


def asked_to_stop(run: Path) -> bool:
    """Whether a person has asked the job to stop: it must not go back to the queue."""
    return (run / STOP).exists()


def ask_to_stop(run: Path) -> None:
    """Note that the job must not go back to the queue: its script looks. Raises OSError."""
    write_inside(run, STOP, "")


def stamp(run: Path) -> tuple[int, int]:
    """Changes when the run's state may have changed. Raises OSError if it has no state.json."""
    folder, own = str(run), 0  # a string, as a list asks this of thousands
    with suppress(OSError):
        own = os.stat(f"{folder}/{FILE}").st_mtime_ns  # noqa: PTH116
    return os.stat(f"{folder}/state.json").st_mtime_ns, own  # noqa: PTH116


def _clock(when: float | None) -> str:
    return "some time" if when is None else units.time_of_day(when, time.time())
