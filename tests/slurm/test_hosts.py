"""The nodes of a running job as hosts, as docs/slurm.md shows."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from gpu_engine.remote.reach import hosts

from ..cli.test_cli import engine

pytestmark = pytest.mark.root


def test_the_nodes_of_a_running_job_are_hosts(cluster):
    text = (Path(__file__).parents[2] / "docs/slurm.md").read_text()
    (shown,) = re.findall(r"```toml\n(\[hosts.*?)```", text, re.DOTALL)
    job = cluster.fill()
    shown = shown.replace("gpu03", "n2").replace("41007", str(job))
    shown = re.sub(r"python = .*", f"python = {json.dumps(sys.executable)}", shown)
    path = hosts.path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(shown)
    done = engine("hosts", "check", "n2", env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CPU slot" in done.stdout
    cluster.until(lambda: f"{job}.0" not in cluster.ask("squeue", "-h", "-s"))
    cluster.ask("scancel", str(job))
    cluster.until(cluster.idle)
    done = engine("hosts", "check", "n2")
    assert done.returncode == 1
    assert "can't be used" in done.stdout
    assert "invalid job" in done.stdout  # srun's words
