"""Training that fails by itself: bad losses, memory, imports, failing ranks."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from ..conftest import wait_for
from .kit import Box, case, checkpoints, events, logs, steps, verified


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
