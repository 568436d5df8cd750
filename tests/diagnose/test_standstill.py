"""Who is behind: which ranks stand still, and since when."""

from __future__ import annotations

import pytest

from gpu_engine.diagnose import hangs
from gpu_engine.events.rank_view import RankView
from gpu_engine.events.reader import Tail
from gpu_engine.events.view import RunView
from gpu_engine.supervisor.ranks import RankState

from ..event_lines import from_dict


def standing(rank, step, phase, still=60.0, silent=0.5):
    return hangs.Standstill(rank, step, phase, still, silent)


@pytest.mark.parametrize(("signs", "behind"), [
    ([standing(0, 8, "backward"), standing(1, 7, "optimizer")], 1),  # the lower step
    ([standing(0, 8, "backward"), standing(1, 8, "data")], 1),  # the earlier phase
    ([standing(0, 8, "data"), standing(1, 9, "backward", silent=20)], 1),  # no sign of life
    ([standing(0, 8, "eval"), standing(1, 8, "backward")], 1),
    ([standing(0, 8, "backward", still=50), standing(1, 8, "backward", still=90)], 1)])
def test_the_rank_that_got_least_far_is_named(signs, behind):
    assert hangs.furthest_behind(signs).rank == behind
    assert hangs.describe(signs).startswith(f"rank {behind} has stalled in ")
    assert f"rank {1 - behind} in " in hangs.describe(signs)


def view(rank, step, *, phase="forward", stepped=0.0, since=0.0, beat=0.0, every=1.0, now=1000.0):
    """A rank whose last step was `stepped` seconds ago, one each `every` seconds before that."""
    made = RankView(rank, step=step, phase=phase, phase_since=now - since, beat=now - beat)
    made.step_times = [(now - stepped - every * i, step - i) for i in range(10)][::-1]
    return made


def test_a_rank_is_stalled_after_half_a_minute_and_five_of_its_steps():
    fine = view(0, 50, stepped=3, since=3)
    assert hangs.stalled([fine], 1000.0) == []
    slow = view(1, 50, stepped=100, since=100, every=30.0)
    assert hangs.stalled([slow], 1000.0) == []  # its steps take 30 s
    stuck = view(2, 49, phase="data", stepped=40, since=40)
    silent = view(3, 50, stepped=60, since=60, beat=60)
    assert [s.rank for s in hangs.stalled([fine, slow, stuck, silent], 1000.0)] == [3, 2]
    stuck.outcome = "completed"
    assert hangs.stalled([stuck], 1000.0) == []
    assert hangs.stalled([view(3, 50, phase="done", stepped=60, since=60, beat=60)], 1000.0) == []
    assert hangs.stalled([RankView(4, phase="init", beat=1.0)], 1000.0) == []


def test_who_waits_for_a_checkpoint_that_grows_does_not_hang(tmp_path):
    """Neither does the rank that writes it, nor one that tells how far the other is."""
    waits = "waiting for rank 0: writing a checkpoint: {} GiB of 9 GiB"
    for busy in (lambda n: {"done": n, "total": 9}, lambda n: {"detail": waits.format(n)}):
        looked = view(0, 50, stepped=100, since=100)
        run = RunView({0: looked})
        seen = RankState(0, Tail(tmp_path / "x"), 1, ours=True)
        seen.heard, seen.moved = 0.0, 0.0
        for number, at in ((1, 990.0), (1, 1000.0)):
            event = {"t": at, "kind": "phase", "phase": "checkpoint", "since": 900.0, "step": 50}
            run.fold(0, from_dict(event | busy(number)))
            assert not hangs.stalled([looked], at + 20)
            seen.fold(from_dict(event | busy(number)))
            if at == 990.0:
                moved = seen.moved
        assert hangs.stalled([looked], 1021.0)  # 31 s without a byte more
        assert seen.moved == moved < seen.heard
