"""The whole way without a screen: real ranks, real torch, through the command line."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpu_engine.common.ports import free_port
from gpu_engine.launch.launcher import prepare
from gpu_engine.runs import folder as runs
from gpu_engine.spec.read import apply_set, from_dict

from .. import event_lines
from ..cable import joined
from ..command_line import called
from ..conftest import wait_for

TINY = {
    "task.use": "gpu_engine.tasks.bytes_gpt:BytesGPT", "task.params.width": 32,
    "task.params.layers": 1, "task.params.context": 16, "task.params.megabytes": 0.1,
    "task.params.warmup": 2, "batch.size": 16, "train.steps": 12, "train.lr": 0.01,
    "train.workers": 0, "train.checkpoint_every": 5,
}


def sets(**more) -> list[str]:
    merged = TINY | {k.replace("__", "."): v for k, v in more.items()}
    return [word for k, v in merged.items() for word in ("--set", f"{k}={v}")]


def engine(*args: str) -> list[str]:
    return [sys.executable, "-m", "gpu_engine", *args]


def call(*args: str, **more) -> subprocess.CompletedProcess[str]:
    return subprocess.run(engine(*args), capture_output=True, text=True, timeout=600, **more)


def events(run: runs.Run, rank: int) -> list[dict]:
    return event_lines.read(run.events(rank))


def losses(run: runs.Run, rank: int = 0) -> list[float]:
    return [x for e in events(run, rank) if e["kind"] == "step" for x in e["losses"]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A home with two finished runs, started through the command line, and their ids: two gloo
    ranks, and the same global batches in one process."""
    folder = tmp_path_factory.mktemp("trained") / "home"
    ids = []
    for more in ({"parallel__mode": "ddp", "devices__pick": 2}, {"devices__ids": "cpu:0"}):
        out = call("run", *sets(**more), "--json",
                   env=os.environ | {"GPU_PANEL_HOME": str(folder)})
        assert out.returncode == 0, out.stderr
        ids.append(json.loads(out.stdout)["id"])
    return folder, ids


@pytest.fixture
def two(trained, home):
    """The run of two ranks, in a home of the test's own."""
    shutil.copytree(trained[0], home, symlinks=True)
    return runs.find(trained[1][0])


def test_two_ranks_train_to_the_end_and_say_so_in_their_files(two):
    state = two.state()
    assert (state.state, state.exit_code) == ("completed", 0)
    for rank in (0, 1):
        found = events(two, rank)
        kinds = [e["kind"] for e in found]
        assert kinds[0] == "start"
        assert kinds[-1] == "end"
        assert {"schedule", "step", "memory", "phase"} <= set(kinds)
        start, end = found[0], found[-1]
        assert (start["rank"], start["world_size"], start["attempt"]) == (rank, 2, 1)
        assert (end["outcome"], end["steps"]) == ("completed", 12)
        assert len(losses(two, rank)) == 12
    both = [(a + b) / 2 for a, b in zip(losses(two, 0), losses(two, 1), strict=True)]
    assert 5.0 < both[0] < 6.0
    assert both[-1] < both[0] - 0.7
    saved = sorted(p.name for p in two.checkpoints.iterdir())
    assert saved == ["step-00000005", "step-00000010", "step-00000012"]
    assert [e for e in events(two, 0) if e["kind"] == "eval"][-1]["step"] == 12
    assert "completed" in called("show", two.id).stdout


def test_the_line_that_is_shown_gives_the_same_losses(two, home):
    """What `plan` shows, pasted into a shell. Its output is piped: plain lines for every rank."""
    line = two.plan().lines[0]
    assert line.startswith("gpu-engine run ")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, timeout=600,
                          env=os.environ | {"PATH": path})
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "\x1b" not in done.stderr
    for rank in (0, 1):
        assert f"rank {rank}  step 12/12" in done.stderr
    assert "completed after 12 steps" in done.stderr
    again = runs.all_runs()[0]
    assert again.id != two.id
    for rank in (0, 1):
        assert losses(again, rank) == losses(two, rank)


def test_a_user_mistake_inside_the_task_is_one_and_words(home, tmp_path):
    out = call("run", "single", "--set", "task.use=gpu_engine.tasks.mnist:Mnist",
               "--set", f"task.params.folder={tmp_path}", "--devices", "cpu:0")
    assert out.returncode == 1
    assert str(tmp_path) in out.stderr
    assert "Traceback" not in out.stderr


def test_stop_saves_at_a_step_boundary_and_resume_goes_on(home):
    """With one rank; two that agree on the step are a case of tests/faults."""
    out = call("run", "--detach", *sets(devices__ids="cpu:0", train__steps=100000))
    run = runs.find(out.stdout.strip())
    wait_for(lambda: len(losses(run)) > 3)
    assert called("resume", run.id).returncode == 2  # it runs
    assert call("stop", run.id).returncode == 0
    assert run.state().state == "stopped"
    end = events(run, 0)[-1]
    assert end["outcome"] == "stopped"
    assert f"step-{end['steps']:08d}" in [p.name for p in run.checkpoints.iterdir()]
    more = end["steps"] + 4
    done = call("resume", run.id, "--set", f"train.steps={more}")
    assert done.returncode == 0, done.stderr
    starts = [e for e in events(run, 0) if e["kind"] == "start"]
    assert [e["attempt"] for e in starts] == [1, 2]
    assert events(run, 0)[-1]["steps"] == more


