"""Training that fails by itself: bad losses, memory, imports, failing ranks."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

import pytest

from gpu_engine.launching.launcher import start

from ..conftest import wait_for
from .kit import Box, case, checkpoints, events, logs, steps, verified


@case("The loss is NaN at step 7 on one rank of two",
      "failed, rank and step named; the good checkpoint stays, no bad one is written")
def a_loss_that_is_nan(box: Box) -> None:
    run = box.toy(ranks=2, params={"nan_at": 7, "rank": 1, "pause": 0.01},
                  train={"steps": 100, "checkpoint_every": 5})
    state = box.ended(run)
    assert state.state == "failed", logs(run)
    assert "rank 1 at step 7" in state.reason
    assert [p.name for p in checkpoints(run)] == ["step-00000005"]


@case("A real rank kills itself mid-epoch; the run restarts by itself",
      "attempt 2 goes on from the checkpoint and completes, no step left out")
def a_real_rank_dies_and_the_run_restarts(box: Box) -> None:
    run = box.toy(params={"die_at": 8, "pause": 0.01},
                  train={"steps": 12, "checkpoint_every": 5, "restarts": 1,
                         "checkpoint_async": False})  # an unfinished save would be lost
    state = box.ended(run)
    assert (state.state, state.attempt) == ("completed", 2), logs(run)
    assert [e["first_step"] for e in events(run, 0, "schedule")] == [0, 5]
    assert steps(run) == 12


@case("One real rank of two is killed at a random moment, round after round, with restarts",
      "each run completes, and its newest checkpoint is of the last step", always=False)
def real_ranks_killed_at_random(box: Box) -> None:
    import random

    chance = random.Random(os.environ.get("GPU_PANEL_SEED", time.time_ns()))
    for _ in range(5):
        run = box.toy(ranks=2, params={"pause": 0.01},
                      train={"steps": 120, "checkpoint_every": 10, "restarts": 2})
        box.stepping(run, chance.randint(1, 60))
        os.kill(chance.choice(run.state().processes).pid, 9)
        state = box.ended(run)
        assert (state.state, state.attempt) == ("completed", 2), logs(run)
        assert checkpoints(run)[-1].name == "step-00000120"
        assert "SIGKILL" in state.attempts[0].reason


@case("Imports that take long, with short timeouts all around",
      "the phase says init meanwhile; nothing times out; completed")
def long_imports(box: Box) -> None:
    task = box.tmp / "heavy.py"
    toy = Path(__file__).parents[1] / "training" / "toy.py"
    task.write_text(toy.read_text().replace("import time\n", "import time\ntime.sleep(8)\n", 1))
    run = start(box.prepared_toy(use=f"{task}:Toy", train={"steps": 5, "hang_timeout": 6.0},
                                 parallel={"timeout": 2.0}))
    wait_for(lambda: events(run, 0, "phase"))
    time.sleep(1.5)
    assert {e["phase"] for e in events(run, 0, "phase")} == {"init"}
    assert run.state().state == "running"
    assert box.ended(run).state == "completed", logs(run)


@case("A GPU's memory is not enough (the worker's error event)",
      "failed; names the rank, memory requested, allocated, reserved, and a batch that may fit")
def out_of_gpu_memory(box: Box) -> None:
    run = box.go("""
start()
if rank == 1:
    tell("error", type="OutOfMemoryError", message="CUDA out of memory. Tried to allocate 2.00 "
         "GiB. GPU 1 has a total capacity of 8.00 GiB", traceback="Traceback …", phase="forward",
         step=0, requested=2 << 30, allocated=7 << 30, reserved=15 << 29)
    finish("failed")
