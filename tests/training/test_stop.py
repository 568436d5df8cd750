"""A stop, a bad loss or a failure on one rank affects all ranks alike."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess

import psutil
import pytest
from torch.utils.data import DataLoader

from gpu_engine.common import procs
from gpu_engine.training import checkpoint
from gpu_engine.worker.rank.process import in_loader_worker

from ..conftest import wait_for
from . import ranks
from .conftest import names, own_task, recorded

# One long epoch, as between two epochs the ranks communicate anyway.
SLOW = {"pause": 0.01, "examples": 120_000}
LONG = {"steps": 5000, "checkpoint_every": 0}


def test_signal_to_one_rank_stops_all_at_the_same_step(make):
    """Slurm's warning, SIGUSR1; SIGTERM is below."""
    run = make("run", SLOW, world=2, size=24, train=LONG)
    with ranks.started(run) as first:
        first.until(lambda: len(ranks.read(run, 1, "step")) > 3)
        first.signal(1, signal.SIGUSR1)
        assert first.wait() == [0, 0]
    ends = [ranks.read(run, r, "end")[-1] for r in range(2)]
    assert [e["outcome"] for e in ends] == ["stopped", "stopped"]
    assert ends[0]["steps"] == ends[1]["steps"] > 3
    saved = checkpoint.listed(run / "checkpoints")
    assert [p.name for p in saved] == [checkpoint.name_of(ends[0]["steps"])]
    checkpoint.verify(saved[0])
    assert len(recorded(run, 0)) == ends[0]["steps"]


@pytest.mark.parametrize(("pause", "asked_at"), [(0.3, 4), (0.0, 200)])
def test_a_stop_takes_one_step_more_at_most(tmp_path, pause, asked_at):
    """The rank that is asked ends its step; the other may be in the next one by then."""
    run = ranks.train(own_task(tmp_path / "run", f"""\
def trouble(self, loss):
    if (self.calls, RANK) == ({asked_at}, 1):
        os.kill(os.getpid(), signal.SIGTERM)
    return super().trouble(loss)
""", world=2, size=24, train=LONG, params={**SLOW, "pause": pause}))
    ends = [ranks.read(run, r, "end")[-1] for r in range(2)]
    assert [e["outcome"] for e in ends] == ["stopped", "stopped"]
    assert ends[0]["steps"] == ends[1]["steps"]
    assert asked_at <= ends[0]["steps"] <= asked_at + 1


def test_loader_workers_survive_ctrl_c_and_leave_with_their_rank(make):
    run = make("run", SLOW, size=24, train={**LONG, "workers": 2})
    with ranks.started(run) as first:
        first.until(lambda: len(ranks.read(run, 0, "step")) > 2)
        pid = first.processes[0].pid
        workers = [child.pid for child in psutil.Process(pid).children()]
        assert len(workers) == 2
        for worker in workers:
            os.kill(worker, signal.SIGINT)
            os.kill(worker, signal.SIGUSR1)
        ticks = {w: procs.start_ticks(w) for w in workers}
        seen = len(ranks.read(run, 0, "step"))
        first.until(lambda: len(ranks.read(run, 0, "step")) > seen + 5)
        first.signal(0, signal.SIGKILL)
        first.wait()
    ranks_gone = [lambda w=w, t=t: not procs.alive(w, t) for w, t in ticks.items()]
    for gone in ranks_gone:
        wait_for(gone, 3.0)  # DataLoader's own watchdog looks every five seconds


@pytest.mark.parametrize(("by_its_rank", "code"), [(True, 0), (False, -signal.SIGTERM)])
def test_a_loader_worker_that_its_rank_ends_has_not_failed(by_its_rank, code):
    """When a rank exits, Python ends the workers that are left. torch would report that as a
    failure, at whatever the rank is doing at that moment."""
    before = set(multiprocessing.active_children())
    batches = iter(DataLoader(range(8), num_workers=1, worker_init_fn=in_loader_worker,
                              persistent_workers=True, multiprocessing_context="fork"))
    next(batches)
    (worker,) = set(multiprocessing.active_children()) - before
    with contextlib.suppress(*(() if by_its_rank else (RuntimeError,))):
        if by_its_rank:
            worker.terminate()
        else:
            subprocess.run(["kill", str(worker.pid)], check=True)
        worker.join(20)
    worker.join(20)
    assert worker.exitcode == code


def test_rank_dies_with_its_parent(make, tmp_path):
    """A rank must not outlive the process that has started it, even if that is killed."""
    run = make("run", SLOW, size=24, train=LONG)
    program = tmp_path / "parent.py"
    program.write_text("import os, sys\n"
                       "from gpu_engine.worker.start import main\n"
                       "from zygote import fork\n"
                       "rank = fork(lambda: main(sys.argv[1:], os.environ), dict(os.environ))\n"
                       "os.waitpid(rank, 0)\n")
    parent = ranks.zygote().start(["--run", str(run)], dict(os.environ), tmp_path / "log", program)
    try:
        wait_for(lambda: ranks.read(run, 0, "step"))
    finally:
        parent.kill()
        assert parent.wait() == -signal.SIGKILL
    start = ranks.read(run, 0, "start")[0]
    wait_for(lambda: not procs.alive(start["pid"], start["started"]))


def test_stack_dump_on_sigusr2_and_training_goes_on(make):
    run = make("run", SLOW, size=24, train=LONG)
    with ranks.started(run) as first:
        first.until(lambda: ranks.read(run, 0, "step"))
        first.signal(0, signal.SIGUSR2)
        first.until(lambda: "Thread 0x" in ranks.logs(run))
        seen = len(ranks.read(run, 0, "step"))
        first.until(lambda: len(ranks.read(run, 0, "step")) > seen)


