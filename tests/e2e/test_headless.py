"""The whole way without a screen: real ranks, real torch, through the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from gpu_engine.places.verbs import prepare
from gpu_engine.runs import folder as runs

from ..command_line import called
from .kit import call, spec

TWO = {"parallel__mode": "ddp", "devices__pick": 2}


def test_the_line_that_is_shown_starts_what_was_chosen(home):
    """What `plan` shows for two gloo ranks, pasted into a shell with its output piped. Its progress
    is plain lines."""
    shown = prepare(spec(**TWO)).plan
    (line,) = shown.lines
    assert line.startswith("gpu-engine run ")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, timeout=600,
                          env=os.environ | {"PATH": path})
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stderr
    assert "step 12/12  loss " in done.stderr
    assert "completed after 12 steps" in done.stdout
    plan = runs.find("last").plan()
    assert (plan.spec, plan.lines, plan.ranks) == (shown.spec, shown.lines, shown.ranks)


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
