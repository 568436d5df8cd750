"""The run folder: where runs live, what state one is in, how to find, ask and remove one.

`$GPU_PANEL_HOME/runs/<id>/`, each 0700:

    spec.toml   plan.json   state.json   lock   supervisor.log
    ranks/00003.jsonl   ranks/00003.log   checkpoints/step-00000500/   specs/00001.toml

The supervisor alone writes state.json and holds `lock` (flock) while it lives: a lock that is
free while the state says running means that it died without a word: *lost*.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu_engine.common import procs
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import (
    open_file,
    overwrite,
    read_json,
    reason,
    why_not_readable,
    write_json,
)
from gpu_engine.common.places import runs_folder
from gpu_engine.events.paths import events_path, log_path, ranks_with_files
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs import leftovers, oddities
from gpu_engine.runs.state import (
    EXIT_CODES,
    FINAL,
    LIVE,
    AttemptRecord,
    Cause,
    RankProcess,
    State,
    StateName,
)

__all__ = [
    "EXIT_CODES",
    "FINAL",
    "LIVE",
    "AttemptRecord",
    "Cause",
    "RankProcess",
    "Run",
    "State",
    "StateName",
    "all_runs",
    "dumps",
    "find",
    "private_folder",
]

@dataclass(frozen=True, slots=True)
class Run:
    """A run folder."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def events(self, rank: int) -> Path:
        return events_path(self.path, rank)

    def log(self, rank: int) -> Path:
        return log_path(self.path, rank)

    def output(self, rank: int) -> Path:
        """Where what a rank prints is: its own log; where a command has started ranks of its own,
        the command's, which they share."""
        own, plan = self.log(rank), self.plan()
        started = plan.processes if plan is not None else ()
        if _exists(own) or any(rank in p.ranks for p in started[1:]) or not started:
            return own
        shared = self.path / started[0].log
        return shared if started[0].role == "rank" and _exists(shared) else own

    def cwd(self) -> str:
        """The folder that its ranks run in."""
        plan = self.plan()
        return (plan.cwd if plan is not None else None) or str(Path.cwd())

    def plan(self) -> LaunchPlan | None:
        """What plan.json holds; None where it can't be read, or holds no plan."""
        return LaunchPlan.from_dict(read_json(self.path / "plan.json"))

    def require_plan(self) -> LaunchPlan:
        """What plan.json holds, for who can't go on without it. Raises UserError."""
        plan = self.plan()
        if plan is None:
            why = why_not_readable(self.path / "plan.json") or "it holds no plan"
            raise UserError(f"{self.path / 'plan.json'}: can't be read: {why}")
        return plan

    def ranks(self) -> list[int]:
        """The ranks that have an events file or a log, or that the plan names, in order."""
        plan = self.plan()
        named = {r.rank for r in plan.ranks} if plan is not None else set()
        return sorted(named.union(ranks_with_files(self.path)))

    def state(self) -> State:
        """What is so now. A dead supervisor's run is *lost*; one whose state is damaged is told by
        its lock, and *unreadable* where that can't be looked at either."""
        recorded = State.from_dict(read_json(self.path / "state.json"))
        if recorded is None:
            try:
                created = self.path.stat().st_mtime
            except OSError:
                created = 0.0
            held = self._held()
            name: StateName = "unreadable" if held is None else "running" if held else "lost"
            return State(name, self.id, self.id, created, reason=oddities.why_no_state(self.path))
        if recorded.live and not self._lives(recorded):
            # It may have ended between the two reads.
            again = State.from_dict(read_json(self.path / "state.json"))
            if again is not None and not again.live:
                return again
            return replace(recorded, state="lost", exit_code=1, reason=self._why_lost(recorded))
        return recorded

    def _why_lost(self, recorded: State) -> str:
        if recorded.boot not in (None, procs.boot_id()):
            why = "the machine was restarted"
        elif recorded.state == "queued":
            return "what launched it ended before its supervisor could start"
        else:
            why = "its supervisor died without a word"
        return "; ".join([why, *leftovers.words(self.path)])

    def _lives(self, recorded: State) -> bool:
        held = self._held()
        return procs.alive(recorded.pid, recorded.ticks) if held is None else held

    def supervised(self) -> bool:
        """Whether a supervisor holds the lock; False where that can't be looked at."""
        return bool(self._held())

    def _held(self) -> bool | None:
        """Whether somebody holds the lock; None where we may not look."""
        try:
            fd = os.open(self.path / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except PermissionError:
            return None
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False

    def write_state(self, state: State) -> None:
        """Raises OSError. A full disk does not keep the end of a run from being written."""
        path = self.path / "state.json"
        try:
            write_json(path, state.to_dict())
        except OSError as err:
            if err.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            overwrite(path, json.dumps(state.to_dict(), allow_nan=False) + "\n")

    def stop(self, *, now: bool = False) -> None:
        """Ask the supervisor to stop the run: ranks finish their step and save; `now`: SIGKILL.

        Of a lost run, whatever should still run is ended, which takes some seconds. Raises
        UserError where nothing runs.
        """
        state = self.state()
        if state.state == "lost" and leftovers.processes(self.path):
            leftovers.end(self.path, now=now)
            return
        if not state.live:
            raise UserError(f"run {self.id} is not running: it is {state.state}")
        if state.state == "queued" and state.pid is None:
            state = self._wait_for_supervisor()
        if state.pid is None or not procs.send(state.pid, state.ticks,
                                               signal.SIGQUIT if now else signal.SIGTERM):
            # It may have ended between the two looks.
            state = self.state()
            raise UserError(f"run {self.id}: its supervisor is gone" if state.live else
                            f"run {self.id} is not running: it is {state.state}")

    def _wait_for_supervisor(self, seconds: float = 5.0) -> State:
        end = time.monotonic() + seconds
        while (state := self.state()).pid is None and state.live and time.monotonic() < end:
            time.sleep(0.05)
        return state

    def size(self) -> int:
        """Bytes on disk."""
        total = 0
        for root, _, files in os.walk(self.path):
            for name in files:
                try:
                    total += os.lstat(os.path.join(root, name)).st_blocks * 512  # noqa: PTH118
                except OSError:
                    continue
        return total

    def odd(self) -> list[str]:
        """What in the folder can't be read, a sentence each; empty where all is well."""
        return oddities.find(self.path)

    def remove(self) -> None:
        """Delete the folder. Raises UserError while the run, or what is left of it, lives, and
        where it can't be told whether it does."""
        state = self.state()
        if state.state == "unreadable":
            raise UserError(f"run {self.id} can't be removed: {state.reason}")
        if state.live or (state.state == "lost" and leftovers.processes(self.path)):
            raise UserError(f"run {self.id} is running: stop it first")
        try:
            shutil.rmtree(self.path)
        except OSError as err:
            raise UserError(f"run {self.id} can't be removed: {err.strerror}: "
                            f"{self.path}") from None


def private_folder(path: Path) -> Path:
    """`path`, made 0700 where it is missing. Raises UserError where it can't be had or is
    somebody else's."""
    try:
        for folder in (path.parent, path):  # `mode` is not for parents that mkdir makes
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.stat().st_uid != os.getuid():
            raise UserError(f"{path}: belongs to another user; set GPU_PANEL_HOME to a folder "
                            "of your own")
    except OSError as err:
        raise UserError(f"{path}: can't be used for runs: {err.strerror}; set GPU_PANEL_HOME to "
                        "a folder you can write to") from None
    return path


def all_runs() -> list[Run]:
    """Every run here, newest first; an empty list where there is no folder yet."""
    found = [(_created(run), run) for run in _each()]
    return [run for _, run in sorted(found, key=lambda pair: pair[0], reverse=True)]


def find(name: str) -> Run:
    """The run that `name` means: an id, an unambiguous beginning of one, "last", or a run
    folder's path. Raises UserError."""
    if name == "last":
        newest = all_runs()
        if not newest:
            raise UserError("there are no runs yet; gpu-engine run PRESET starts one")
        return newest[0]
    if "/" in name:
        path = Path(name)
        try:
            open_file(path / "plan.json").close()
        except FileNotFoundError:
            raise UserError(f"{name}: not a run folder") from None
        except OSError as err:
            raise UserError(f"{name}: plan.json can't be read: {reason(err)}") from None
        return Run(path.resolve())
    matches = [run for run in _each() if run.id == name] \
        or [run for run in _each() if name and run.id.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UserError(f"run {name!r} is ambiguous: " + ", ".join(sorted(r.id for r in matches)))
    raise UserError(f"there is no run {name!r}; gpu-engine runs lists them")


def _each() -> Iterator[Run]:
    try:
        entries = list(os.scandir(runs_folder()))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            yield Run(Path(entry.path))


def _exists(path: Path) -> bool:
    """As `Path.exists`, which raises where a folder on the way may not be looked into."""
    return os.path.exists(path)  # noqa: PTH110


def _created(run: Run) -> float:
    state = read_json(run.path / "state.json")
    created = state.get("created") if isinstance(state, dict) else None
    if isinstance(created, int | float):
        return float(created)
    try:
        return run.path.stat().st_mtime
    except OSError:
        return 0.0


def dumps(value: Any) -> str:
    """JSON for scripts: strict, one document."""
    return json.dumps(value, indent=2, allow_nan=False)