def test_bad_loss_stops_all_and_keeps_the_good_checkpoint(make):
    run = make("run", {"nan_at": 6, "rank": 1, "pause": 0.002}, world=2, size=24,
               train={"steps": 100, "checkpoint_every": 5})
    ranks.train(run, expect=1)
    for rank in range(2):
        error = ranks.read(run, rank, "error")[-1]
        assert error["type"] == "NonFiniteLoss"
        assert "rank 1 at step 6" in error["message"]
        assert error["traceback"] == ""
        assert ranks.read(run, rank, "end")[-1]["outcome"] == "failed"
    assert names(run) == ["step-00000005"]
    checkpoint.verify(checkpoint.listed(run / "checkpoints")[0])
    losses = [x for e in ranks.read(run, 1, "step") for x in e["losses"]]
    assert losses[5] == "NaN"


def test_a_bad_loss_with_good_weights_in_the_last_step_is_not_saved(tmp_path):
    """While steps go on, ranks hear of each other some time later; before a save they check every
    loss so far."""
    run = own_task(tmp_path / "run", """\
def trouble(self, loss):
    return loss + (float('inf') if (self.calls, RANK) == (40, 1) else 0)
""", world=2, size=24, train={"steps": 40})
    ranks.train(run, expect=1)
    assert "rank 1 at step 40" in ranks.read(run, 0, "error")[-1]["message"]
    assert checkpoint.listed(run / "checkpoints") == []


def test_a_hundred_steps_left_out_in_a_row_end_the_run(tmp_path):
    """Only in a row: 99 and 99 with a good step between them do not end the run."""
    run = own_task(tmp_path / "run", """\
def trouble(self, loss):
    return loss if self.calls in (100, 200) else loss * float('nan')
""", size=24, train={"steps": 400, "on_nonfinite": "skip"})
    ranks.train(run, expect=1)
    (error,) = ranks.read(run, 0, "error")
    assert error["message"].startswith("100 steps in a row up to step 300 were skipped")
    assert ranks.read(run, 0, "warning")


def test_a_stream_without_a_whole_batch_ends_the_run(make):
    run = make(params={"stream": True, "examples": 23}, size=24, train={"steps": 2})
    ranks.train(run, expect=1)
    (error,) = ranks.read(run, 0, "error")
    assert "not enough for one global batch" in error["message"]


def test_continue_goes_on_but_never_saves_bad_weights(make):
    run = make("run", {"nan_at": 6}, size=24,
               train={"steps": 20, "checkpoint_every": 5, "on_nonfinite": "continue"})
    ranks.train(run)
    assert names(run) == ["step-00000005"]
    warnings = " ".join(e["message"] for e in ranks.read(run, 0, "warning"))
    assert "rank 0 at step 6" in warnings
    assert "not saved" in warnings


def test_failure_of_one_rank_is_known_to_the_other(make):
    run = make("run", {"raise_at": 5, "rank": 0}, world=2, size=24, train={"steps": 100})
    ranks.train(run, expect=1)
    own = ranks.read(run, 0, "error")[-1]
    assert own["type"] == "ArithmeticError"
    assert "as the test wants it" in own["traceback"]
    assert own["phase"] == "forward"
    other = ranks.read(run, 1, "error")[-1]
    assert other["type"] == "PeerLost"
    assert "rank 0: ArithmeticError" in other["message"]


def test_out_of_memory_says_how_much_was_wanted(make):
    run = make("run", {"oom_at": 3}, size=24, train={"steps": 10})
    ranks.train(run, expect=1)
    error = ranks.read(run, 0, "error")[-1]
    assert error["type"] == "OutOfMemoryError"
    assert error["requested"] == 20 * 2**20


def test_stop_before_training_began(tmp_path):
    """A task that is still reading its data ends at once, and nothing has failed."""
    run = own_task(tmp_path / "run", "def train_data(self): time.sleep(60)", world=2)
    with ranks.started(run) as first:
        first.until(lambda: all(
            any(e["phase"] == "data" for e in ranks.read(run, r, "phase")) for r in range(2)))
        first.signal(0)
        first.signal(1)
        assert first.wait() == [0, 0]
    for rank in range(2):
        assert ranks.read(run, rank, "end")[-1]["outcome"] == "stopped"
        assert not ranks.read(run, rank, "error")


def test_sigterm_to_the_whole_group_spares_loader_workers(make):
    """torchrun sends SIGTERM to a rank's whole process group. The rank must still be able to
    save."""
    run = make("run", SLOW, size=24, train={**LONG, "workers": 2})
    with ranks.started(run) as first:
        first.until(lambda: len(ranks.read(run, 0, "step")) > 2)
        os.killpg(first.processes[0].pid, signal.SIGTERM)
        assert first.wait() == [0]
    assert ranks.read(run, 0, "end")[-1]["outcome"] == "stopped"
    assert len(checkpoint.listed(run / "checkpoints")) == 1


def test_an_error_after_a_request_to_stop_is_a_failure(tmp_path):
    run = own_task(tmp_path / "run", """\
def trouble(self, loss):
    if self.calls == 3:
        os.kill(os.getpid(), signal.SIGTERM)
        raise ArithmeticError("in the step in which it was asked to stop")
    return loss
""", train={"steps": 9})
    ranks.train(run, expect=1)
    assert ranks.read(run, 0, "end")[-1]["outcome"] == "failed"
    assert ranks.read(run, 0, "error")[-1]["type"] == "ArithmeticError"
