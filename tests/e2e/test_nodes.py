"""Two machines without a screen: real ranks, real torch, real torchrun."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpu_engine.common.ports import free_port
from gpu_engine.launching.launcher import prepare
from gpu_engine.runs import folder as runs

from ..cable import joined
from .kit import engine, events, losses, reference, sets, spec


def node(rank: int, address: str, port: int, home, *, prefix=()) -> subprocess.Popen:
    """`gpu-engine run` on one of two nodes, with a home of its own."""
    args = sets(parallel__mode="multinode", parallel__nodes=2, parallel__node_rank=rank,
                parallel__master_addr=address, parallel__master_port=port,
                devices__ids=f"cpu:{rank}", parallel__timeout=60)
    return subprocess.Popen([*prefix, *engine("run", "--json", *args)], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env=os.environ | {"GPU_PANEL_HOME": str(home / f"node{rank}")})


def check_two_nodes(nodes: list[subprocess.Popen], home, expected: list[float]) -> None:
    found = []
    for rank, process in enumerate(nodes):
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, (out, err)
        state = json.loads(out.splitlines()[-1])
        assert state["state"] == "completed"
        run = runs.Run(home / f"node{rank}" / "runs" / state["id"])
        assert events(run, rank)[0]["node"] == rank
        found.append(losses(run, rank))
    mean = [(a + b) / 2 for a, b in zip(*found, strict=True)]
    # One global batch, one seed: the same training as on one device.
    assert mean == pytest.approx(expected, rel=2e-4)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """The losses of the same global batches in one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPU_PANEL_HOME", str(tmp_path_factory.mktemp("reference")))
        return reference()


def test_the_torchrun_lines_of_two_nodes_pasted_into_two_shells(home, one_process):
    """What `plan` prints for several machines needs no supervisor; the runs folder still gets
    the run, and the losses are those of one process."""
    lines = prepare(spec(parallel__mode="multinode", parallel__nodes=2, devices__ids="cpu:0",
                         parallel__master_port=free_port())).plan.lines
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
    assert mean == pytest.approx(one_process, rel=2e-4)


def test_two_nodes_meet_through_torchrun(home, one_process):
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
        check_two_nodes(nodes, home, one_process)


def test_a_port_taken_on_node_0_is_refused_before_anything_waits(home):
    with socket.socket() as sock:
        sock.bind(("", 0))
        sock.listen()
        process = node(0, "127.0.0.1", sock.getsockname()[1], home)
        _, err = process.communicate(timeout=600)
    assert process.returncode == 2
    assert "the port is taken" in err


def test_the_plan_of_two_nodes_has_a_torchrun_line_each(home):
    lines = prepare(spec(devices__ids="cpu:0", parallel__mode="multinode", parallel__nodes=2,
                         parallel__master_addr="10.0.0.1", parallel__master_port=free_port())
                    ).plan.lines
    assert [f"--node-rank={i}" in line for i, line in enumerate(lines)] == [True, True]
    assert all("-m torch.distributed.run --nnodes=2" in line for line in lines)
