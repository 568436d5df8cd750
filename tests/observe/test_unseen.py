"""No wrapper of ours is seen in a warning or a traceback, nor what we ask of tensors by a mode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_engine.plan.own_command import HOOK

from .kit import SCRIPTS


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_warnings_and_errors_are_those_of_the_script_alone(tmp_path: Path, ranks: str) -> None:
    (tmp_path / "ranks").mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPU_PANEL_")}
    alone, observed = (subprocess.run(
        [sys.executable, str(SCRIPTS / "unseen.py")], capture_output=True, text=True, timeout=600,
        env=env | {"WORLD_SIZE": ranks, "RANK": "0", "PYTHONUNBUFFERED": "1"} | more)
        for more in ({}, {"PYTHONPATH": HOOK, "GPU_PANEL_RUN": str(tmp_path),
                          "GPU_PANEL_RANK": "0"}))
    assert observed.stdout == alone.stdout
    assert observed.stderr == alone.stderr
    assert "install.py" not in alone.stderr
    for said in ("level 2", "own scale", "further", "closure 2", "no room", "no order", "in the"):
        assert said in alone.stderr
    assert alone.stdout.count("mode") > 4
    record = (tmp_path / "ranks" / "00000.jsonl").read_text()
    assert '"step"' in record
    assert '"warning"' not in record
