"""What runs have here, they have on Slurm: a person's own script, over nodes too, its limit and its
printed values, another attempt, a sweep. With a real Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_engine.common import procs
from gpu_engine.events import schema
from gpu_engine.events.reader import Tail
from gpu_engine.places.verbs import launch
from gpu_engine.report import usage
from gpu_engine.runs import folder as runs
from gpu_engine.runs import leftovers
from gpu_engine.runs.folder import Run
from gpu_engine.spec.read import from_dict
from gpu_engine.sweep import group

from ..conftest import wait_for
from ..remote.run.kit import DIGITS, ENDLESS, TWO_HERE, losses, losses_here, losses_so_far
from .kit import ended, job_of, say, seen

pytestmark = pytest.mark.root
TWO = {"devices": {"hosts": ["slurm:cpu:0"]}, "parallel": {"mode": "ddp", "nodes": 2}}
EMIT = str(Path(__file__).parents[2] / "bench" / "emit.py")
RECORDING = {"task": {"command": [sys.executable, "-S", "-E", EMIT, "20"]}}
"""Ranks that only record losses: training is not what is tried."""
PRINTING = """\
step=0
while [ $step -lt 400 ]; do
    printf 'step %d loss: %d.%04d\\n' $step $1 $((9999 - step))
    step=$((step + 1))
    sleep 0.05
done
"""
"""In a shell, which prints at once: a Python may need longer to start than its limit is."""


def steps(run: Run, rank: int, more: int = 1) -> bool:
    """Whether the rank has recorded `more` losses. Fails once the run has ended."""
    assert seen(run).live, seen(run)
    return run.events(rank).exists() and len(losses_so_far(run.path, rank)) >= more


def process(run: Run, rank: int) -> int:
    """The pid here of the newest process of a rank, whose own numbers are those of its node."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                words = (path / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if {f"GPU_PANEL_RUN={run.path}".encode(), f"RANK={rank}".encode()} <= set(words):
                return int(path.name)
    raise AssertionError(f"no process of rank {rank}")


