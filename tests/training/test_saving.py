"""Saving while training goes on: what can be seen of it, and what waits for it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from gpu_engine.events.view import RunView
from gpu_engine.training import checkpoint, checkpoint_state
from gpu_engine.training.checkpoint_state import CannotCopy, Copier
from gpu_engine.training.saving import Writer

from ..event_lines import from_dict
from . import ranks
from .conftest import recorded
from .test_resume import assert_same


def names(run: Path) -> list[str]:
    return [path.name for path in checkpoint.listed(run / "checkpoints")]


def step(run: Path, rank: int = 0) -> int:
    steps = ranks.read(run, rank, "step")
    return steps[-1]["step"] if steps else 0


def phase(run: Path, rank: int = 0) -> dict:
    return (ranks.read(run, rank, "phase") or [{}])[-1]


@pytest.fixture
def hold(tmp_path: Path) -> Path:
    """A file that holds up a rank until the file is removed."""
    file = tmp_path / "hold"
    file.touch()
    return file


@pytest.fixture
def held(make: Callable[..., Path], hold: Path) -> Callable[..., Path]:
    """Make a run whose checkpoints don't reach the disk while `hold` is there."""
    def plan(params: dict | None = None, **options) -> Path:
        own = {"hold_saves": str(hold), "pause": 0.01, **(params or {})}
        return make("run", own, size=24, **options)
    return plan


def test_training_goes_on_beside_a_save_and_the_next_one_waits(held, make, hold: Path) -> None:
    params = {"big": 300_000, "schedule_rate": True, "dropout": 0.3, "held_out": 30}
    train = {"steps": 60, "checkpoint_every": 20, "keep": 9, "workers": 2, "eval_every": 20}
    run = held({**params, "pause": 0.07}, train=train)
    with ranks.started(run) as first:
        # The save after step 20 is held up. Training goes on to the next save and waits there.
        first.until(lambda: phase(run).get("phase") == "checkpoint" and step(run) == 40)
        beside = [e for e in ranks.read(run, 0, "phase")
                  if "done" in e and e["phase"] not in ("checkpoint", "eval")]
        assert beside
        told = phase(run)
        assert told["done"] > 1_200_000
        assert 1_200_000 < told["total"] < told["done"] + 100_000
        assert names(run) == []
        assert ranks.read(run, 0, "checkpoint") == []
        assert RunView().fold(0, from_dict(told)).busy == "checkpoint, 1.2 MiB of 1.2 MiB written"
        hold.unlink()
        assert first.wait() == [0]
    events = ranks.read(run, 0, "checkpoint")
    assert [e["step"] for e in events] == [20, 40, 60]
    assert events[0]["blocked"] < events[0]["seconds"]
    assert events[2]["blocked"] == events[2]["seconds"]  # the last one is waited for
    # The late write has the state of its own step, as if training had waited.
    other = make("other", params, size=24, train={**train, "checkpoint_async": False})
    ranks.train(other)
    assert recorded(run) == recorded(other)
    assert names(run) == names(other)
    for mine, theirs in zip(*(checkpoint.listed(r / "checkpoints") for r in (run, other)),
                            strict=True):
        found = checkpoint.read_manifest(mine)["metrics"]
        assert found == checkpoint.read_manifest(theirs)["metrics"]
        assert found["loss"] > 0
        for part in ("step", "model", "optimizer"):
            assert_same(*(checkpoint.load(p)[part] for p in (mine, theirs)))
        assert_same(*([checkpoint.from_bytes(b) for b in checkpoint.load_ranks(p)]
                      for p in (mine, theirs)))


def test_a_stop_waits_for_the_save_under_way(held, hold: Path) -> None:
    run = held(train={"steps": 10_000, "checkpoint_every": 5})
    with ranks.started(run) as first:
        first.until(lambda: step(run) > 5)
        first.signal(0, signal.SIGTERM)
        first.until(lambda: "done" in phase(run) and phase(run)["phase"] == "checkpoint")
        assert first.processes[0].poll() is None
        hold.unlink()
        assert first.wait() == [0]
    assert ranks.read(run, 0, "end")[-1]["outcome"] == "stopped"
    last = step(run)
    assert names(run)[0] == checkpoint.name_of(5)
    assert names(run)[-1] == checkpoint.name_of(last)
    for path in checkpoint.listed(run / "checkpoints"):
        checkpoint.verify(path)


@pytest.mark.parametrize("trouble", ["raise_at", "nan_at"])
def test_a_failure_waits_for_the_save_under_way(held, hold: Path, trouble: str) -> None:
    run = held({trouble: 12}, train={"steps": 500, "checkpoint_every": 10})
    with ranks.started(run) as first:
        first.until(lambda: "done" in phase(run) and phase(run)["phase"] == "checkpoint")
        assert first.processes[0].poll() is None
        hold.unlink()
        assert first.wait() == [1]
    assert names(run) == [checkpoint.name_of(10)]
    checkpoint.verify(run / "checkpoints" / checkpoint.name_of(10))
    assert ranks.read(run, 0, "error")[-1]["type"] in ("ArithmeticError", "NonFiniteLoss")


