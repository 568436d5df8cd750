"""Saving while training goes on: what others see of it, and what waits for it."""

from __future__ import annotations

from pathlib import Path

from gpu_engine.follow import RankView
from gpu_engine.worker import checkpoint

from . import ranks


def test_a_checkpoint_tells_how_far_it_is(make, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    run = make("run", {"big": 300_000, "hold_saves": str(hold)}, size=24, train={"steps": 2})
    with ranks.started(run) as first:
        told = first.until(lambda: [e for e in ranks.read(run, 0, "phase") if "done" in e])
        again = first.until(lambda: [e for e in ranks.read(run, 0, "phase") if "done" in e][1:])
        hold.unlink()
        assert first.wait() == [0]
    assert told[0]["phase"] == again[0]["phase"] == "checkpoint"
    size = ranks.read(run, 0, "checkpoint")[0]["bytes"]
    assert told[0]["total"] > 1_200_000
    assert abs(told[0]["total"] - size) < 100_000
    assert told[0]["done"] > 1_200_000
    view = RankView(0)
    view.fold(told[0])
    assert view.busy == "checkpoint, 1.2 MiB of 1.2 MiB written"


def test_bytes_are_counted_as_they_are_written(tmp_path: Path) -> None:
    import torch

    seen: list[tuple[int, int | None]] = []

    class Watched(checkpoint.Progress):
        def __setattr__(self, name: str, value: int) -> None:
            super().__setattr__(name, value)
            if name == "done":
                seen.append((value, self.total))

    shared = torch.zeros(1000, dtype=torch.float64)
    state = {"step": 1, "a": shared, "tied": shared[10:], "b": [torch.ones(500)]}
    saved = checkpoint.save(tmp_path, state, [b"x" * 100], {}, Watched())
    assert seen[-1][0] > saved.size  # the manifest too
    assert seen == sorted(seen)
    assert {total for done, total in seen if done} == {8000 + 2000 + 100}
