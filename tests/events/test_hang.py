"""Who is behind, what would fit into memory, what the kernel counted: the pure parts."""

from __future__ import annotations

import errno
import os

import pytest

from gpu_engine.common import files
from gpu_engine.events import hang
from gpu_engine.events.convert import from_dict
from gpu_engine.events.rank_view import RankView
from gpu_engine.events.reader import Tail
from gpu_engine.events.schema import Error
from gpu_engine.events.view import RunView
from gpu_engine.plan.batch import Batch
from gpu_engine.runs import folder as runs
from gpu_engine.runs.state import State
from gpu_engine.supervisor import oom
from gpu_engine.supervisor.rank_state import RankState


def standing(rank, step, phase, still=60.0, silent=0.5):
    return hang.Standstill(rank, step, phase, still, silent)


@pytest.mark.parametrize(("signs", "behind"), [
    ([standing(0, 8, "backward"), standing(1, 7, "optimizer")], 1),  # the lower step
    ([standing(0, 8, "backward"), standing(1, 8, "data")], 1),  # the earlier phase
    ([standing(0, 8, "data"), standing(1, 9, "backward", silent=20)], 1),  # no sign of life
    ([standing(0, 8, "eval"), standing(1, 8, "backward")], 1),
    ([standing(0, 8, "backward", still=50), standing(1, 8, "backward", still=90)], 1)])
def test_the_rank_that_got_least_far_is_named(signs, behind):
    assert hang.furthest_behind(signs).rank == behind
    assert hang.describe(signs).startswith(f"rank {behind} has been stuck in ")
    assert f"rank {1 - behind} in " in hang.describe(signs)


def view(rank, step, *, phase="forward", stepped=0.0, since=0.0, beat=0.0, every=1.0, now=1000.0):
    """A rank whose last step was `stepped` seconds ago, one each `every` seconds before that."""
    made = RankView(rank, step=step, phase=phase, phase_since=now - since, beat=now - beat)
    made.step_times = [(now - stepped - every * i, step - i) for i in range(10)][::-1]
    return made


def test_a_rank_is_stalled_after_half_a_minute_and_five_of_its_steps():
    fine = view(0, 50, stepped=3, since=3)
    assert hang.stalled([fine], 1000.0) == []
    slow = view(1, 50, stepped=100, since=100, every=30.0)
    assert hang.stalled([slow], 1000.0) == []  # its steps take 30 s
    stuck = view(2, 49, phase="data", stepped=40, since=40)
    silent = view(3, 50, stepped=60, since=60, beat=60)
    assert [s.rank for s in hang.stalled([fine, slow, stuck, silent], 1000.0)] == [3, 2]
    stuck.outcome = "completed"
    assert hang.stalled([stuck], 1000.0) == []
    assert hang.stalled([RankView(4, phase="init", beat=1.0)], 1000.0) == []


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
            assert not hang.stalled([looked], at + 20)
            seen.take(from_dict(event | busy(number)))
            if at == 990.0:
                moved = seen.moved
        assert hang.stalled([looked], 1021.0)  # 31 s without a byte more
        assert seen.moved == moved < seen.heard


GIB = 2**30


def out_of_memory(message="", **figures):
    return Error("OutOfMemoryError", message, None, None, None, **figures)


def batch(per_gpu, accumulate=1):
    return Batch(per_gpu, "per_gpu", accumulate, 1, per_gpu * accumulate, per_gpu)


@pytest.mark.parametrize(("error", "planned", "says"), [
    ({"requested": 2 * GIB, "allocated": 7 * GIB, "message": "a total capacity of 8.00 GiB"},
     batch(48), "24 examples per GPU instead of 48"),
    ({"requested": 64 * GIB, "allocated": 1 * GIB, "message": "a total capacity of 8.00 GiB"},
     batch(64, 2), "4 examples per GPU instead of 64"),
    ({"message": "CUDA out of memory"}, batch(7), "1 examples per GPU"),
    ({"message": ""}, batch(1), "already 1 per GPU")])
def test_what_would_likely_fit(error, planned, says):
    assert says in oom.fitting(out_of_memory(**error), planned)


def test_a_batch_that_fits_keeps_the_global_one():
    text = oom.fitting(out_of_memory(), batch(48, 3))
    assert "batch.accumulate=6" in text
    assert oom.describe(out_of_memory(requested=GIB), None) == "requested 1.0 GiB"


@pytest.mark.parametrize(("cgroup", "path", "text", "kills"), [
    ("0::/a/b\n", "sys/fs/cgroup/a/b/memory.events", "low 0\noom 3\noom_kill 2\n", 2),
    ("4:memory:/x\n0::/\n", "sys/fs/cgroup/memory/x/memory.oom_control",
     "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", 5),
    ("4:memory:/x\n", "sys/fs/cgroup/memory/memory.oom_control", "oom_kill 6\n", 6),
    ("0::/a\n", "proc/vmstat", "nr_free_pages 7\noom_kill 1\n", 1),
    ("", "proc/self/nothing", "", None)])
def test_the_kernels_count_is_found(tmp_path, cgroup, path, text, kills):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(text)
    assert oom.kills(tmp_path) == kills


def test_overwriting_stays_within_the_blocks_there_are(tmp_path):
    path = tmp_path / "f"
    path.write_text("x" * 100)
    files.overwrite(path, "short")
    assert path.read_text() == "short"
    with pytest.raises(OSError) as caught:
        files.overwrite(path, "y" * 100_000)
    assert caught.value.errno == errno.ENOSPC
    assert path.read_text() == "short"


def test_a_state_is_written_in_place_when_no_new_file_has_room(tmp_path, monkeypatch):
    run = runs.Run(tmp_path)
    run.write_state(State("running", "a", "a", 1.0))

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(runs, "write_json", full)
    run.write_state(State("completed", "a", "a", 1.0))
    assert run.state().state == "completed"


def test_what_a_newer_program_wrote_is_read():
    data = State("failed", "a", "a", 1.0).to_dict() | {"more": 1}
    data["processes"] = [{"rank": 0, "pid": 1, "ticks": 2, "exit": None, "cores": [1]}]
    data["attempts"] = [{"number": 1, "started": 1.0, "odd": True}]
    found = State.from_dict(data)
    assert found.processes[0].pid == 1
    assert found.attempts[0].number == 1
    del data["attempts"]  # and what an older one wrote
    assert State.from_dict(data).attempts == ()
