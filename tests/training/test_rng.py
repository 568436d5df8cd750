"""A rank's random numbers are its own, repeat with the seed, and go on unchanged in a resume."""

from __future__ import annotations

import json
from pathlib import Path

from . import ranks

TASK = f"{Path(__file__).with_name('draws_task.py')}:Draws"


def drawn(folder: Path, rank: int, attempt=1, what="drawn") -> list:
    path = folder / f"{what}-{rank}-{attempt}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def plan(folder: Path, seed: int, **params) -> Path:
    folder.mkdir(exist_ok=True)
    return ranks.write_plan(folder, TASK, world=2, size=8, params={"record": str(folder), **params},
                            train={"seed": seed, "epochs": 2, "checkpoint_every": 5,
                                   "checkpoint_async": False})


def test_random_numbers_of_ranks_seeds_and_attempts(tmp_path):
    whole = ranks.train(plan(tmp_path / "whole", 3))
    mine = [drawn(whole, r) for r in range(2)]
    assert [len(m) for m in mine] == [12, 12]
    kinds = ("python", "gauss", "torch", "numpy", "numpy_gauss", "dropout")

    # Numbers differ between ranks and steps; the weights are made alike on all ranks.
    for kind in kinds:
        values = [str(step[kind]) for m in mine for step in m]
        assert len(set(values)) == len(values), kind
    weights = [drawn(whole, r, what="weights") for r in range(2)]
    assert weights[0] == weights[1]

    # A resumed run goes on with every generator where it was.
    broken = plan(tmp_path / "broken", 3, die_at=8)
    with ranks.started(broken) as first:
        first.wait()
    ranks.train(broken, attempt=2)
    for rank in range(2):
        assert drawn(broken, rank) == mine[rank][:7]
        assert drawn(broken, rank, 2) == mine[rank][5:]

    # Another seed: other weights, another order, other draws.
    other = ranks.train(plan(tmp_path / "other", 4))
    assert drawn(other, 0, what="weights") != weights[0]
    theirs = drawn(other, 0)
    assert [t["numbers"] for t in theirs] != [m["numbers"] for m in mine[0]]
    assert all(t[k] != m[k] for t, m in zip(theirs, mine[0], strict=True) for k in kinds)


def test_a_rank_that_is_seeded_anew_draws_what_nobody_has_drawn_before(tmp_path):
    """After a resume with another number of ranks no rank's own generators fit."""
    run = plan(tmp_path / "run", 3, die_at=8)
    with ranks.started(run) as first:
        first.wait()
    before = [step for r in range(2) for step in drawn(run, r)]
    ranks.write_plan(run, TASK, world=1, size=8, params={"record": str(run)},
                     train={"seed": 3, "steps": 9})
    ranks.train(run, attempt=2)
    after = drawn(run, 0, 2)
    assert len(after) == 4
    for kind in ("python", "gauss", "torch", "numpy", "numpy_gauss", "dropout"):
        assert not {str(s[kind]) for s in before} & {str(s[kind]) for s in after}, kind