# --- several machines --------------------------------------------------------------------------

def node(rank: int, address: str, port: int, home, *, prefix=()) -> subprocess.Popen:
    """`gpu-engine run` on one of two nodes, with a home of its own."""
    args = sets(parallel__mode="multinode", parallel__nodes=2, parallel__node_rank=rank,
                parallel__master_addr=address, parallel__master_port=port,
                devices__ids=f"cpu:{rank}", parallel__timeout=60)
    return subprocess.Popen([*prefix, *engine("run", "--json", *args)], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env=os.environ | {"GPU_PANEL_HOME": str(home / f"node{rank}")})


def check_two_nodes(nodes: list[subprocess.Popen], home, reference: list[float]) -> None:
    found = []
    for rank, process in enumerate(nodes):
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, (out, err)
        state = json.loads(out)
        assert state["state"] == "completed"
        run = runs.Run(home / f"node{rank}" / "runs" / state["id"])
        assert events(run, rank)[0]["node"] == rank
        found.append(losses(run, rank))
    mean = [(a + b) / 2 for a, b in zip(*found, strict=True)]
    # One global batch, one seed: the same training as on one device.
    assert mean == pytest.approx(reference, rel=2e-4)


@pytest.fixture
def reference(trained):
    """The losses of the same global batch in one process."""
    folder, ids = trained
    return losses(runs.Run(folder / "runs" / ids[1]))


def test_the_torchrun_lines_of_two_nodes_pasted_into_two_shells(home, reference):
    """What `plan` prints for several machines needs no supervisor; the runs folder still gets
    the run, and the losses are those of one process."""
    data: dict = {}
    for assignment in sets(parallel__mode="multinode", parallel__nodes=2, devices__ids="cpu:0",
                           parallel__master_port=free_port())[1::2]:
        apply_set(data, assignment)
    lines = prepare(from_dict(data)).plan.lines
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                        "OMP_NUM_THREADS": "1"}
    shells = [subprocess.Popen(["/bin/sh", "-c", line], env=env, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True) for line in lines]
    for shell in shells:
        out, _ = shell.communicate(timeout=600)
        assert shell.returncode == 0, out
    run = runs.all_runs()[0]
    assert run.state().state == "completed"
    mean = [(a + b) / 2 for a, b in zip(losses(run, 0), losses(run, 1), strict=True)]
    assert mean == pytest.approx(reference, rel=2e-4)


def test_two_nodes_meet_through_torchrun(home, reference):
    """Over a network of their own, 10.77.0.1 and 10.77.0.2, or on loopback where the machine does
    not let us make one."""
    with ExitStack() as stack:
        try:
            names = stack.enter_context(joined("10.77.0"))
            address, prefixes = "10.77.0.1", [("ip", "netns", "exec", name) for name in names]
        except pytest.skip.Exception:
            address, prefixes = "127.0.0.1", [(), ()]
        port = free_port()
        nodes = [node(r, address, port, home, prefix=prefixes[r]) for r in (0, 1)]
        check_two_nodes(nodes, home, reference)


def test_a_port_taken_on_node_0_is_refused_before_anything_waits(home):
    with socket.socket() as sock:
        sock.bind(("", 0))
        sock.listen()
        process = node(0, "127.0.0.1", sock.getsockname()[1], home)
        _, err = process.communicate(timeout=600)
    assert process.returncode == 2
    assert "the port is taken" in err


def test_the_plan_of_two_nodes_has_a_torchrun_line_each(home):
    spec = from_dict({"task": {"use": TINY["task.use"]}, "devices": {"ids": ["cpu:0"]},
                      "parallel": {"mode": "multinode", "nodes": 2, "master_addr": "10.0.0.1",
                                   "master_port": free_port()}})
    lines = prepare(spec).plan.lines
    assert [f"--node-rank={i}" in line for i, line in enumerate(lines)] == [True, True]
    assert all("-m torch.distributed.run --nnodes=2" in line for line in lines)


# --- check -------------------------------------------------------------------------------------

def test_check_names_every_rank_and_measures_between_them(home):
    out = call("check", "ddp", "--devices", "cpu:0,cpu:1", "--json")
    assert out.returncode == 0, out.stderr
    told = json.loads(out.stdout)
    assert told["ok"]
    assert [r["device"] for r in told["ranks"]] == [["CPU 0"], ["CPU 1"]]
    assert len({r["bytes"] for r in told["reductions"]}) >= 3
    assert all(r["bytes_per_s"] > 0 for r in told["reductions"])
    assert runs.all_runs() == []  # it leaves nothing behind


def test_check_says_that_a_machine_did_not_come(home):
    out = call("check", "multinode", "--devices", "cpu:0", "--set", "parallel.timeout=3",
               "--set", f"parallel.master_port={free_port()}")
    assert out.returncode == 1
    assert "only 1 of 2 machines connected" in out.stderr
    assert "Traceback" not in out.stderr
