"""gpu-engine export --to wandb, read back with what it comes with. It is not installed by `.[dev]`,
for its size (110 MB); where it is, this test runs too."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from ..command_line import called
from .kit import T0, Written


@pytest.fixture
def run(home):
    with Written("digits") as it:
        it.start()
        it.steps(0, 2, [2.5, math.inf], 2.0)
        it.tell(0, "eval", t=2.5, step=2, accuracy=0.75)
        it.steps(0, 4, [math.nan, 0.5], 4.0)
    return it.run


def test_wandb_has_the_rows_once_and_the_spec(run, tmp_path):
    pytest.importorskip("wandb")
    called("export", run.id, "--to", "wandb", "-o", str(tmp_path))  # the second replaces it
    done = called("export", run.id, "--to", "wandb", "-o", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    assert f"wandb sync {folder}" in done.stdout
    (file,) = folder.glob("*.wandb")
    shown = subprocess.run([Path(sys.executable).with_name("wandb"), "leet", "inspect", "--json",
                            file], capture_output=True, text=True, check=True, timeout=600)
    records = [json.loads(line) for line in shown.stdout.splitlines()]
    (config,) = [r["run"]["config"]["update"] for r in records if r["type"] == "run"]
    rows = [r["history"]["item"] for r in records if r["type"] == "history"]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["_timestamp"] for row in rows] == [T0 + 2, T0 + 2, T0 + 3, T0 + 4]
    assert rows[0]["train/loss"] == 2.5
    assert rows[3]["train/loss"] == 0.5
    assert rows[1]["eval/accuracy"] == 0.75
    assert config["train"]["lr"] == 0.1
    (folder / f"{file.name}.synced").touch()
    refused = called("export", run.id, "--to", "wandb", "-o", str(tmp_path))
    assert refused.returncode == 2
    assert "was sent to W&B already" in refused.stderr
