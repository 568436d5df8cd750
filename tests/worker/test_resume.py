"""Killed anywhere and resumed, the run goes on as if nothing had been (issue 3, proofs 3, 6)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from gpu_engine.worker import checkpoint

from . import ranks
from .conftest import recorded

HARD = {"dropout": 0.3, "noise": 0.1, "schedule_rate": True, "double": False, "examples": 150}
TRAIN = {"epochs": 3, "checkpoint_every": 4, "workers": 0}  # 6 steps an epoch, 6 examples left


def compare(whole: Path, broken: Path, world: int) -> int:
    """Hold what followed the resume against the undisturbed run, bit for bit; where it began."""
    first = ranks.read(broken, 0, "schedule")[-1]["first_step"]
    for rank in range(world):
        undisturbed, resumed = recorded(whole, rank), recorded(broken, rank, 2)
        assert len(undisturbed) == 18
        assert resumed == undisturbed[first:]
    a, b = (checkpoint.load(checkpoint.listed(r / "checkpoints")[-1]) for r in (whole, broken))
    assert a["step"] == b["step"] == 18
    for part in ("model", "optimizer", "schedule"):
        assert_same(a[part], b[part])
    return first


def assert_same(a, b) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    else:
        assert a == b


@pytest.mark.parametrize(("world", "workers", "times"),
                         [(1, 0, 3), (1, 2, 3), (2, 0, 3), (2, 1, 1)])
def test_killed_at_random_steps(make, world: int, workers: int, times: int) -> None:
    train = {**TRAIN, "workers": workers}
    whole = ranks.train(make("whole", HARD, world=world, size=24, train=train))
    pick = random.Random(f"{world} {workers}")
    for i in range(times):
        at, victim = pick.randint(1, 18), pick.randrange(world)
        broken = make(f"broken{i}", {**HARD, "die_at": at, "rank": victim}, world=world, size=24,
                      train=train)
        with ranks.started(broken) as first:
            codes = first.wait()
        assert codes[victim] == -9
        ranks.train(broken, attempt=2)
        last = (at - 1) // 4 * 4  # which may have been under way
        assert compare(whole, broken, world) in (last, max(last - 4, 0))


def test_another_world_size_goes_on_where_it_was(make) -> None:
    run = make("run", {"examples": 150}, world=2, size=24, train={"steps": 9})
    ranks.train(run)
    make("run", {"examples": 150}, world=3, size=24, train={"steps": 12})
    ranks.train(run, attempt=2)
    seen = [sorted(n for r in range(2) for n in recorded(run, r)[s][1]) for s in range(6)]
    seen += [sorted(n for r in range(3) for n in recorded(run, r, 2)[s][1]) for s in range(3)]
    second = [sorted(n for r in range(2) for n in recorded(run, r)[s][1]) for s in range(6, 9)]
    # Steps 7 to 9 belong to the first attempt, 10 to 12 to the second: one epoch together.
    epoch = [n for step in second for n in step] + [n for step in seen[6:] for n in step]
    assert len(set(epoch)) == len(epoch) == 144


def test_another_global_batch_keeps_the_place_by_examples(make) -> None:
    run = make("run", {"examples": 240}, size=24, train={"steps": 5})
    ranks.train(run)
    make("run", {"examples": 240}, size=12, train={"epochs": 1})
    ranks.train(run, attempt=2)
    seen = [n for _, numbers in recorded(run) + recorded(run, 0, 2) for n in numbers]
    assert sorted(seen) == list(range(240))
    assert ranks.read(run, 0, "schedule")[-1]["total_steps"] == 5 + 10


def test_a_completed_run_resumed_has_nothing_to_do(make) -> None:
    run = ranks.train(make(size=24, train={"steps": 3}))
    ranks.train(run, attempt=2)
    assert recorded(run, 0, 2) == []
    assert [e["outcome"] for e in ranks.read(run, 0, "end")] == ["completed", "completed"]


def test_a_new_learning_rate_counts_after_a_resume(make) -> None:
    run = make("run", {"schedule_rate": True}, size=24, train={"steps": 3, "lr": 0.01})
    ranks.train(run)
    make("run", {"schedule_rate": True, "pause": 0.005}, size=24, train={"steps": 5, "lr": 0.02})
    ranks.train(run, attempt=2)
    assert ranks.read(run, 0, "step")[-1]["lr"] == pytest.approx(0.02 / 5)


def test_killed_while_writing_leaves_a_loadable_one(make) -> None:
    """Proof 6: SIGKILL at different moments of a write of 24 MB."""
    run = make("run", {"big": 6_000_000, "double": False}, size=24,
               train={"steps": 200, "checkpoint_every": 1})
    folder = run / "checkpoints"

    def writing() -> bool:
        return folder.is_dir() and any(p.name.startswith(".writing") for p in folder.iterdir())

    caught = 0
    for attempt in range(1, 5):
        with ranks.started(run, attempt=attempt) as first:
            first.until(lambda: len(checkpoint.listed(folder)) > 1)
            first.until(writing)
            first.signal(0, 9)
            first.wait()
        caught += writing()
        said: list[str] = []
        best = checkpoint.newest(folder, said.append)
        assert best is not None
        assert said == []
        assert checkpoint.load(best)["model"]["ballast"].numel() == 6_000_000
    assert caught, "no write was interrupted: the test proved nothing"
    make("run", {"big": 6_000_000, "double": False}, size=24, train={
        "steps": checkpoint.load(best)["step"] + 1, "checkpoint_every": 0})
    ranks.train(run, attempt=9)
    assert not writing()


def test_two_machines_without_a_shared_folder(make) -> None:
    """Each rank has a run folder of its own: rank 0's checkpoint is sent to the other."""
    whole = ranks.train(make("whole", HARD, world=2, size=24, train=TRAIN))

    def attempt(number: int, die_at: int) -> tuple[Path, Path]:
        both = []
        port = str(ranks.free_port())
        started = []
        for rank in range(2):
            run = make(f"node{rank}", {**HARD, "die_at": die_at, "rank": 1}, world=2, size=24,
                       train={**TRAIN, "checkpoint_async": False}, mode="multinode")
            both.append(run)
            started.append(ranks.Ranks(run, attempt=number, only=[rank], env={
                "MASTER_PORT": port, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}))
        try:
            codes = [r.wait()[0] for r in started]
        finally:
            for r in started:
                r.end()
        assert codes == ([1, -9] if die_at else [0, 0]), ranks.logs(both[0])
        return both[0], both[1]

    attempt(1, 11)
    first, second = attempt(2, 0)
    assert not (second / "checkpoints").exists()
    start = ranks.read(second, 1, "schedule")[-1]["first_step"]
    assert start == 8
    assert recorded(first, 0, 2) == recorded(whole, 0)[start:]
    assert recorded(second, 1, 2) == recorded(whole, 1)[start:]
