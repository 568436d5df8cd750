"""The fault cases: how they are registered, what they work with, and the invariants that must hold
after every one of them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpu_engine.common import paths, procs
from gpu_engine.devices import leases as lease
from gpu_engine.devices.records import Inventory
from gpu_engine.places.verbs import prepare, start
from gpu_engine.runs import folder as runs
from gpu_engine.spec.read import from_dict

from .. import event_lines
from ..command_line import called
from ..conftest import slots, wait_for
from .disks import can_be_root

STANDIN = Path(__file__).with_name("standin.py")
TOY = f"{Path(__file__).parents[1] / 'training' / 'toy.py'}:Toy"
SOON = 5.0
"""Seconds after which no process of a run may be left, whatever was killed."""
UNTIL_LET_GO = """
n = 0
while not (run / 'go').exists():
    n += 1
    step(n)
    beat(step=n)
    time.sleep(0.01)
finish(n=n)
"""
"""What a stand-in rank does after `start()`: it trains, and completes once it is let go."""


@dataclass(frozen=True)
class Case:
    """One fault: what is done, and what must hold afterwards besides the common invariants."""

    name: str
    does: str
    then: str
    body: Callable[[Box], None]
    always: bool = True
    """Whether it is part of every test run, not only of `make faults`."""
    root: bool = False
    """Whether it needs root, to mount, limit or change owners."""


CASES: list[Case] = []


def case(does: str, then: str, *, always: bool = True, root: bool = False) -> Callable:
    """Register a function as a case, under its name."""

    def register(body: Callable[[Box], None]) -> Callable[[Box], None]:
        name = body.__name__.replace("_", "-")
        CASES.append(Case(name, does, then, body, always, root))
        return body

    return register


@dataclass
class Box:
    """What a case works with: its own home folder, and ways to start runs in it."""

    home: Path
    tmp: Path
    patch: pytest.MonkeyPatch
    full: bool = False
    """Whether to run all rounds of the case."""
    _bodies: int = 0
    damaged: set[Path] = field(default_factory=set)
    """Runs whose newest checkpoint the case has damaged for good."""
    killed_launchers: bool = False
    """Whether half-made run folders may be left, which a later launch removes."""
    ours: list[subprocess.Popen] = field(default_factory=list)

    # --- starting ----------------------------------------------------------------------------

    def go(self, body: str, *, ranks: int = 2, wait: bool = False, **sections: Any) -> runs.Run:
        """Launch stand-in ranks that run the Python text `body`."""
        run = start(self.prepared(body, ranks=ranks, **sections))
        if wait:
            self.running(run)
        return run

    def prepared(self, body: str, *, ranks: int = 2, **sections: Any) -> Any:
        self._bodies += 1
        text = self.tmp / f"body-{self._bodies}.py"
        text.write_text(body)
        self.patch.setenv("FAULT_BODY", str(text))
        data = self.data(ranks, **sections)
        data.setdefault("run", {}).setdefault("python", str(self.interpreter()))
        return prepare(from_dict(data), inventory=machine(ranks))

    def toy(self, *, ranks: int = 1, params: dict[str, Any] | None = None, **sections: Any
            ) -> runs.Run:
        """Launch real ranks on the small task of the worker's tests."""
        return start(self.prepared_toy(ranks=ranks, params=params, **sections))

    def prepared_toy(self, *, ranks: int = 1, params: dict[str, Any] | None = None,
                     use: str = TOY, **sections: Any) -> Any:
        data = self.data(ranks, **sections)
        data["task"] = {"use": use, "params": params or {}}
        data["train"] = {"workers": 0, "checkpoint_every": 0} | data["train"]
        return prepare(from_dict(data), inventory=machine(ranks))

    def script(self, body: str, *, ranks: int = 2, words: tuple[str, ...] = (), **sections: Any
               ) -> runs.Run:
        """Launch a person's own script."""
        self._bodies += 1
        text = self.tmp / f"script {self._bodies}.py"
        text.write_text(body)
        data = self.data(ranks, **sections)
        for never_told in ("batch", "train"):
            data[never_told] = dict(sections.get(never_told, {}))
        data["task"] = {"command": [sys.executable, *words, str(text)]}
        return start(prepare(from_dict(data), inventory=machine(ranks)))

    def data(self, ranks: int, **sections: Any) -> dict[str, Any]:
        base = {"task": {"use": "gpu_engine.tasks.bytes_gpt:BytesGPT"},
                "devices": {"ids": [f"cpu:{i}" for i in range(ranks)]},
                "parallel": {"mode": "ddp" if ranks > 1 else "single"},
                "batch": {"meaning": "per_gpu", "size": 8}, "train": {"steps": 100}, "run": {}}
        for name, section in sections.items():
            base[name] = base.get(name, {}) | section
        return base

    def interpreter(self) -> Path:
        """The program that is started in place of a rank's Python."""
        path = self.tmp / "python"
        if not path.exists():
            path.write_text(f"#!/bin/sh\nexec '{sys.executable}' -S -E '{STANDIN}' \"$@\"\n")
            path.chmod(0o755)
        return path

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end, in this process."""
        return without_traceback(called(*words))

    def popen(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, *words], text=True, **more)
        self.ours.append(process)
        return process

    # --- waiting -----------------------------------------------------------------------------

    def running(self, run: runs.Run, seconds: float | None = None) -> runs.State:
        """Wait until every rank has said `start`."""
        def all_begun() -> Any:
            state = run.state()
            assert state.live, (state, logs(run))
            started = {r for r in run.ranks() if last_start(run, r)}
            wanted = {p.rank for p in state.processes}
            return state.state == "running" and wanted and started >= wanted and state
        return wait_for(all_begun, seconds)

    def stepping(self, run: runs.Run, step: int = 1, rank: int = 0) -> None:
        wait_for(lambda: steps(run, rank) >= step or not run.state().live)
        assert run.state().live, f"{run.state()}\n{logs(run)}"

    def let_go(self, run: runs.Run) -> None:
        """Have ranks that train until then complete."""
        (run.path / "go").touch(0o600)

    def ended(self, run: runs.Run, seconds: float | None = None) -> runs.State:
        """Wait until the run has ended and its supervisor too, so that it can be resumed."""
        return wait_for(
            lambda: not (s := run.state()).live and not run.supervised() and s, seconds)

    # --- what must be true after every case ---------------------------------------------------

    def check(self) -> None:
        """Check the invariants for every run in this home."""
        found = runs.all_runs()
        for run in found:
            self._nothing_lives(run)
        listed = self.cli("runs", "-n", "500").stdout
        for run in found:
            assert f"{run.id}  {run.state().state}" in listed
            self._state_is_final(run)
            self._checkpoint_loads(run)
            self._no_old_temporary(run)
            self._is_private(run)
        left = [p.name for p in paths.runs_folder().glob(".new-*")]
        assert not left or self.killed_launchers, left
        held = {h.run for h in lease.holders(paths.leases_folder()).values()}
        assert not held, f"leases are still held: {held}"

    def _nothing_lives(self, run: runs.Run) -> None:
        wait_for(lambda: not run.supervised(), SOON)
        known = {(p.pid, p.ticks) for p in run.state().processes}
        for rank in run.ranks():
            event = last_start(run, rank)
            if event:
                known.add((event.get("pid"), event.get("started")))
        wait_for(lambda: not any(procs.alive(p, t) for p, t in known) and not members(run), SOON)

    def _state_is_final(self, run: runs.Run) -> None:
        state = run.state()
        assert state.state in runs.FINAL, state
        if state.state != "lost":
            recorded = json.loads((run.path / "state.json").read_text())
            assert recorded["state"] == state.state
            assert runs.State.from_dict(recorded) == state
            assert state.ended is not None
        assert state.exit_code == runs.EXIT_CODES[state.state]
        assert state.state in ("completed", "stopped") or state.reason
        for record in state.attempts[:-1] if state.state != "lost" else ():
            assert record.outcome, state.attempts
        shown = self.cli("show", run.id)
        assert shown.returncode == 0
        assert f"  {state.state}  " in shown.stdout

    def _checkpoint_loads(self, run: runs.Run) -> None:
        sound = [verified(p) for p in checkpoints(run)]
        if run.path in self.damaged:
            assert any(sound)
        else:
            assert all(sound), run.path

    def _no_old_temporary(self, run: runs.Run) -> None:
        state = run.state()
        if not state.attempts:
            return
        for path in run.path.rglob(".*"):
            if path.name.endswith(".tmp") or path.name.startswith((".writing-", ".deleting-")):
                assert state.state == "lost", path  # else it has been tidied up
                assert path.stat().st_mtime >= state.attempts[-1].started - 1, path

    def _is_private(self, run: runs.Run) -> None:
        # What the scripts and torchrun write there has the person's umask.
        for path in (run.path, *run.path.glob("*.json"), *run.path.glob("*.toml"),
                     *run.path.glob("supervisor.log*"), run.path / "lock", run.path / "ranks",
                     *run.path.glob("ranks/*"), *run.path.glob("checkpoints/**/*")):
            with contextlib.suppress(FileNotFoundError):
                mode = path.lstat().st_mode
                assert stat.S_ISLNK(mode) or not mode & 0o077, (path, oct(mode))

    def close(self) -> None:
        """End everything that this case has started."""
        for process in self.ours:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for run in runs.all_runs():
            state = run.state()
            if state.live and procs.alive(state.pid, state.ticks):
                with contextlib.suppress(OSError):
                    os.kill(state.pid, signal.SIGCONT)
                    os.kill(state.pid, signal.SIGQUIT)
                with contextlib.suppress(AssertionError):
                    wait_for(lambda run=run: not run.supervised())
            for pid in members(run):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


def cases_of(*modules: ModuleType) -> list[Case]:
    """The cases that these modules have registered."""
    return [c for c in CASES if c.body.__module__ in {m.__name__ for m in modules}]


def put_through(case: Case, tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    """Run a case, and check the common invariants. `make test` runs a part of the cases; with
    GPU_PANEL_FAULTS=all, as `make faults` sets it, all are run, with more rounds."""
    full = os.environ.get("GPU_PANEL_FAULTS") == "all"
    if not (case.always or full):
        pytest.skip("runs with make faults")
    if case.root and not can_be_root():
        pytest.skip("needs root and mount")
    patch.setenv("GPU_PANEL_HOME", str(tmp_path / "home"))
    patch.setenv("OMP_NUM_THREADS", "1")
    box = Box(tmp_path / "home", tmp_path, patch, full)
    try:
        case.body(box)
        box.check()
    finally:
        box.close()


def without_traceback(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """What the command line said, if it was not a traceback of its own."""
    assert "Traceback" not in done.stderr.partition("failed first")[0], done.stderr
    return done


# --- looking ------------------------------------------------------------------------------------

def machine(count: int) -> Inventory:
    """A machine with `count` CPU slots on the existing cores."""
    cores = sorted(os.sched_getaffinity(0))
    made = slots(count)
    return replace(made, devices=tuple(
        replace(d, cores=(cores[i % len(cores)],)) for i, d in enumerate(made.devices)))


def members(run: runs.Run) -> list[int]:
    """Every process whose environment names the run, except the supervisor and its guard."""
    wanted = b"GPU_PANEL_RUN=" + os.fsencode(run.path)
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in Path(entry.path, "environ").read_bytes().split(b"\0") \
                        and procs.start_ticks(int(entry.name)) is not None:
                    found.append(int(entry.name))
    return found


def events(run: runs.Run, rank: int = 0, kind: str | None = None) -> list[dict[str, Any]]:
    return [e for e in event_lines.read_what_parses(run.events(rank))
            if kind is None or e["kind"] == kind]


def steps(run: runs.Run, rank: int = 0) -> int:
    return max((e["step"] for e in events(run, rank, "step") if isinstance(e.get("step"), int)),
               default=0)


def last_start(run: runs.Run, rank: int) -> dict[str, Any] | None:
    return next(reversed(events(run, rank, "start")), None)


def guard_of(state: runs.State) -> int:
    """The guard of a supervisor."""
    text = Path(f"/proc/{state.pid}/stat").read_text()
    return int(text.rpartition(")")[2].split()[1])


def checkpoints(run: runs.Run) -> list[Path]:
    return sorted(run.checkpoints.glob("step-*"))


def verified(path: Path) -> bool:
    """Whether every file is what the manifest says, as the worker's own check does."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        return all(len(data := (path / name).read_bytes()) == about["size"]
                   and hashlib.sha256(data).hexdigest() == about["sha256"]
                   for name, about in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def logs(run: runs.Run) -> str:
    return "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')[-2000:]}" for p in
                     [*sorted((run.path / "ranks").glob("*.log")), run.path / "supervisor.log"]
                     if p.exists())
