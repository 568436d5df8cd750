"""Runs written by hand, whose figures are known."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_engine.places.verbs import prepare
from gpu_engine.runs.create import create_run
from gpu_engine.runs.folder import AttemptRecord, Run, State
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.write import to_toml

from .. import event_lines
from ..conftest import slots

T0 = 1_790_000_000.0


class Written:
    """A run folder whose ranks' files the test writes, line by line."""

    def __init__(self, name: str = "toy", ranks: int = 1, **sections: Any) -> None:
        data = {"name": name, "task": {"use": "gpu_engine.tasks.digits:Digits"},
                "devices": {"ids": [f"cpu:{i}" for i in range(ranks)]},
                "parallel": {"mode": "ddp" if ranks > 1 else "single"},
                "train": {"lr": 0.1, "steps": 50}} | sections
        made = prepare(from_dict(data), inventory=slots(ranks))
        self.run, self._lock = create_run(name, to_toml(made.spec), made.plan)
        (self.run.path / "ranks").mkdir(exist_ok=True)
        self.state = State("running", self.run.id, name, T0, started=T0,
                           attempts=(AttemptRecord(1, T0),))
        self.run.write_state(self.state)

    def __enter__(self) -> Written:
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock >= 0:
            self.end()

    @property
    def path(self) -> Path:
        return self.run.path

    def tell(self, rank: int, kind: str, /, *, t: float, **fields: Any) -> None:
        """Append an event, `t` seconds after the run's beginning."""
        event_lines.append(self.run.events(rank), event_lines.line(kind, fields, t=T0 + t))

    def start(self, rank: int = 0, attempt: int = 1, t: float = 0.0, **more: Any) -> None:
        self.tell(rank, "start", t=t, rank=rank, local_rank=rank, node=0, pid=1, started=1,
                  world_size=2, device=[f"CPU {rank}"], attempt=attempt, **more)

    def steps(self, rank: int, last: int, losses: list[float], t: float, **more: Any) -> None:
        """One event with the losses of consecutive steps, the last of them at `last`."""
        self.tell(rank, "step", t=t, **{
            "step": last, "n": len(losses), "loss": sum(losses) / len(losses), "losses": losses,
            "lr": 0.1, "epoch": 0, "samples_per_s": 100.0, "data_wait": 0.25, "skipped": 0,
            **more})

    def many(self, rank: int, last: int, n: int, mean: float, t: float, **more: Any) -> None:
        """One event of which only the mean of `n` steps is known."""
        self.tell(rank, "step", t=t, **{
            "step": last, "n": n, "loss": mean, "lr": 0.1, "skipped": 0, **more})

    def end(self, state: str = "completed", seconds: float = 60.0) -> Run:
        """The run has ended."""
        attempts = (*self.state.attempts[:-1],
                    replace(self.state.attempts[-1], ended=T0 + seconds, outcome=state))
        self.run.write_state(replace(self.state, state=state, ended=T0 + seconds,
                                     attempts=attempts))
        os.close(self._lock)
        self._lock = -1
        return self.run


def told(run: Run, rank: int, kind: str) -> list[dict[str, Any]]:
    """The events of one kind in a rank's file."""
    return [e for e in event_lines.read(run.events(rank)) if e["kind"] == kind]