def test_state_that_could_not_be_loaded_ends_the_run_at_once(make) -> None:
    run = make("run", {"odd_state": "path"}, size=24, train={"steps": 6})
    ranks.train(run, expect=1)
    error = ranks.read(run, 0, "error")[-1]
    assert error["step"] == 1  # there is nothing to lose yet
    assert error["traceback"] == ""
    assert "state['optimizer']['param_groups'][0]['odd']" in error["message"]
    again = make("again", {"odd_state": "numpy"}, size=24, train={"steps": 3})
    ranks.train(again)
    ranks.train(again, attempt=2)


def test_state_that_could_not_be_loaded_is_seen_after_the_first_step_that_is_made(make) -> None:
    run = make("run", {"odd_state": "path", "nan_at": 1}, size=24,
               train={"steps": 6, "on_nonfinite": "skip"})
    ranks.train(run, expect=1)
    assert ranks.read(run, 0, "error")[-1]["step"] == 2


def test_actions_after_a_write_happen_once_it_is_done() -> None:
    go, done = threading.Event(), []
    writer = Writer()
    for result in ("", "no room"):
        go.clear()
        writer.start(lambda result=result: go.wait(600) and result)
        writer.after(lambda: done.append("beside"))
        assert done == []
        go.set()
        assert writer.wait() == result
        assert done == (["beside"] if not result else [])
        done.clear()
    writer.start(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        writer.wait()
    assert writer.wait() == ""


def test_a_copy_keeps_its_moment_and_what_tensors_share() -> None:
    whole = torch.arange(12, dtype=torch.float64).reshape(3, 4)
    state = {"a": whole, "row": whole[1], "turned": whole.t(), "none": torch.empty(0, 3),
             "half": torch.ones(3, dtype=torch.bfloat16), "parameter": nn.Parameter(torch.ones(2)),
             "inner": [{"n": 1}]}
    copy = Copier().copy(state)
    whole.zero_()
    state["inner"][0]["n"] = 2
    assert copy["a"].tolist() == torch.arange(12.0).reshape(3, 4).tolist()
    assert copy["row"].tolist() == [4, 5, 6, 7]
    assert copy["turned"].stride() == (1, 4)
    assert copy["inner"] == [{"n": 1}]
    assert copy["none"].shape == (0, 3)
    assert type(copy["parameter"]) is nn.Parameter
    assert copy["half"].dtype == torch.bfloat16
    one = copy["a"].untyped_storage().data_ptr()
    assert one == copy["row"].untyped_storage().data_ptr()
    assert copy["a"].untyped_storage().nbytes() == 96
    assert one != copy["half"].untyped_storage().data_ptr()


def test_a_forked_worker_does_not_keep_the_copy() -> None:
    copy = Copier().copy({"w": torch.ones(1 << 20)})
    place = copy["w"].data_ptr()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, b"there" if mapped(place) else b"gone")
        os._exit(0)
    os.waitpid(pid, 0)
    assert mapped(place)
    assert os.read(read, 10) == b"gone"


def mapped(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return True
    return False


def test_without_room_for_a_copy_training_waits_with_a_warning(make, monkeypatch) -> None:
    monkeypatch.setattr(checkpoint_state, "free_memory", lambda: 4_000_000)
    with pytest.raises(CannotCopy, match="4,000,000 are free"):
        Copier().copy({"w": torch.ones(1 << 20)})
    # The memory that a step needs while it runs is not free, and a second rank needs the same.
    monkeypatch.setattr(checkpoint_state, "free_memory", lambda: 4_194_304 + (64 << 20) + 5999)
    monkeypatch.setattr(checkpoint_state, "peak_above_current", lambda: 3000)
    Copier().copy({"w": torch.ones(1 << 20)})
    with pytest.raises(CannotCopy, match="a step may take 6,000"):
        Copier(ranks=2).copy({"w": torch.ones(1 << 20)})
    run = make("run", {"little_memory": True}, size=24, train={"steps": 6, "checkpoint_every": 2})
    ranks.train(run)
    warnings = [e["message"] for e in ranks.read(run, 0, "warning")]
    assert len(warnings) == 1
    assert "training waits while a checkpoint is written" in warnings[0]
    events = ranks.read(run, 0, "checkpoint")
    assert [e["step"] for e in events] == [2, 4, 6]
    assert all(e["blocked"] == e["seconds"] for e in events)


def test_no_memory_for_writing_is_a_warning(tmp_path: Path, monkeypatch) -> None:
    def none(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(torch, "save", none)
    with pytest.raises(checkpoint.NotWritten, match="not enough memory"):
        checkpoint.save(tmp_path, {"step": 1}, [], {})
    assert list(tmp_path.iterdir()) == []


def test_free_memory_is_this_machines() -> None:
    free = checkpoint_state.free_memory()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < free < total


def test_what_a_step_takes_is_the_peak_above_current_use(tmp_path: Path) -> None:
    program, log = tmp_path / "uses.py", tmp_path / "log"
    program.write_text("from gpu_engine.training.checkpoint_state import peak_above_current\n"
                       "before = peak_above_current()\nbytearray(100_000_000)\n"
                       "print(peak_above_current() - before)\n")
    assert ranks.zygote().start([], dict(os.environ), log, program).wait() == 0, log.read_text()
    assert 60_000_000 < int(log.read_text()) < 101_000_000


def test_bytes_are_counted_as_they_are_written(tmp_path: Path) -> None:
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


def test_an_action_after_a_write_that_fails_is_told() -> None:
    writer = Writer()
    writer.start(lambda: "")
    writer.after(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        writer.wait()
    assert writer.wait() == ""
