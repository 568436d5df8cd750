"""Two machines without a screen: real ranks, real torch, real torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_engine.common.ports import free_port
from gpu_engine.places.verbs import prepare
from gpu_engine.runs import folder as runs

from .kit import losses, reference, spec


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
