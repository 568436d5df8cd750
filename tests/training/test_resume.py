"""A run that is killed at any moment and resumed goes on as if nothing had happened."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gpu_engine.common.errors import UserError
from gpu_engine.training import checkpoint, resuming, rng
from gpu_engine.worker.rank import group
from gpu_engine.worker.rank.group import Group
from gpu_engine.worker.rank.job import Identity
from gpu_engine.worker.rank.recorder import Recorder

from . import ranks
from .conftest import recorded

HARD = {"dropout": 0.3, "noise": 0.1, "schedule_rate": True, "double": False, "examples": 150}
TRAIN = {"epochs": 3, "checkpoint_every": 4, "workers": 0}  # 6 steps an epoch, 6 examples left


def compare(whole: Path, broken: Path, world: int) -> int:
    """Compare the steps after the resume with the undisturbed run, bit for bit. Returns the first
    step."""
    first = ranks.read(broken, 0, "schedule")[-1]["first_step"]
    for rank in range(world):
        undisturbed, resumed = recorded(whole, rank), recorded(broken, rank, 2)
        assert len(undisturbed) == 18
        assert resumed == undisturbed[first:]
    a, b = (ranks.last(r) for r in (whole, broken))
    assert a["step"] == b["step"] == 18
    for part in ("model", "optimizer", "values"):
        assert_same(a[part], b[part])
    return first


def assert_same(a, b):
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
                         [(1, 2, 2), (2, 0, 2)])
def test_killed_at_random_steps(make, world, workers, times):
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
        last = (at - 1) // 4 * 4  # which may not have been finished
        assert compare(whole, broken, world) in (last, max(last - 4, 0))


def test_another_world_size_goes_on_where_it_was(make):
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


def test_a_step_that_is_left_out_keeps_its_place_in_the_epoch(make):
    """No example of it comes back, and none of another step comes twice. The schedule does not
    count it."""
    params = {"schedule_rate": True}
    whole = ranks.train(make("whole", params, size=24, train={"epochs": 1}))
    for attempt, until in enumerate(({"steps": 5}, {"epochs": 1}), start=1):
        run = make("run", params, size=24, accumulate=2,
                   train={**until, "skip_steps": ["2", "8"]})
        ranks.train(run, attempt=attempt)
    seen = [n for _, numbers in recorded(run) + recorded(run, 0, 2) for n in numbers]
    order = [n for _, numbers in recorded(whole) for n in numbers]
    assert seen == order[:24] + order[48:168] + order[192:]
    last = ranks.read(run, 0, "step")[-1]
    assert (last["step"], last["lr"]) == (10, pytest.approx(0.01 / 8))  # seven steps before it


def test_another_global_batch_keeps_the_place_by_examples(make):
    run = make("run", {"examples": 240}, size=24, train={"steps": 5})
    ranks.train(run)
    make("run", {"examples": 240}, size=12, train={"epochs": 1})
    ranks.train(run, attempt=2)
    seen = [n for _, numbers in recorded(run) + recorded(run, 0, 2) for n in numbers]
    assert sorted(seen) == list(range(240))
    assert ranks.read(run, 0, "schedule")[-1]["total_steps"] == 5 + 10


def test_a_completed_run_resumed_has_nothing_to_do(make):
    run = ranks.train(make(size=24, train={"steps": 3}))
    ranks.train(run, attempt=2)
    assert recorded(run, 0, 2) == []
    assert [e["outcome"] for e in ranks.read(run, 0, "end")] == ["completed", "completed"]
    assert [e["step"] for e in ranks.read(run, 0, "checkpoint")] == [3]


def test_a_stream_goes_on_after_whole_steps_of_several_passes(make):
    params, train = {"stream": True, "examples": 240}, {
        "steps": 8, "checkpoint_every": 3, "checkpoint_async": False}
    whole = ranks.train(make("whole", params, size=24, accumulate=2, train=train))
    broken = make("broken", {**params, "die_at": 10}, size=24, accumulate=2, train=train)
    ranks.train(broken, expect=-9)
    ranks.train(broken, attempt=2)
    step = ranks.read(broken, 0, "schedule")[-1]["first_step"]
    assert step == 3
    assert recorded(broken, 0, 2) == recorded(whole)[2 * step:]


@pytest.mark.parametrize(("train", "die_at", "steps"), [
    ({"steps": 6, "eval_every": 2, "checkpoint_every": 3}, 5, [2, 4, 4, 6]),
    ({"epochs": 2, "checkpoint_every": 5}, 7, [5, 5, 10])], ids=["steps", "epochs"])
def test_evaluations_are_made_at_their_steps(make, train, die_at, steps):
    """Over a resume from a step that has none, and from one that ends an epoch of five: what was
    saved there is the state before its evaluation, so that is made once more."""
    run = make("run", {"examples": 120, "held_out": 24, "die_at": die_at}, size=24,
               train={"checkpoint_async": False, **train})
    ranks.train(run, expect=-9)
    ranks.train(run, attempt=2)
    assert [e["step"] for e in ranks.read(run, 0, "eval")] == steps
    # A checkpoint has only the values of its own step.
    for path in checkpoint.listed(run / "checkpoints"):
        manifest = checkpoint.read_manifest(path)
        assert bool(manifest["metrics"]) == (manifest["step"] in steps)


def test_killed_while_writing_leaves_a_loadable_one(make):
    """SIGKILL at different moments of a write of 24 MB."""
    run = make("run", {"big": 6_000_000, "double": False}, size=24,
               train={"steps": 200, "checkpoint_every": 1})
    folder = run / "checkpoints"

    def writing() -> bool:
        return folder.is_dir() and any(p.name.startswith(".writing") for p in folder.iterdir())

    caught = 0
    for attempt in range(1, 4):
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
        assert ranks.saved(best)["model"]["ballast"].numel() == 6_000_000
    assert caught, "no write was interrupted: the test proved nothing"
    make("run", {"big": 6_000_000, "double": False}, size=24, train={
        "steps": ranks.saved(best)["step"] + 1, "checkpoint_every": 0})
    ranks.train(run, attempt=9)
    assert not writing()


class TwoMachines:
    """Two ranks, each with a run folder of its own."""

    def __init__(self, make):
        self._make = make

    def attempt(self, number: int, die_at: int) -> tuple[Path, Path]:
        """Run both to their end; their folders."""
        both, started = [], []
        port = str(ranks.free_port())
        for rank in range(2):
            run = self._make(f"node{rank}", {**HARD, "die_at": die_at, "rank": 1}, world=2,
                             size=24, train={**TRAIN, "checkpoint_async": False}, mode="multinode")
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


def other_weights(path: Path, to: Path):
    """A checkpoint with the same name and a correct manifest, but with other weights."""
    state = {**ranks.saved(path)}
    state["model"] = {name: value + 1 for name, value in state["model"].items()}
    written = checkpoint.save(to, state, checkpoint.load_ranks(path), {})
    assert written.path.name == path.name
    checkpoint.verify(written.path)


def test_two_machines_without_a_shared_folder(make):
    """All ranks go on from rank 0's checkpoint, whatever the other machine's folder holds."""
    whole = ranks.train(make("whole", HARD, world=2, size=24, train=TRAIN))
    machines = TwoMachines(make)
    first, second = machines.attempt(1, 11)
    last = first / "checkpoints" / "step-00000008"
    there = second / "checkpoints"
    other_weights(last, there)
    before = sorted(p.name for p in there.iterdir())
    machines.attempt(2, 0)
    assert ranks.read(second, 1, "schedule")[-1]["first_step"] == 8
    assert recorded(first, 0, 2) == recorded(whole, 0)[8:]
    assert recorded(second, 1, 2) == recorded(whole, 1)[8:]
    assert sorted(p.name for p in there.iterdir()) == before
    said = [e["message"] for e in ranks.read(second, 1, "warning")]
    assert said == ["step-00000008 on this machine differs from rank 0's; going on from rank 0's"]


def test_rank_0_without_a_checkpoint_starts_all_afresh(make):
    machines = TwoMachines(make)
    first, second = machines.attempt(1, 11)
    shutil.move(first / "checkpoints", second / "checkpoints")
    machines.attempt(2, 0)
    for run, rank in ((first, 0), (second, 1)):
        assert ranks.read(run, rank, "schedule")[-1]["first_step"] == 0
        assert recorded(run, rank, 2)[:10] == recorded(run, rank, 1)[:10]


@pytest.mark.parametrize("saved", [1, 2, 3])
def test_generators_are_those_of_as_many_ranks_or_none(tmp_path, saved):
    state = {"step": 1, "model": {}}
    own = [checkpoint.to_bytes({"rank": rank}) for rank in range(saved)]
    checkpoint.save(tmp_path, state, own, {})
    found = resuming.find(tmp_path, Group(Identity()), SimpleNamespace(warn=print))
    assert found.own == ({"rank": 0} if saved == 1 else None)


class SecondRank:
    """The group as rank 1 sees it, which has no file of its own and gets rank 0's."""

    rank, size = 1, 2

    def __init__(self, path: Path, change: Callable[[bytes], bytes]):
        self.data, self.change = (path / "state.pt").read_bytes(), change
        self.met = False
        self.chosen = {"name": path.name, "folder": "another", "identity": "another",
                       **checkpoint.read_manifest(path)["files"]["state.pt"]}

    def broadcast(self, text: str) -> str:
        if not self.met:
            return json.dumps(self.chosen)
        return json.dumps([checkpoint.to_bytes({"rank": rank}).hex() for rank in range(2)])

    def barrier(self):
        self.met = True

    def all_reduce_max(self, values: list[float]) -> list[float]:
        assert self.met, "rank 0 may verify its own file longer than a collective's timeout"
        return [1.0]

    def broadcast_pieces(self, source: None, size: int) -> Iterator[memoryview]:
        yield memoryview(self.change(self.data))


