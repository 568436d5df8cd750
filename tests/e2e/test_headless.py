"""The whole way without a screen: real ranks, real torch, through the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_engine.common.ports import free_port
from gpu_engine.places.verbs import prepare
from gpu_engine.runs import folder as runs

from ..command_line import called
from .kit import call, events, losses, reference, spec

TWO = {"parallel__mode": "ddp", "devices__pick": 2}


@pytest.fixture(scope="module")
def pasted(tmp_path_factory):
    """What `plan` shows for two gloo ranks, pasted into a shell, with its output piped: what it has
    said, and the home that has its run."""
    folder = tmp_path_factory.mktemp("pasted") / "home"
    (line,) = prepare(spec(**TWO)).plan.lines
    assert line.startswith("gpu-engine run ")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, timeout=600,
                          env=os.environ | {"PATH": path, "GPU_PANEL_HOME": str(folder)})
    return done, folder


@pytest.fixture
def two(pasted, monkeypatch):
    """The run of two ranks."""
    monkeypatch.setenv("GPU_PANEL_HOME", str(pasted[1]))
    (run,) = runs.all_runs()
    return run


def test_the_line_that_is_shown_starts_what_was_chosen(pasted, two):
    """Its progress is plain lines."""
    done = pasted[0]
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stderr
    assert "step 12/12  loss " in done.stderr
    assert "completed after 12 steps" in done.stdout
    shown, plan = prepare(spec(**TWO)).plan, two.plan()
    assert plan.spec == shown.spec
    assert plan.lines == shown.lines
    assert plan.ranks == shown.ranks


def test_two_ranks_train_to_the_end_and_say_so_in_their_files(two, tmp_path, monkeypatch):
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
    # One global batch, one seed: the same training as on one device.
    monkeypatch.setenv("GPU_PANEL_HOME", str(tmp_path))
    assert both == pytest.approx(reference(), rel=2e-4)


def test_a_user_mistake_inside_the_task_is_one_and_words(home, tmp_path):
    out = called("run", "single", "--set", "task.use=gpu_engine.tasks.mnist:Mnist",
                 "--set", f"task.params.folder={tmp_path}", "--devices", "cpu:0")
    assert out.returncode == 1
    assert str(tmp_path) in out.stderr
    assert "Traceback" not in out.stderr


def test_check_names_every_rank_and_measures_between_them(home):
    out = call("check", "ddp", "--devices", "cpu:0,cpu:1", "--json")
    assert out.returncode == 0, out.stderr
    told = json.loads(out.stdout)
    assert told["ok"]
    assert [r["device"] for r in told["ranks"]] == [["CPU 0"], ["CPU 1"]]
    assert len({r["bytes"] for r in told["reductions"]}) >= 3
    assert all(r["bytes_per_s"] > 0 for r in told["reductions"])
    assert [p["device"] for p in told["products"]] == ["CPU 0", "CPU 1"]
    assert all(p["flops_per_s"] > 1e8 for p in told["products"])
    assert [p["ranks"] for p in told["pairs"]] == [[0, 1]]
    assert told["pairs"][0]["bytes_per_s"] > 1 << 20
    assert told["doubts"] == []
    assert runs.all_runs() == []  # it leaves nothing behind


def test_check_says_that_a_machine_did_not_come(home):
    out = called("check", "multinode", "--devices", "cpu:0", "--set", "parallel.timeout=3",
                 "--set", f"parallel.master_port={free_port()}")
    assert out.returncode == 1
    assert "only 1 of 2 machines connected" in out.stderr
    assert "Traceback" not in out.stderr