def supervisors(run: Run, node: str) -> list[int]:
    """The pids of what runs of ours on this node for the run: the guard and the supervisor."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                words = (path / "cmdline").read_bytes().split(b"\0")
                where = (path / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"gpu_engine.on_node" in words and str(run.path).encode() in words \
                    and b"python" in words[0] and f"SLURMD_NODENAME={node}".encode() in where:
                found.append(int(path.name))
    return sorted(found)


def test_two_nodes_train_as_two_slots_here(cluster, tmp_path):
    """A task, to the bit."""
    own = DIGITS | {"train": DIGITS["train"] | {"steps": 12}}
    here = losses_here(tmp_path / "here", TWO_HERE | {"train": own["train"]})
    run = launch(from_dict(own | TWO))
    assert ended(run).state == "completed", run.state()
    assert [losses(run.path, rank) for rank in (0, 1)] == here
    plan = run.require_plan()
    assert [(r.rank, r.node, r.host) for r in plan.ranks] == [(0, 0, None), (1, 1, "n2")]
    used = {use.device for use in usage.of_runs(0.0, 4e9) if use.run == run.id}
    assert len(used) == 2, used  # a slot on each node


def test_a_script_of_ones_own_is_one_training_over_the_nodes(cluster, tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch, torch.distributed as dist, os\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.ones(1) * (dist.get_rank() + 1)\ndist.all_reduce(x)\n"
        "theirs = [v for v in os.environ if v.startswith('SLURM_PROC')]\n"
        "print('sum', x.item(), theirs, flush=True)\n"
        "dist.monitored_barrier()\nos._exit(0)\n")
    said = say("run", "--set", "devices.hosts=slurm:cpu:0", "--nodes", "2", "--mode", "ddp",
               "--tag", "night", "--", sys.executable, "train.py")
    run = runs.all_runs()[0]
    assert f"{run.id} completed" in said
    for rank in (0, 1):
        assert "sum 3.0 []" in run.log(rank).read_text()
    assert "night" in say("show", run.id)
    assert "rank 1| sum 3.0" in say("logs", run.id)


def test_an_attempt_that_fails_on_one_node_ends_on_both_and_both_begin_again(cluster):
    run = launch(from_dict(RECORDING | TWO | {"train": {"restarts": 1}}))
    wait_for(lambda: steps(run, 0) and steps(run, 1))
    os.kill(process(run, 1), signal.SIGKILL)
    wait_for(lambda: seen(run).attempt == 2 and seen(run).state == "running")
    many = [len(losses_so_far(run.path, rank)) for rank in (0, 1)]
    wait_for(lambda: all(steps(run, rank, many[rank] + 2) for rank in (0, 1)))
    first = run.state().attempts[0]
    assert first.outcome == "failed"
    assert "n2: rank 1: killed by SIGKILL" in (first.reason or "")
    os.kill(process(run, 1), signal.SIGKILL)
    state = ended(run)
    assert (state.state, state.cause.rank, state.cause.host) == ("failed", 1, "n2")
    assert job_of(run).restarts == 0
    cluster.until(cluster.idle)


@pytest.mark.parametrize(("node", "guard", "says"), [
    ("n2", False, "n2: the supervisor on n2 was killed"),
    ("n2", True, "a node of the job was lost"),
    ("n1", False, "the supervisor on n1 was killed")])
def test_a_supervisor_that_is_killed_fails_the_run_and_leaves_nothing(cluster, node, guard, says):
    run = launch(from_dict(RECORDING | TWO))
    wait_for(lambda: steps(run, 0) and steps(run, 1))
    pids = supervisors(run, node)
    assert len(pids) == 2, pids
    for pid in pids if guard else pids[-1:]:
        os.kill(pid, signal.SIGKILL)
    state = ended(run)
    assert (state.state, state.reason) == ("failed", says)
    cluster.until(cluster.idle)
    assert not supervisors(run, "n1") + supervisors(run, "n2")
    assert job_of(run).restarts == 0  # it does not go back to the queue


def test_it_saves_when_slurm_warns_goes_back_to_the_queue_and_goes_on(cluster):
    """Over two nodes."""
    run = launch(from_dict(ENDLESS | TWO))
    wait_for(lambda: steps(run, 0) and steps(run, 1))
    cluster.ask("scancel", "--signal=USR1", str(job_of(run).id))  # as before the time limit
    wait_for(lambda: (now := seen(run)).state == "queued" and "BeginTime" in (now.reason or ""))
    assert run.state().attempts[0].outcome == "stopped"
    saved = leftovers.last_checkpoint(run.path)
    cluster.ask("scontrol", "update", f"JobId={job_of(run).id}", "StartTime=now+2")
    wait_for(lambda: seen(run).attempt == 2 and seen(run).state == "running")
    many = len(losses_so_far(run.path, 1))
    wait_for(lambda: steps(run, 1, many + 2))
    again = [e for e in Tail(run.events(1)).read() if isinstance(e, schema.Schedule)][-1]
    assert saved == f"step-{again.first_step:08d}"
    assert say("stop", run.id).endswith(f"{run.id} stopped\n")
    say("resume", run.id, "--from", saved)  # and not from the one that was just saved
    wait_for(lambda: seen(run).attempt == 3 and seen(run).state == "running")
    many = len(losses_so_far(run.path, 1))
    wait_for(lambda: steps(run, 1, many + 2))
    again = [e for e in Tail(run.events(1)).read() if isinstance(e, schema.Schedule)][-1]
    assert saved == f"step-{again.first_step:08d}"
    say("stop", run.id)


def test_a_script_that_saves_is_not_disturbed_by_one_stop_however_often_it_is_told(
        cluster, tmp_path):
    (tmp_path / "save.py").write_text(
        "import pathlib, time\ntry:\n    print('up', flush=True)\n    time.sleep(600)\n"
        "except KeyboardInterrupt:\n    print('saving', flush=True)\n"
        "    while not pathlib.Path('go').exists(): time.sleep(0.05)\n    print('saved')\n")
    say("run", "--set", "devices.hosts=slurm:cpu:0", "--nodes", "2", "--mode", "ddp", "--detach",
        "--", sys.executable, "save.py")
    run = runs.all_runs()[0]

    def said(*words: str) -> bool:
        return all(run.log(rank).exists() and run.log(rank).read_text().split() == [*words]
                   for rank in (0, 1))

    wait_for(lambda: said("up"))
    say("stop", run.id, "--no-wait")
    wait_for(lambda: said("up", "saving"))
    for pid in [*supervisors(run, "n1"), *supervisors(run, "n2")]:
        os.kill(pid, signal.SIGUSR1)
    (tmp_path / "go").touch()
    assert (ended(run).state, run.state().reason) == ("stopped", None)
    assert said("up", "saving", "saved")


@pytest.mark.parametrize("plug", ["preempted", "a node is down"])
def test_what_slurm_takes_away_goes_back_to_the_queue_and_goes_on(cluster, plug):
    run = launch(from_dict(ENDLESS | TWO))
    wait_for(lambda: steps(run, 0) and steps(run, 1))
    if plug == "preempted":
        other = cluster.ask("sbatch", "--parsable", "-N2", "-purgent", "--output=/dev/null",
                            "--chdir=/", "--wrap=sleep 3600").strip()
    else:
        cluster.ask("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=trial")
    wait_for(lambda: seen(run).state == "queued")
    if plug == "preempted":
        wait_for(lambda: cluster.state(int(other)) == "RUNNING")
        cluster.ask("scancel", other)
    else:
        cluster.ask("scontrol", "update", "NodeName=n2", "State=RESUME")
    cluster.until(cluster.idle)
    assert not supervisors(run, "n1") + supervisors(run, "n2")
    assert job_of(run).restarts == 1
    cluster.ask("scontrol", "update", f"JobId={job_of(run).id}", "StartTime=now+2")
    wait_for(lambda: seen(run).attempt == 2 and seen(run).state == "running")
    say("stop", run.id)


def test_who_has_cancelled_it_and_a_controller_that_is_away(cluster, tmp_path):
    run = launch(from_dict(RECORDING | {"devices": {"hosts": ["slurm:cpu:0"]}}))
    wait_for(lambda: steps(run, 0))
    cluster.stop_controller()
    path, silent = os.environ["PATH"], tmp_path / "squeue"
    silent.write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    silent.chmod(0o755)
    os.environ["PATH"] = f"{tmp_path}:{path}"  # the real one tries for as long as MessageTimeout
    now = seen(run)
    assert (now.state, "Unable to contact slurm controller" in now.reason) == ("running", True)
    os.environ["PATH"] = path
    cluster.begin("slurmctld -i")
    cluster.until(lambda: cluster.state(job_of(run).id) == "RUNNING")
    assert (seen(run).state, run.state().reason) == ("running", None)
    cluster.ask("scancel", str(job_of(run).id))
    assert ended(run).state == "stopped"
    wait_for(lambda: seen(run).reason == f"Slurm job {job_of(run).id} was cancelled")


def test_a_node_that_is_gone_puts_the_job_back(cluster):
    """Its daemon ends with all that it has started, and we say for Slurm that it has noticed."""
    run = launch(from_dict(ENDLESS | TWO))
    wait_for(lambda: steps(run, 0) and steps(run, 1))
    step = next(pid for pid in procs.ancestors(supervisors(run, "n2")[0])
                if b"slurmstepd" in Path(f"/proc/{pid}/cmdline").read_bytes())
    for pid in (cluster.daemon("slurmd -N n2"), step, *supervisors(run, "n2")):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: "waiting for what Slurm makes" in (run.path / "supervisor.log").read_text())
    cluster.ask("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=gone")
    wait_for(lambda: seen(run).state == "queued")
    cluster.begin("slurmd -N n2")
    cluster.ask("scontrol", "update", "NodeName=n2", "State=RESUME")
    cluster.until(cluster.idle)
    assert not supervisors(run, "n1") + supervisors(run, "n2")
    cluster.ask("scontrol", "update", f"JobId={job_of(run).id}", "StartTime=now+2")
    wait_for(lambda: seen(run).attempt == 2 and seen(run).state == "running")
    say("stop", run.id)


def test_the_code_of_the_submission_runs_and_a_resume_takes_what_is_there(cluster, tmp_path):
    """On both nodes, with the data that git ignores."""
    for line in ("init -q", "config user.email a@b", "config user.name a"):
        subprocess.run(["git", *line.split()], check=True)
    (tmp_path / ".gitignore").write_text("data\n")
    (tmp_path / "data").write_text("data\n")
    script = tmp_path / "train.py"
    script.write_text("print('first', open('data').read(), flush=True)\n")
    other = cluster.fill()
    words = ["--set", "devices.hosts=slurm:cpu:0", "--nodes", "2", "--mode", "ddp", "--queue"]
    run = runs.find(say("run", *words, "--", sys.executable, "train.py").strip())
    script.write_text("print('second', flush=True)\n")
    cluster.ask("scancel", str(other))
    assert ended(run).state == "completed", run.state()
    assert all("first data" in run.log(rank).read_text() for rank in (0, 1))
    assert "-print('first', open('data').read(), flush=True)" in say("code", run.id)
    say("resume", run.id)
    assert ended(run).state == "completed", run.state()
    assert all("second" in run.log(rank).read_text() for rank in (0, 1))


def test_limit_and_printed_values(cluster, tmp_path):
    (tmp_path / "train.sh").write_text(PRINTING)
    say("run", "--set", "devices.hosts=slurm:cpu:0", "--limit", "2s", "--metric",
        r"loss: ([\d.]+)", "--set", "run.best=min:loss", "--", "sh", "train.sh", "1")
    run = runs.all_runs()[0]
    assert (run.state().state, run.state().reason) == ("completed", "time was up after 00:02")
    (row,) = json.loads(say("runs", "--json", "--best", "loss"))
    last = int(run.log(0).read_text().split("step ")[-1].split()[0])
    assert row["best"]["value"] == pytest.approx(1 + (9999 - last) / 10_000), row


def test_a_sweep_whose_best_go_on(cluster, tmp_path):
    (tmp_path / "train.sh").write_text(PRINTING)
    say("run", "--grid", "train.lr=1,2,3,4", "--halving", "2", "--limit", "3s", "--metric",
        r"loss: ([\d.]+)", "--set", "run.best=min:loss", "--set", "devices.hosts=slurm:cpu:0",
        "--", "sh", "train.sh", "{lr}")
    found = group.find("last")
    members = [run for run, _ in found.members]
    jobs_of_first = {job_of(run).id for run in members}
    assert len(jobs_of_first) == 4

    def over() -> bool:
        states = [seen(run) for run in members]
        return not any(s.live for s in states) and states[0].state == "completed"

    wait_for(over)
    states = [run.state() for run in members]
    assert [len(s.rungs) for s in states] == [2, 2, 1, 1]
    assert states[2].rests
    assert job_of(members[0]).id not in jobs_of_first  # it went on as jobs of its own


def test_what_waits_for_another_run_or_an_hour(cluster, tmp_path):
    (tmp_path / "train.sh").write_text(PRINTING)
    words = ["--set", "devices.hosts=slurm:cpu:0", "--", "sh", "train.sh", "1"]
    first = say("run", "--queue", *words).split()[-1]
    second = runs.find(say("run", "--queue", "--after", first, "--begin", "+3h",
                           *words).split()[-1])
    shown = cluster.ask("scontrol", "show", "job", str(job_of(second).id))
    assert f"Dependency=afterok:{job_of(runs.find(first)).id}" in shown
    assert "afterok" not in (second.path / "job.sh").read_text()  # nor when it is resumed
    say("stop", first)
    say("stop", second.id)


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_guard_alone_that_is_killed_leaves_nothing(cluster, node):
    run = launch(from_dict(RECORDING | TWO))
    wait_for(lambda: steps(run, 0) and steps(run, 1))
    os.kill(supervisors(run, node)[0], signal.SIGKILL)
    wait_for(lambda: not supervisors(run, "n1") + supervisors(run, "n2"))
    # As Slurm has it: the job is ended with its step, or a node puts it back before.
    wait_for(lambda: seen(run).state in ("failed", "stopped", "queued"))