def test_nothing_is_said_of_a_checkpoint_once_it_is_verified(tmp_path):
    folder, said = tmp_path / "checkpoints", []
    (tmp_path / "ranks").mkdir()
    generators = checkpoint.to_bytes(rng.capture())
    checkpoint.save(folder, {"step": 7}, [generators], {})
    rec = Recorder(tmp_path / "ranks" / "00000.jsonl")
    rec.warn = said.append
    (folder / "step-00000009").mkdir()
    (folder / "step-00000009" / "manifest.json").write_text("{}")
    found = resuming.find(folder, Group(Identity()), rec)
    assert found.state["step"] == 7
    assert rec.details() == ""
    assert len(said) == 1  # of the damaged one


def test_all_of_a_large_file_is_sent(tmp_path, monkeypatch):
    monkeypatch.setattr(group, "_PIECE", 4)
    (tmp_path / "file").write_bytes(bytes(range(11)))
    with (tmp_path / "file").open("rb") as file:
        sent = [bytes(piece) for piece in Group(Identity()).broadcast_pieces(file, 11)]
    assert b"".join(sent) == bytes(range(11))


def test_a_checkpoint_from_another_machine_is_compared_with_what_rank_0_has(tmp_path):
    there, here = tmp_path / "there", tmp_path / "here" / "run" / "checkpoints"
    here.mkdir(parents=True)
    path = checkpoint.save(there, {"step": 1, "model": {"w": torch.ones(3)}}, [b"", b""], {}).path
    rec = SimpleNamespace(warn=print, detail="")
    found = resuming.find(here, SecondRank(path, lambda data: data), rec)
    assert_same(found.state["model"], {"w": torch.ones(3)})
    assert found.own == {"rank": 1}
    changed = SecondRank(path, lambda data: data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(UserError, match="changed on its way"):
        resuming.find(here, changed, rec)