train()
""", batch={"size": 48})
    state = box.ended(run)
    assert (state.cause.rank, state.cause.type) == (1, "OutOfMemoryError")
    for words in ("out of GPU memory", "requested 2.0 GiB", "allocated 7.0 GiB",
                  "reserved 7.5 GiB", "24 examples per GPU instead of 48",
                  "batch.accumulate=2"):
        assert words in state.reason, state.reason


@case("The host's memory is not enough: the kernel kills a rank in a small control group",
      "failed, with host memory as the reason, by the kernel's count", root=True)
def out_of_host_memory(box: Box) -> None:
    with small_group("192m") as enter:  # so that the rank is the largest in it when it is full
        text = box.tmp / "eater.py"
        text.write_text("start(); step(1)\n"
                        "held = [bytearray(os.urandom(1 << 20)) for _ in range(512)]\n")
        box.patch.setenv("FAULT_BODY", str(text))
        done = box.cli_process("run", "--json", "--devices", "cpu:0", "--set",
                               "task.use=gpu_engine.tasks.bytes_gpt:BytesGPT", "--set",
                               f"run.python={box.interpreter()}", preexec_fn=enter)
        if done.returncode == 0:
            pytest.skip(f"this control group limits nothing: {done}")
        assert done.returncode == 1, done
        assert "out of host memory (the kernel counted it)" in done.stdout, done


def small_group(size: str):
    """A memory control group; `enter` puts the calling process into it."""
    import contextlib

    @contextlib.contextmanager
    def made():
        root = Path("/sys/fs/cgroup")
        v2 = (root / "cgroup.controllers").exists()
        parent = root if v2 else root / "memory"
        # 0 means the calling process: its pid may be another one in a container.
        group = parent / f"gpu-panel-faults-{secrets.token_hex(4)}"
        try:
            group.mkdir()
            (group / ("memory.max" if v2 else "memory.limit_in_bytes")).write_text(size)
            if v2:
                (group / "memory.swap.max").write_text("0")
        except OSError as err:
            with contextlib.suppress(OSError):
                group.rmdir()
            pytest.skip(f"no control group of our own here: {err}")
        try:
            yield lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
        finally:
            wait_for(lambda: not (group / "cgroup.procs").read_text().strip())
            group.rmdir()

    return made()


@case("One rank fails, the others with connection errors, some before it by the clock",
      "the first cause leads, everywhere it is shown")
def the_wake_does_not_lead(box: Box) -> None:
    run = box.go("""
start(); meet(); step(3)
if rank == 2:
    tell("error", type="ZeroDivisionError", message="in my data", traceback="Traceback: mine")
    sys.stderr.write("Traceback (most recent call last):\\nZeroDivisionError: in my data\\n")
else:
    tell("error", t=time.time() - 5, type="RuntimeError",
         message="[gloo/transport] Connection closed by peer", traceback="Traceback: wake")
finish("failed", 3)
""", ranks=4)
    state = box.ended(run)
    assert (state.cause.rank, state.cause.type) == (2, "ZeroDivisionError")
    shown = box.cli("show", run.id)
    assert shown.stderr.startswith("rank 2 failed first: ZeroDivisionError: in my data")
    assert "gloo" not in shown.stderr
    assert all(f"rank {r}  pid " in shown.stdout for r in range(4))
    assert "exited with 1" in shown.stdout


@case("Stopped at a random step, a real run of two ranks, and resumed",
      "the checkpoint is of the step at which it ended; the next attempt goes on there")
def stopped_and_resumed(box: Box) -> None:
    run = box.toy(ranks=2, params={"pause": 0.05, "examples": 48_000}, train={"steps": 100_000})
    box.stepping(run, 5)
    run.stop()
    state = box.ended(run)
    assert state.state == "stopped", logs(run)
    last = [events(run, r)[-1] for r in (0, 1)]
    assert [e["outcome"] for e in last] == ["stopped", "stopped"]
    ends = [e["steps"] for e in last]
    assert ends[0] == ends[1]
    assert checkpoints(run)[-1].name == f"step-{ends[0]:08d}"
    assert verified(checkpoints(run)[-1])
    more = ends[0] + 3
    assert box.cli("resume", run.id, "--set", f"train.steps={more}").returncode == 0
    assert [e["first_step"] for e in events(run, 0, "schedule")] == [0, ends[0]]
    assert [events(run, r, "end")[-1]["steps"] for r in (0, 1)] == [more, more]


@case("A task that raises in a DataLoader worker", "failed; the exception is the cause, no worker "
      "is left")
def a_loader_worker_raises(box: Box) -> None:
    task = box.tmp / "bad_data.py"
    task.write_text(
        "from dataclasses import dataclass\nimport torch\nfrom gpu_engine import Task\n"
        "class Bad(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 1000\n"
        "    def __getitem__(self, i): raise KeyError('example 7 is broken')\n"
        "@dataclass\nclass Broken(Task):\n"
        "    def model(self): return torch.nn.Linear(1, 1)\n"
        "    def train_data(self): return Bad()\n"
        "    def loss(self, model, batch): return model(batch).sum()\n")
    run = start(box.prepared_toy(use=f"{task}:Broken", train={"workers": 2, "steps": 5}))
    state = box.ended(run)
    assert state.state == "failed"
    assert "example 7 is broken" in state.cause.message
    assert state.cause.rank == 0
