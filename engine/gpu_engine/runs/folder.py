"""The run folder: finding a run, reading its state and plan, stopping and removing it.

`$GPU_PANEL_HOME/runs/<id>/`, each 0700:

    spec.toml   plan.json   state.json   lock   supervisor.log   devices.jsonl
    ranks/00003.jsonl   ranks/00003.log
    checkpoints/step-00000500/   specs/00001.toml
    slurm.json   job.sh   stop                                        of a job of Slurm
    nodes/1/{plan,state}.json   nodes/1/lock                          of its second node
    queue.json                                                        while it waits for its turn
    fetch.lock                                                        once a host's rest was fetched
    notes.json                                                        what a person wrote on it
    digest.json                                                       what lists tell of it

`$GPU_PANEL_HOME/parts/<id>/` is the same for what this machine has of a run that another one has
started here: it is no run of its own (`all_parts`).

Only the supervisor writes state.json, and it holds `lock` (flock) as long as it lives. If the state
says running but the lock is free, the supervisor has died without writing an end: the run is
*lost*.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from gpu_engine.common import paths, procs
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError, telling
from gpu_engine.common.files import (
    file_inside,
    json_inside,
    locked,
    open_inside,
    overwrite_inside,
    read_inside,
    reason,
    take_lock,
    why_not_inside,
    write_json_inside,
)
from gpu_engine.common.paths import parts_folder, private_folder, runs_folder
from gpu_engine.events.paths import NODES, events_path, log_path, ranks_with_files
from gpu_engine.plan.records import LaunchPlan, PartOf
from gpu_engine.runs import job as slurm_job
from gpu_engine.runs import leftovers, trust, waiting
from gpu_engine.runs.judge import judge
from gpu_engine.runs.state import (
    EXIT_CODES,
    FINAL,
    LIVE,
    AttemptRecord,
    Cause,
    RankProcess,
    Rung,
    State,
    StateName,
)

__all__ = ["EXIT_CODES", "FINAL", "LIVE", "AttemptRecord", "Cause", "RankProcess", "Run", "Rung",
           "State", "StateName", "all_runs", "each_run", "find", "require_folder"]

_ID = re.compile(r"[0-9a-f]{2,32}")
_ENDING = 5.0
"""Seconds in which a supervisor is there once its run has been launched, and gone once that has
ended."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder."""

    path: Path
    node: int = 0
    """On several nodes of Slurm, which share the folder: whose supervisor, state, plan and lock are
    meant. Those of the first are the run's."""

    @property
    def own(self) -> Path:
        """The folder of these four."""
        return self.path / NODES / str(self.node) if self.node else self.path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def events(self, rank: int) -> Path:
        return events_path(self.path, rank)

    def log(self, rank: int) -> Path:
        """The log of `rank`, if it has its own; see `output`."""
        return log_path(self.path, rank)

    def output(self, rank: int, plan: LaunchPlan | None = None) -> Path:
        """The log that holds the output of `rank`: its own, or the shared log of a command that
        has started several ranks. `plan`: the run's, if it has been read."""
        own, plan = self.log(rank), plan or self.plan()
        started = plan.processes if plan is not None else ()
        if _exists(own) or not started:
            return own
        # A rank that no process was planned for is below the first one.
        process = next((p for p in started if rank in p.ranks), started[0])
        shared = self.path / process.log
        return shared if process.role == "rank" and _exists(shared) else own

    def printed_elsewhere(self) -> str | None:
        """Where the output of ranks is that a person has started by hand, in one sentence; None:
        it is here, or nothing has begun."""
        plan = self.plan()
        if plan is None or plan.processes or plan.on_hosts or not plan.ranks \
                or any(_exists(self.log(rank)) for rank in self.ranks()):
            return None
        return f"run {self.id} was not started by gpu-panel: its ranks print where torchrun, or " \
            "whatever has started them, does"

    def cwd(self) -> str:
        plan = self.plan()
        return (plan.cwd if plan is not None else None) or str(Path.cwd())

    def plan(self) -> LaunchPlan | None:
        """The plan in plan.json; None if it can't be read or is not a plan."""
        try:
            found = os.lstat(self.own / "plan.json")
        except OSError:
            return None
        return _plan(self.own, (found.st_ino, found.st_ctime_ns, found.st_size))

    def require_plan(self) -> LaunchPlan:
        """The plan in plan.json. Raises UserError if it can't be read or is not a plan."""
        plan = self.plan()
        if plan is None:
            why = why_not_inside(self.path, "plan.json") or "it holds no plan"
            raise UserError(f"{self.path / 'plan.json'}: can't be read: {why}")
        return plan

    def ranks(self) -> list[int]:
        """The ranks that have an events file or a log, or that the plan names, in order."""
        plan = self.plan()
        named = {r.rank for r in plan.ranks} if plan is not None else set()
        return sorted(named.union(ranks_with_files(self.path)))

    def state(self) -> State:
        """The state of the run now, by `judge`. If state.json is damaged, the lock shows whether it
        runs; if the lock can't be read either, the run is *unreadable*."""
        recorded = self.recorded()
        if recorded is None:
            try:
                created = self.path.stat().st_mtime
            except OSError:
                created = 0.0
            held = self._held()
            name: StateName = "unreadable" if held is None else "running" if held else "lost"
            return State(name, self.id, self.id, created,
                         reason=_why_no_state(self.path))
        job, waits, held = slurm_job.read(self.path), None, False
        if job is None and recorded.live:
            if (held := self._held()) is None:
                held = procs.alive(recorded.pid, recorded.ticks)
            if not held:  # it may have ended since state.json was read
                recorded = self.recorded() or recorded
            waits = waiting.judge(recorded, self.path, held=held)
        state = judge(recorded, held=held, job=job, waits=waits,
                      stop=job is not None and slurm_job.asked_to_stop(self.path),
                      there=self.ranks() if recorded.live and not held and self.on_hosts()
                      else None)
        return replace(state, reason=self._why_lost(recorded)) \
            if state.state == "lost" and job is None and recorded.live else state

    def on_hosts(self) -> bool:
        """Whether the run is on hosts that are asked for it."""
        return trust.started_here(self.path) and os.path.isdir(self.path / leftovers.HOSTS)  # noqa: PTH112

    def recorded(self) -> State | None:
        """What its supervisor wrote last; None if that can't be read."""
        return State.from_dict(json_inside(self.own, "state.json"))

    def _why_lost(self, recorded: State) -> str:
        if recorded.boot not in (None, procs.boot_id()):
            why = "the machine was restarted"
        elif recorded.state == "queued" and recorded.pid is None:
            return "its launcher ended before the supervisor could start"
        else:
            why = "its supervisor died"
        return "; ".join([why, *leftovers.describe(self.path)])

    def supervised(self) -> bool:
        """Whether a supervisor holds the lock; False if the lock can't be read."""
        return bool(self._held())

    def _held(self) -> bool | None:
        """Whether somebody holds the lock; None if we may not read it."""
        return locked(self.own / "lock")

    def write_state(self, state: State, *, settled: bool = True) -> None:
        """Write state.json, on a full disk by overwriting the old file. `settled`: as for
        `files.write_inside`. Raises OSError."""
        try:
            write_json_inside(self.own, "state.json", state.to_dict(), settled=settled)
        except OSError as err:
            if err.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            overwrite_inside(self.own, "state.json",
                             json.dumps(state.to_dict(), allow_nan=False) + "\n")

    def stop(self, *, now: bool = False, first: bool = False) -> None:
        """Tell the supervisor to stop the run: a task's ranks finish their step and save, and a
        command gets its `run.stop_signal`, a second time SIGTERM. `now`: kill them. `first`: it is
        the first stop, however often it is told.

        If the run waits for its turn, it waits no longer on return. If it is lost, the processes
        that are left of it are ended, which takes up to `run.grace`. Raises UserError if nothing
        runs, or if the folder is not this user's alone.
        """
        trust.require_ours(self.path)
        if self._leave_the_line():
            return
        state = self.state()
        if state.state == "lost" and leftovers.processes(self.path):
            self.end_leftovers(now=now)
            return
        if not state.live:
            raise UserError(f"run {self.id} is not running: it is {state.state}")
        waits = waiting.read(self.path) is not None
        if state.pid is None:  # it is on its way
            end = time.monotonic() + _ENDING
            while (state := self.state()).pid is None and state.live and time.monotonic() < end:
                time.sleep(0.05)
        # Only the process that holds this run's lock: the folder's word for a pid is not enough.
        if state.pid is None or not procs.send(state.pid, state.ticks,
                                               signal.SIGQUIT if now else
                                               signal.SIGTERM if first else signal.SIGINT,
                                               lambda pid: trust.belongs(pid, self.path)):
            # It may have ended since its state was read.
            state = self.state()
            if not state.live:
                raise UserError(f"run {self.id} is not running: it is {state.state}")
            # Somebody holds its lock, whom the kernel does not show to us.
            raise UserError(f"run {self.id} can't be stopped from here: its supervisor is "
                            "no process that is seen here, as in another container; stop it where "
                            "it was started"
                            if self.supervised() else f"run {self.id}: its supervisor is gone")
        end = time.monotonic() + _ENDING
        while waits and self.state().live and time.monotonic() < end:
            time.sleep(0.02)

    def end_leftovers(self, *, now: bool = False) -> None:
        """End what is left of a lost run, with the signals of a stop. Raises UserError."""
        plan = self.plan()
        if plan is None:
            leftovers.end(self.path, now=now)
        else:
            leftovers.end(self.path, plan.stop_signal, plan.spec.run.grace, now=now)

    def _leave_the_line(self) -> bool:
        """End a run that waits for its turn and has no supervisor, as after a reboot. Returns False
        if it is none. Raises UserError if its folder can't be written."""
        if waiting.read(self.path) is None:
            return False
        with telling(f"run {self.id} can't be stopped"):
            fd = open_inside(self.path, "lock", os.O_RDWR)
        try:
            if not take_lock(fd):
                return False
            recorded = self.recorded()
            if recorded is None or waiting.judge(recorded, self.path, held=False) is None:
                return False
            self.write_state(replace(recorded, state="stopped", ended=time.time(),
                                     exit_code=EXIT_CODES["stopped"],
                                     reason="while it waited for its turn"))
            waiting.leave(self.path)
            return True
        except OSError as err:
            raise UserError(f"run {self.id} can't be stopped: {reason(err)}") from None
        finally:
            os.close(fd)

    def size(self) -> int:
        """How many bytes the folder takes on disk."""
        total = 0
        for root, _, files in os.walk(self.path):
            for name in files:
                try:
                    total += os.lstat(os.path.join(root, name)).st_blocks * 512  # noqa: PTH118
                except OSError:
                    continue
        return total

    def odd(self) -> list[str]:
        """What is odd about the folder: whose it is, and the files in it that can't be read, as one
        such run must not keep the others from being shown. A sentence for each of the first few."""
        why = trust.why_not_ours(self.path)
        out = [f"only shown: {why}"] if why else []
        names = ["state.json", "plan.json", "spec.toml", "supervisor.log", "notes.json"]
        try:
            names += [f"ranks/{name}" for name in sorted(os.listdir(self.path / "ranks"))  # noqa: PTH208
                      if name.endswith((".jsonl", ".log"))]
        except FileNotFoundError:
            pass
        except OSError as err:
            out.append(f"ranks can't be read: {reason(err)}")
        for name in names:
            if len(out) < 4 and os.path.lexists(self.path / name) \
                    and (why := why_not_inside(self.path, name)):
                out.append(f"{name} can't be read: {why}")
        return out[:4]

    def require_removable(self) -> None:
        """Raise UserError if the run or processes of it still run, if that can't be found out, or
        if the folder is another user's."""
        if (owner := trust.other_owner(self.path)) is not None:
            raise UserError(f"run {self.id} is only shown: {self.path}: it belongs to {owner}")
        state = self.state()
        if state.state == "unreadable":
            raise UserError(f"run {self.id} can't be removed: {state.reason}")
        if state.live or (state.state == "lost" and leftovers.processes(self.path)):
            raise UserError(f"run {self.id} is running: stop it first")

    def remove(self) -> None:
        """Delete the folder. Raises UserError as `require_removable`, and if that fails."""
        self.require_removable()
        end = time.monotonic() + _ENDING
        while self.supervised() and time.monotonic() < end:  # its last lines
            time.sleep(0.02)
        try:
            shutil.rmtree(self.path)
        except OSError as err:
            raise UserError(f"run {self.id} can't be removed: {err.strerror}: "
                            f"{self.path}") from None
        trust.forget_started(self.path)


