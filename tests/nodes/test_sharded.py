"""The example of a divided model on two machines, which are this one with other homes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_engine.runs import folder as runs

from ..command_line import called
from ..examples.sharded import EXACT, SCRIPT, TINY, by_hand, printed, write_text
from ..observe.kit import PYTHON
from ..remote.run.kit import losses, make_hosts


def test_two_machines_divide_a_model_and_one_goes_on_with_it(home: Path, tmp_path: Path):
    """From a folder that they share, as checkpoints are written in parts; without one, they say so
    before they train."""
    make_hosts(home, "a", "b")
    text = write_text(tmp_path)

    def ran(save: str) -> runs.Run:
        called("run", "--set", "devices.hosts=a:cpu:0,b:cpu:1", "--set", "train.steps=4", "--",
               PYTHON, str(SCRIPT), *TINY, "--text", str(text), "--steps", "{steps}",
               "--save", save)
        return max(runs.all_runs(), key=lambda run: run.state().created)

    alone = ran("{run.dir}/saved")
    assert alone.state().state == "failed", alone.state()
    assert (cause := alone.state().cause) is not None
    assert "not the same one on all machines" in cause.traceback
    assert not losses(alone.path, 0)

    run = ran(str(tmp_path / "saved"))
    assert run.state().state == "completed", run.state()
    assert called("resume", run.id, "--set", "devices.hosts=a:cpu:0", "--set",
                  "train.steps=6").returncode == 0
    for values, wanted in zip(printed(run.log(0).read_text()), by_hand(text, 6), strict=True):
        assert values == pytest.approx(wanted, rel=EXACT)
