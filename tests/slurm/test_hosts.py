"""The nodes of a running job as hosts, as docs/slurm.md shows."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from gpu_engine.remote.reach import file
from gpu_engine.runs import folder

from ..cli.test_cli import engine

pytestmark = pytest.mark.root


def test_the_nodes_of_a_running_job_are_hosts(cluster):
    text = (Path(__file__).parents[2] / "docs/slurm.md").read_text()
    (shown,) = re.findall(r"```toml\n(\[hosts.*?)```", text, re.DOTALL)
    job = cluster.fill()
    shown = shown.replace("gpu03", "n2").replace("41007", str(job))
    shown = re.sub(r"python = .*", f"python = {json.dumps(sys.executable)}", shown)
    path = file.path()
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


def test_inside_a_job_its_nodes_are_hosts_and_runs_start_there(cluster):
    """Nobody wrote them down. Both nodes are this one machine, so a run uses one of them."""
    job = cluster.fill()
    env = os.environ | {"OMP_NUM_THREADS": "1", "SLURM_JOB_ID": str(job), "SLURM_JOB_NODELIST":
                        cluster.ask("squeue", "-h", "-j", str(job), "-o", "%N").strip()}
    assert env["SLURM_JOB_NODELIST"] == "n[1-2]"
    done = engine("hosts", "check", env=env)
    assert re.findall(r"^(n\d) +(\w+) in", done.stdout, re.MULTILINE) \
        == [("n1", "ready"), ("n2", "ready")], done.stdout + done.stderr
    done = engine("run", "--json", "--set", "devices.hosts=n2:cpu:0", "--", sys.executable, "-c",
                  "import os; print('on', os.environ['SLURMD_NODENAME'])", env=env)
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["state"] == "completed", done.stdout + done.stderr
    [run] = folder.all_runs()  # the nodes share this file system, and their part of it is no run
    assert run.id == said["id"]
    assert "on n2" in run.log(0).read_text()
    cluster.until(lambda: not cluster.ask("squeue", "-h", "-s", "-o", "%i").split(f"{job}.0")[1:])