@lru_cache(maxsize=16)
def _plan(path: Path, _written: tuple[int, int, int]) -> LaunchPlan | None:
    """The plan as it was at this writing: who follows a run asks for it at each look, and of many
    ranks it takes a second to read."""
    return LaunchPlan.from_dict(json_inside(path, "plan.json"))


def require_folder(path: Path) -> Path:
    """`private_folder`, for runs. Raises UserError if it can't be created or belongs to another
    user."""
    try:
        private_folder(path)
        if path.stat().st_uid != os.getuid():
            raise UserError(f"{path} belongs to another user; set GPU_PANEL_HOME to a folder "
                            "of your own")
    except OSError as err:
        raise UserError(f"{path}: can't be used for runs: {err.strerror}; set GPU_PANEL_HOME to "
                        "a folder you can write to") from None
    return path


def all_runs() -> list[Run]:
    """All runs in the runs folder, newest first; none if there is no such folder yet."""
    return sorted(each_run(), key=_created, reverse=True)


def foreign_parts() -> list[tuple[Run, PartOf]]:
    """What this machine has of runs that others have started, newest first, and which these are.
    Where machines share this home the runs are here themselves."""
    plans = [(part, part.plan()) for part in all_parts()]
    own = {run.id for run in each_run()}
    return [(part, plan.part_of) for part, plan in plans
            if plan is not None and plan.part_of is not None and plan.part_of.run not in own]


