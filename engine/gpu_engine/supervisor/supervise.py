"""The life of one run on this node: attempts, each started, watched and ended."""

from __future__ import annotations

import logging
import os
import signal
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gpu_engine import command as cmd
from gpu_engine import procs
from gpu_engine.devices import Device, lease
from gpu_engine.errors import UserError
from gpu_engine.events import Tail
from gpu_engine.plan import RUN_DIR
from gpu_engine.preflight import free_port
from gpu_engine.runs import Cause, RankProcess, Run, State, StateName, leases_folder
from gpu_engine.supervisor import children as ch
from gpu_engine.supervisor import scripts
from gpu_engine.supervisor.cause import Failure, first_cause
from gpu_engine.supervisor.scripts import Seen

_HEARD = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1)
_WAKE_GRACE = 5.0
"""Seconds that ranks get to fail by themselves once another has."""
_LINGER = 30.0
"""Seconds that ranks get to end once one of them has completed."""
_FOREIGN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK",
            "GROUP_WORLD_SIZE", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID",
            "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "TORCHELASTIC_RUN_ID",
            "GPU_PANEL_RANK", "GPU_PANEL_DEVICES", "GPU_PANEL_DIRECT")
"""Left by a launcher or a run around us: a rank would take them for its own."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Attempt:
    """One start of all processes, and how it ended."""

    number: int
    children: list[ch.Child] = field(default_factory=list)
    events: dict[int, Seen] = field(default_factory=dict)
    asked: float | None = None
    """Monotonic seconds when the ranks were asked to stop."""
    deadline: float | None = None
    """Monotonic seconds after which what is left is killed."""

    below: dict[int, scripts.Below] = field(default_factory=dict)
    """Launchers by pid whose ranks, and not they, were asked to stop."""

    @property
    def killed(self) -> bool:
        return any(c.killed for c in self.children)

    @property
    def running(self) -> list[ch.Child]:
        return [c for c in self.children if c.running]


class Supervisor:
    """Supervises one run. Everything happens in the calling thread."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.plan = run.plan()
        self.spec = self.plan.get("spec", {})
        self.is_task = "use" in self.spec.get("task", {})
        command = self.spec.get("task", {}).get("command")
        self.launches = bool(command) and cmd.launches_itself(command)
        self.grace = float(self.spec.get("run", {}).get("grace", 60.0))
        self.stop_asked = False
        pid = os.getpid()
        self.state: State = replace(run.state(), state="starting", pid=pid,
                                    ticks=procs.start_ticks(pid), boot=procs.boot_id(),
                                    started=time.time())

    def supervise(self) -> State:
        """Run attempts until one completes, is stopped, or none is left. Returns the end."""
        ch.become_subreaper()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # an ignored one would not be pending
        signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        try:
            leases = self._lease()
        except UserError as err:
            self._say("failed", ended=time.time(), exit_code=1, reason=str(err),
                      cause=Cause(str(err)))
            return self.state
        with leases:
            return self._attempts()

    def _lease(self) -> lease.Leases:
        """Hold the run's devices for as long as this process lives. CPU slots are only noted:
        everything on the machine shares them anyway. Raises UserError."""
        share = bool(self.spec.get("devices", {}).get("share")) \
            or self.plan.get("device_type") == "cpu"
        used = {d["id"]: d for r in self.plan.get("ranks", ()) for d in r["devices"]}
        devices = [Device(d["id"], _kind(d), d["label"], uuid=d["uuid"],
                          index=int(d["id"]) if d["id"].isdigit() else None)
                   for d in used.values()]
        return lease.acquire(leases_folder(), devices, self.run.id, share=share)

    def _attempts(self) -> State:
        restarts = int(self.spec.get("train", {}).get("restarts", 0))
        first = number = self.state.attempt  # above 1 for a resumed run
        while True:
            self._say("starting", attempt=number, processes=(), cause=None, reason=None)
            try:
                outcome, reason, cause = self._attempt(number)
            except Exception as err:
                log.exception("attempt %d", number)
                ch.kill_tree(())
                outcome, cause = "failed", None
                reason = f"the supervisor failed: {err!r}; see supervisor.log"
            if outcome != "failed" or number - first >= restarts or self.stop_asked:
                break
            delay = min(2.0 ** (number - first), 30.0)
            log.info("attempt %d failed (%s); again in %.0f s", number, reason, delay)
            self._say("starting", reason=f"attempt {number} failed: {reason}; again soon")
            if not self._pause(delay):
                outcome, reason = "stopped", f"stopped while waiting after attempt {number} failed"
                break
            number += 1
        code = {"completed": 0, "stopped": 130, "failed": 1}[outcome]
        self._say(outcome, ended=time.time(), exit_code=code, reason=reason, cause=cause)
        return self.state

    # --- one attempt ---------------------------------------------------------------------------

    def _attempt(self, number: int) -> tuple[StateName, str | None, Cause | None]:
        attempt = Attempt(number)
        oom_before = _oom_kills()
        failed = self._start(attempt)
        if failed is not None:
            ch.kill_tree(attempt.children)
            return "failed", failed.message, failed
        self._say("running", processes=self._processes(attempt))
        while attempt.running:
            self._hear(attempt, self._wait(attempt))
            self._look(attempt)
        left = ch.kill_tree(attempt.children)
        if left:
            log.error("could not end: %s", left)
        self._read(attempt)
        self.state = replace(self.state, processes=self._processes(attempt))
        now = _oom_kills()
        counted = None if now is None or oom_before is None else now - oom_before
        judged = self._judge(attempt, counted)
        if not self.is_task:
            scripts.write_ends(self.run, attempt.events, attempt.children, self.stop_asked)
        return judged

    def _start(self, attempt: Attempt) -> Cause | None:
        """Start all processes; a Cause where one could not be."""
        port = str(free_port())
        cwd = str(self.plan.get("cwd") or "/")
        for process in self.plan.get("processes", ()):
            env = {k: v for k, v in os.environ.items() if k not in _FOREIGN}
            env |= process["env"]
            env |= {"GPU_PANEL_RUN": str(self.run.path), "PYTHONUNBUFFERED": "1",
                    "GPU_PANEL_ATTEMPT": str(attempt.number)}
            if self._direct(process["role"]):
                env["GPU_PANEL_DIRECT"] = str(os.getpid())
            if env.get("MASTER_PORT") == "0":
                env["MASTER_PORT"] = port  # fresh each attempt: the last one's may linger
            argv = [a.replace(RUN_DIR, str(self.run.path)) for a in process["argv"]]
            path = self.run.path / (process.get("log") or "ranks/00000.log")
            ranks = tuple(process["ranks"])
            try:
                if attempt.number > 1:
                    _note(path, f"--- attempt {attempt.number} ---")
                child = ch.spawn(argv, env=env, cwd=cwd, log=path, cores=process["cores"],
                                 ranks=ranks, role=process["role"])
            except OSError as err:
                what = err.filename or argv[0]
                return Cause(f"can't start {argv[0]}: {err.strerror}: {what}", ranks[0],
                             type(err).__name__)
            log.info("attempt %d: rank %s is pid %d", attempt.number,
                     ",".join(map(str, ranks)), child.pid)
            attempt.children.append(child)
            for rank in ranks:
                attempt.events[rank] = Seen(Tail(self.run.events(rank)), attempt.number)
        return None

    def _direct(self, role: str) -> bool:
        """Whether a process that we start is itself a rank of a person's own script."""
        return not self.is_task and not self.launches and role == "rank"

    def _read(self, attempt: Attempt) -> None:
        """Read what is new of the ranks' events; scripts may have ranks that no plan knows of."""
        if not self.is_task:
            for rank in set(self.run.ranks()) - set(attempt.events):
                attempt.events[rank] = Seen(Tail(self.run.events(rank)), attempt.number)
        for seen in attempt.events.values():
            seen.read()

    def _look(self, attempt: Attempt) -> None:
        """What has to be looked at now and then while a script runs."""
        if attempt.below:
            scripts.end_launchers(attempt.running, attempt.below)
        for child in attempt.children:
            if self._direct(child.role):
                scripts.warn_unseen(self.run, child, attempt.events[child.ranks[0]])

    def _wait(self, attempt: Attempt) -> int | None:
        """The next signal for us, or None after a while."""
        timeout = 0.1 if attempt.below else 1.0
        if attempt.deadline is not None:
            timeout = max(0.0, min(timeout, attempt.deadline - time.monotonic()))
        got = signal.sigtimedwait(_HEARD, timeout)
        return None if got is None else got.si_signo

    def _hear(self, attempt: Attempt, number: int | None) -> None:
        ended = ch.reap(attempt.children)
        if ended:
            self._note_ends(attempt, ended)
        if number == signal.SIGQUIT:
            self.stop_asked = True
            self._kill(attempt, "asked to end now")
        elif number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            self._ask(attempt)
        if attempt.deadline is not None and time.monotonic() >= attempt.deadline \
                and attempt.running:
            self._kill(attempt, "time is up")

    def _note_ends(self, attempt: Attempt, ended: list[ch.Child]) -> None:
        for child in ended:
            log.info("rank %s (pid %d) ended with %s", ",".join(map(str, child.ranks)), child.pid,
                     child.status)
        self._read(attempt)
        self.state = replace(self.state, processes=self._processes(attempt))
        if attempt.running and attempt.asked is None:
            bad = any(c.status != 0 or self._too_early(attempt, c) for c in ended)
            self._limit(attempt, _WAKE_GRACE if bad else _LINGER if self.is_task else None)
            if bad:
                for child in attempt.running:
                    child.signal(signal.SIGTERM)
        self._write()

    def _too_early(self, attempt: Attempt, child: ch.Child) -> bool:
        """A task's rank that exits 0 without having said that it ended."""
        return self.is_task and any(attempt.events[r].outcome is None for r in child.ranks)

    def _ask(self, attempt: Attempt) -> None:
        """Ask the ranks to finish their step and save.

        The rank processes alone, not their groups: a DataLoader worker that dies first spoils
        the save. Below a launcher that means the ranks themselves, as torchrun would signal
        whole groups.
        """
        self.stop_asked = True
        if attempt.asked is not None:
            return
        attempt.asked = time.monotonic()
        self._limit(attempt, self.grace)
        self._say("stopping")
        for child in attempt.running:
            launcher = child.role == "launcher" or self.launches
            if not launcher or not self._ask_below(attempt, child):
                child.signal(signal.SIGTERM)

    def _ask_below(self, attempt: Attempt, launcher: ch.Child) -> bool:
        """SIGTERM to the ranks that say they live below `launcher`; False: none does."""
        below = set(ch.descendants(launcher.pid))
        self._read(attempt)
        asked = [s.pid for s in attempt.events.values() if s.pid in below]
        for pid in asked:
            os.kill(pid, signal.SIGTERM)
        if asked and launcher.role == "rank":
            attempt.below[launcher.pid] = scripts.Below(asked)
        return bool(asked)

    def _limit(self, attempt: Attempt, seconds: float | None) -> None:
        if seconds is None:
            return
        end = time.monotonic() + seconds
        attempt.deadline = end if attempt.deadline is None else min(end, attempt.deadline)

    def _kill(self, attempt: Attempt, why: str) -> None:
        log.warning("killing what is left: %s", why)
        for child in attempt.running:
            child.killed = True
        ch.kill_tree(attempt.children)
        attempt.deadline = time.monotonic() + 60  # unkillable: look again, don't spin

    def _judge(self, attempt: Attempt, oom_kills: int | None
               ) -> tuple[Literal["completed", "stopped", "failed"], str | None, Cause | None]:
        failures = [
            Failure(rank, child.status, child.ended or time.time(), attempt.events[rank].error,
                    _tail(self._log_of(child, rank)))
            for child in attempt.children if not child.killed for rank in child.ranks
            if child.status != 0 or self._too_early(attempt, child)
            or (self.is_task and attempt.events[rank].error is not None)
        ]
        if not self.is_task:
            failures += scripts.errors_below(attempt.events, attempt.children)
        if self.stop_asked:
            erred = [f for f in failures if f.error is not None and not f.in_wake]
            if not erred:
                late = "the ranks did not stop in time and were ended" if attempt.killed else None
                return "stopped", late, None
        if not failures and attempt.killed:
            why = f"some ranks were still running {_LINGER:.0f} s after the first had completed"
            return "failed", why, Cause(why)
        if not failures:
            stopped = any(s.outcome == "stopped" for s in attempt.events.values())
            return ("stopped" if stopped else "completed"), None, None
        cause = first_cause(failures, oom_kills=oom_kills)
        return "failed", f"rank {cause.rank}: {cause.message.splitlines()[0]}", cause

    def _log_of(self, child: ch.Child, rank: int) -> Path:
        own = self.run.log(rank)
        if child.role == "rank":  # one process, one log, however many ranks
            return self.run.log(child.ranks[0])
        return own if own.exists() else self.run.path / f"node{self.plan.get('node_rank', 0)}.log"

    # --- state ---------------------------------------------------------------------------------

    def _processes(self, attempt: Attempt) -> tuple[RankProcess, ...]:
        return tuple(RankProcess(rank, c.pid, c.ticks, c.status)
                     for c in attempt.children for rank in c.ranks)

    def _say(self, name: StateName, **changes: Any) -> None:
        self.state = replace(self.state, state=name, **changes)
        self._write()

    def _write(self) -> None:
        try:
            self.run.write_state(self.state)
        except OSError:
            log.exception("state.json")  # a full disk must not end training

    def _pause(self, seconds: float) -> bool:
        """Wait; False when asked to stop meanwhile."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            got = signal.sigtimedwait(_HEARD, left)
            if got is not None and got.si_signo != signal.SIGCHLD:
                self.stop_asked = True
                return False
            ch.reap(())
        return True


def _kind(use: dict[str, Any]) -> Literal["gpu", "mig", "cpu"]:
    if use["id"].startswith("cpu:"):
        return "cpu"
    return "mig" if (use["uuid"] or "").startswith("MIG") else "gpu"


def _note(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text + "\n")


def _tail(path: Path, size: int = 16384) -> str:
    """The end of a log, as text."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _oom_kills() -> int | None:
    """Out-of-memory kills that the kernel counted: our cgroup's (v2), else the machine's."""
    try:
        group = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip()
        text = Path(f"/sys/fs/cgroup{group}/memory.events").read_text()
    except OSError:
        try:
            text = Path("/proc/vmstat").read_text()
        except OSError:
            return None
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return None
