"""`resume` and `export` from the best checkpoint, or from that of a step."""

from __future__ import annotations

import json
from pathlib import Path

from gpu_engine.runs import checkpoints
from gpu_engine.runs import folder as runs

from ..command_line import called
from .test_headless import call, losses, sets


def steps(run: runs.Run) -> list[int | None]:
    return [checkpoints.step_of(p.name) for p in checkpoints.listed(run.checkpoints)]


def test_from_the_best_or_a_step(home: Path, tmp_path: Path) -> None:
    out = call("run", "--json", *sets(
        devices__ids="cpu:0", train__steps=20, train__eval_every=5, train__keep=2,
        train__checkpoint_every=5, train__best="max:loss"))
    assert out.returncode == 0, out.stderr
    run = runs.find(json.loads(out.stdout)["id"])
    first = losses(run)
    assert steps(run) == [5, 15, 20], "the loss falls: the largest is the first"

    file = str(tmp_path / "w.safetensors")
    assert json.loads(called("export", run.id, file, "--from", "best", "--json").stdout)[
        "step"] == 5
    assert checkpoints.choose(run.checkpoints, "15", "max:loss") == "step-00000015"
    for verb in (("export", run.id, file), ("resume", run.id)):
        refused = called(*verb, "--from", "7")
        assert refused.returncode == 2
        assert "there is no checkpoint of step 7; there are step 5, 15, 20" in refused.stderr
        assert "Traceback" not in refused.stderr
    assert run.state().attempt == 1

    done = called("resume", run.id, "--from", "best", "--set", "train.keep=4")
    assert done.returncode == 0, done.stderr
    assert losses(run)[20:] == first[5:]
    assert steps(run) == [5, 10, 15, 20]
    aside = checkpoints.listed(run.checkpoints / "before-attempt-2")
    assert [p.name for p in aside] == ["step-00000015", "step-00000020"]


def test_an_own_command_has_no_checkpoints_of_ours(home: Path) -> None:
    out = called("run", "--json", "--set", "devices.ids=cpu:0", "--", "true")
    run = json.loads(out.stdout)["id"]
    refused = called("resume", run, "--from", "best")
    assert refused.returncode == 2
    assert "a command of your own" in refused.stderr
