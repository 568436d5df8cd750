"""A sweep whose runs nobody starts: what they record and how they end is written by the tests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from gpu_engine.queue import serve
from gpu_engine.queue.turns import When
from gpu_engine.runs import waiting
from gpu_engine.runs.folder import EXIT_CODES, AttemptRecord, Cause, Run
from gpu_engine.spec.read import from_dict
from gpu_engine.sweep import grid, group

from .. import event_lines

SPEC = {"name": "toy", "task": {"use": "gpu_engine.tasks.bytes_gpt:BytesGPT"},
        "devices": {"pick": 1}, "parallel": {"mode": "single"}}


def nobody_starts(patch) -> None:
    patch.setattr(serve, "ensure", lambda folder=None: 0)


def submitted(*texts: str, repeat: int = 1, tries: int | None = None, **sections) -> group.Sweep:
    """Put the sweep over these axes into the line."""
    spec = from_dict(SPEC | sections)
    axes = [grid.parse(text) for text in texts]
    return group.submit(grid.members(spec, axes, repeat, tries), When(), spec.name)


def ended(run: Run, losses: Sequence[float], why: str | None = None, *, state: str | None = None,
          evaluation: dict[str, float] | None = None) -> None:
    """Have a waiting run be over: with these losses, and failed if `why` is given."""
    state = state or ("completed" if why is None else "failed")
    before = run.state()
    lines = [event_lines.line("start", {"rank": 0, "local_rank": 0, "node": 0, "pid": 1,
                                        "started": None, "world_size": 1})]
    lines += [event_lines.line("step", {"step": at, "n": 1, "epoch": 0, "loss": loss,
                                        "losses": [loss], "lr": 0.1, "skipped": 0})
              for at, loss in enumerate(losses, 1)]
    if evaluation:
        lines.append(event_lines.line("eval", {"step": len(losses)} | evaluation))
    os.makedirs(run.path / "ranks", exist_ok=True)  # noqa: PTH103
    event_lines.append(run.events(0), *lines)
    t = before.created
    run.write_state(replace(
        before, state=state, started=t, ended=t + 60, exit_code=EXIT_CODES[state],
        reason=None if why is None else f"rank 0: {why}",
        cause=None if why is None else Cause(why, 0, "RuntimeError"),
        attempts=(AttemptRecord(before.attempt, t, t + 60, state),)))
    waiting.leave(run.path)
