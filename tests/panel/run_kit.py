"""Runs written by tests, and the text that a screen sends to the terminal."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gpu_engine.common import paths
from gpu_engine.events.rank_view import RankView
from gpu_engine.runs.folder import Run, State
from gpu_panel.run.screen import RunScreen
from gpu_panel.theme import ThemedApp

from .. import event_lines
from ..plans import plan as made
from .panel_kit import (  # noqa: F401
    fields_of,
    on_top,
    said_below,
    says,
    screen_text,
    until,
)

WIDE, SMALL = (160, 48), (80, 24)
T0 = 1_790_000_000.0
"""When every run here began, unix seconds."""
GIB = 1 << 30
NOW = T0 + 100
"""When a run is looked at, unix seconds."""


def view(rank: int, **known: object) -> RankView:
    """A rank in the midst of a step, heard of right before `NOW`, but for what is given."""
    values = {"phase": "forward", "phase_since": NOW - 1, "beat": NOW - 0.3, "step": 100,
              "samples_per_s": 100.0} | known
    seen = RankView(rank)
    for name, value in values.items():
        setattr(seen, name, value)
    return seen


class Written:
    """A run folder that a test writes; its lock is held while it is "live"."""

    def __init__(self, folder: Path, *, ranks: int = 2, mode: str = "ddp", cpu: bool = False,
                 state: str = "running", name: str = "bytes-gpt",
                 plan: dict[str, Any] | None = None, **more: Any) -> None:
        self.run = Run(folder / "3f2a")
        (self.run.path / "ranks").mkdir(parents=True)
        planned = made(ranks, mode=mode, cpu=cpu, name=name,
                       **({"spec": {"amp": {"dtype": "bf16"}}} | (plan or {})))
        self.run.path.joinpath("plan.json").write_text(json.dumps(planned.to_dict()))
        self._lock = os.open(self.run.path / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.name = name
        self.state(state, **more)

    def state(self, state: str, **more: Any) -> None:
        known = {"created": T0 - 2, "started": T0} | more
        self.run.write_state(State(state, "3f2a", self.name, **known))

    def spec(self, toml: str) -> None:
        """What was asked for."""
        self.run.path.joinpath("spec.toml").write_text(toml)

    def release(self) -> None:
        """Let its supervisor die: release the lock."""
        os.close(self._lock)

    def write(self, rank: int, *events: tuple[str, float, dict[str, Any]]) -> None:
        """Append (kind, seconds since T0, fields)."""
        self.raw(rank, b"".join(event_lines.line(kind, fields, t=T0 + at)
                                for kind, at, fields in events))

    def raw(self, rank: int, data: bytes) -> None:
        with self.run.events(rank).open("ab") as file:
            file.write(data)

    def start(self, rank: int, at: float = 0.0, attempt: int = 1, total: int = 400) -> None:
        self.write(rank,
                   ("start", at, {"rank": rank, "local_rank": rank, "node": 0, "pid": 100 + rank,
                                  "device": [f"GPU {rank}"], "world_size": 2,
                                  "attempt": attempt}),
                   ("schedule", at, {"total_steps": total, "steps_per_epoch": 200, "epochs": 2,
                                     "examples": 51_200, "dropped": 0, "first_step": 0,
                                     "batch": 256}))

    def steps(self, rank: int, first: int, last: int, *, at: float | None = None,
              loss: Iterable[float] | None = None, devices: int = 1, cpu: bool = False) -> None:
        """Append steps first to last (included): five in an event, half a second each."""
        values = list(loss) if loss is not None else [
            1.7 + 3.8 * math.exp(-s / 60) + 0.02 * rank for s in range(first, last + 1)]
        events: list[tuple[str, float, dict[str, Any]]] = []
        for begin in range(first, last + 1, 5):
            end = min(begin + 4, last)
            part = values[begin - first:end - first + 1]
            t = end / 2 if at is None else at
            events += [
                ("step", t, {"step": end, "n": len(part), "epoch": 0, "losses": part,
                             "loss": sum(part) / len(part), "lr": 3e-4,
                             "samples_per_s": 6200.0 + 10 * rank, "data_wait": 0.03,
                             "skipped": 0}),
                ("memory", t, {
                    "gpu_allocated": [] if cpu else [28 * GIB + d * GIB for d in range(devices)],
                    "gpu_reserved": [] if cpu else [33 * GIB] * devices,
                    "gpu_peak": [] if cpu else [34 * GIB + d * GIB for d in range(devices)],
                    "gpu_process": None, "rss": 2 * GIB + rank * GIB // 4}),
                ("phase", t, {"phase": "forward", "since": T0 + t, "step": end}),
            ]
        self.write(rank, *events)

    def log(self, rank: int, data: bytes) -> None:
        with self.run.log(rank).open("ab") as file:
            file.write(data)


def trained(folder: Path, **more: Any) -> Written:
    """Two ranks, 100 of 400 steps done."""
    run = Written(folder, **more)
    for rank in (0, 1):
        run.start(rank)
        run.steps(rank, 0, 99)
        run.log(rank, b"".join(b"rank %d says %d\n" % (rank, i) for i in range(50)))
    return run


def listed(state: str = "failed") -> Written:
    """One of the person's own runs, which has ended."""
    paths.runs_folder().mkdir(parents=True)
    run = trained(paths.runs_folder())
    run.state(state, ended=T0 + 60)
    run.release()
    return run


def reached(rank: int, step: int) -> Callable[[Any], bool]:
    """Whether this rank, and all before it, have reached this step."""
    return lambda store: rank in store.ranks and all(
        store.ranks[r].step == step for r in range(rank + 1))


def flat(text: str) -> str:
    return " ".join(text.split())


def said(app: Any) -> str:
    """The text of the screen with single blanks."""
    return flat(screen_text(app))


@asynccontextmanager
async def watched(run: Written, so: Any = lambda store: store.caught_up, *, at: float = 200.0,
                  size: tuple[int, int] = WIDE, screen: type[RunScreen] = RunScreen,
                  ) -> AsyncIterator[tuple[Any, Mini]]:
    """The run's screen `at` seconds after the run began, when it shows what is there."""
    app = Mini(run.run, at, screen)
    async with app.run_test(size=size) as pilot:
        await settled(pilot, so)
        yield pilot, app


class Mini(ThemedApp):
    """An app with only the run screen; its clock moves only when a test moves it."""

    def __init__(self, run: Run, at: float = 200.0, screen: type[RunScreen] = RunScreen) -> None:
        super().__init__()
        self.animation_level = "none"
        self.run_screen = screen(run, clock=lambda: T0 + self.at)
        self.at = at

    def on_mount(self) -> None:
        self.push_screen(self.run_screen)


async def settled(pilot: Any, so: Any = lambda store: store.caught_up) -> None:
    """Wait until the store has read everything written and the screen shows it."""
    screen = pilot.app.run_screen
    await screen.store.wait_for(so)
    await shown(pilot)


async def shown(pilot: Any) -> None:
    screen = pilot.app.run_screen
    for _ in range(3):
        screen.paint()
        await worked(pilot, "log")  # the store's reader never ends
        await pilot.pause()


async def press(pilot: Any, *keys: str) -> None:
    """Press keys, and wait until the screen shows what follows."""
    await pilot.press(*keys)
    await shown(pilot)


async def worked(pilot: Any, group: str) -> None:
    """Wait for the end of the workers of the groups whose names begin so."""
    workers = [w for w in pilot.app.workers if w.group.startswith(group)]
    if workers:  # Textual takes an empty list for all workers
        await pilot.app.workers.wait_for_complete(workers)