def all_parts() -> list[Run]:
    """What this machine has of runs that others have started on it, newest first. No run of its
    own: nothing but the agent asks for one."""
    return sorted(each_run(parts_folder()), key=_created, reverse=True)


def find(name: str) -> Run:
    """Find a run by its id, an unambiguous beginning of it, "last", or its folder's path. Raises
    UserError if there is no such run, or more than one. Where another machine asks, by its whole id
    the part that it has here."""
    if paths.serving:
        part = Run(paths.parts_folder() / name)
        if not _ID.fullmatch(name) or not part.path.is_dir():
            raise UserError(f"there is no run {name[:40]!r} there any more", "run", name[:40])
        return part
    if name == "last":
        newest = all_runs()
        if not newest:
            raise UserError("there are no runs yet; gpu-engine run PRESET starts one")
        return newest[0]
    if "/" in name:
        path = Path(name)
        try:
            file_inside(path, "plan.json").close()
        except FileNotFoundError:
            raise UserError(f"{name}: not a run folder") from None
        except OSError as err:
            raise UserError(f"{name}: plan.json can't be read: {reason(err)}") from None
        _refuse_part(Run(path.resolve()))
        return Run(path.resolve())
    # An id that is the beginning of another can be named, too.
    matches = [run for run in each_run() if run.id == name] \
        or [run for run in each_run() if name and run.id.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UserError(f"run {name!r} is ambiguous: " + ", ".join(sorted(r.id for r in matches)))
    for part in each_run(parts_folder()):
        if name and part.id.startswith(name):
            _refuse_part(part)
    raise UserError(f"there is no run {name!r}; gpu-engine runs lists them", "run", name,
                    "gpu-engine runs")


def _refuse_part(run: Run) -> None:
    """Raises UserError if it is the part of a run that another machine has started here."""
    plan = run.plan()
    if plan is not None and plan.part_of is not None:
        whole = plan.part_of
        raise UserError(clean(f"{run.id} is part of run {whole.run}, which {whole.machine} has "
                              f"started: gpu-engine show {whole.run}, there"))


def each_run(folder: Path | None = None) -> Iterator[Run]:
    """All runs in `folder`, in any order, without reading anything of them; None: the runs folder.
    """
    try:
        entries = list(os.scandir(folder or runs_folder()))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            yield Run(Path(entry.path))


def _exists(path: Path) -> bool:
    """Like `Path.exists`, but False if a parent folder may not be read."""
    return os.path.exists(path)  # noqa: PTH110


def _created(run: Run) -> float:
    state = json_inside(run.path, "state.json")
    created = state.get("created") if isinstance(state, dict) else None
    if isinstance(created, int | float) and 0 <= created < 1e12:
        return float(created)
    try:
        return run.path.stat().st_mtime
    except OSError:
        return 0.0


def _why_no_state(path: Path) -> str:
    """Why the state of the run in `path` can't be read from its state.json."""
    try:
        text = read_inside(path, "state.json")
    except FileNotFoundError:
        return "state.json is missing"
    except PermissionError as err:
        return f"can't be read: {reason(err)}{trust.whose(path)}"
    except OSError as err:
        return f"state.json can't be read: {reason(err)}"
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return "state.json is damaged: it is not JSON"
    return "state.json is damaged: it holds no state"
