"""Runs as jobs of a real Slurm: submitted, queued, running, stopped, cancelled."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from gpu_engine.cli import cli
from gpu_engine.common.errors import UserError
from gpu_engine.notify import config, journal
from gpu_engine.places import verbs
from gpu_engine.runs import folder as runs
from gpu_engine.runs import job as jobs
from gpu_engine.runs import leftovers
from gpu_engine.runs.folder import Run
from gpu_engine.runs.follow import Follower
from gpu_engine.runs.job import Job

from ..conftest import wait_for
from ..notify.endpoint import endpoint, private
from ..training.conftest import TOY
from .kit import STOOD_IN, job_of, say, seen

pytestmark = pytest.mark.root


def submitted(*args: str) -> tuple[Run, int]:
    """A run on one CPU slot, and its job's number."""
    said = say("slurm", "--submit", "--devices", "cpu:0", *args)
    run = runs.find(said.split()[1])
    return run, job_of(run).id


def listed(run: Run) -> dict[str, Any]:
    """What scripts are told of it."""
    (found,) = [r for r in json.loads(say("runs", "--json")) if r["id"] == run.id]
    return found


# --- from the queue to the end -------------------------------------------------------------------

def test_a_run_waits_trains_and_stops_with_a_checkpoint(cluster):
    other = cluster.fill()
    words = [f"task.use={TOY}", "batch.size=8", "task.params.pause=0.05", "train.steps=1000000",
             "train.workers=0", "parallel.mode=single"]
    run, job = submitted(*(word for text in words for word in ("--set", text)))
    waits = f"Slurm job {job} waits (Resources)"
    wait_for(lambda: seen(run).reason == waits)
    assert f"{run.id}  queued " in (said := say("runs")), said
    assert waits in said
    assert waits in say("show", run.id)
    cluster.ask("scancel", str(other))
    follower = Follower(run)
    wait_for(lambda: (follower.poll(), follower.progress().step)[1])
    assert (seen(run).state, seen(run).attempt) == ("running", 1)
    assert f"Slurm job {job} is running on n1" in say("show", run.id)
    there = "srun", f"--jobid={job}", "--overlap", "gpu-engine", "stacks", run.id
    assert f"it is asked on its node: {' '.join(there)}\n" in say("stacks", run.id, code=1)
    ours = sys.executable, "-m", "gpu_engine", *there[4:]
    assert "(most recent call first)" in cluster.ask(*there[:3], *ours)
    assert say("stop", run.id).endswith(f"{run.id} stopped\n")
    assert run.state().attempts[-1].reason is None  # in training
    assert leftovers.last_checkpoint(run.path)
    assert "stopped after step" in say("logs", run.id)
    assert (cluster.state(job), job_of(run).restarts) == ("FAILED", 0)  # its exit code is 75
    assert listed(run)["slurm"]["nodes"] == "n1"
    assert say("runs", "rm", "--yes", run.id).startswith(f"{run.id} removed")


def test_a_job_that_slurm_requeues_waits_again_and_is_then_cancelled(cluster, tmp_path):
    run, job = submitted(*STOOD_IN)
    wait_for(lambda: seen(run).state == "running")
    cluster.ask("scancel", "--signal=USR1", str(job))  # as Slurm warns before the time limit
    # Slurm says why some time after it has put it back.
    state = wait_for(lambda: (now := seen(run)).state == "queued"
                     and "BeginTime" in (now.reason or "") and now)
    assert "stopped and saved: job" in say("logs", run.id, "--supervisor")
    assert "waits (BeginTime), probably until" in state.reason
    assert (job_of(run).restarts, state.attempts[-1].outcome) == (1, "stopped")
    # Not sooner: Slurm refuses a start in the second in which it has ended the one before.
    cluster.ask("scontrol", "update", f"JobId={job}", "StartTime=now+2")
    state = wait_for(lambda: (now := seen(run)).state == "running" and now)
    assert [a.requeued for a in state.attempts] == [0, 1]
    cluster.ask("scontrol", "requeue", str(job))
    wait_for(lambda: seen(run).state == "queued")
    assert f"{run.id} stopped: Slurm job {job} was cancelled\n" in say("stop", run.id)
    assert cluster.state(job) == "CANCELLED"
    assert f"{run.id}: its job" not in say("runs")


@pytest.mark.parametrize(("option", "ends", "says"), [
    ([], "saved\n", ""),
    (["--now"], "", "was ended before its ranks could save")], ids=["", "now"])
def test_a_stop_reaches_the_ranks_and_does_not_requeue(cluster, tmp_path, option, ends, says):
    """Also of a job that was submitted with the script alone."""
    script = tmp_path / "job.sh"
    say("slurm", "--devices", "cpu:0", "--output", str(script),
        *STOOD_IN)
    job = int(cluster.ask("sbatch", "--parsable", str(script)))
    wait_for(lambda: any(run.id == f"slurm-{job}" for run in runs.all_runs()))
    run = runs.find(f"slurm-{job}")
    # Python that is interrupted while it starts prints why and ends: the script is to have begun.
    wait_for(lambda: seen(run).state == "running" and "waits" in run.log(0).read_text())
    said = say("stop", run.id, *option)
    assert f"{run.id} stopped" in said
    assert says in said
    cluster.until(lambda: not cluster.ask("squeue", "-h"))
    assert job_of(run).restarts == 0
    assert cluster.state(job) in ("CANCELLED", "FAILED")
    out = run.log(0).read_text()
    assert ends in out
    assert "goes back to the queue" not in out


def test_a_resume_is_another_job_of_the_same_run(cluster, tmp_path):
    """With what was asked of Slurm at first. The setting stands with the attempt."""
    run, first = submitted("-o", "comment=mine", *STOOD_IN)
    wait_for(lambda: seen(run).state == "running")
    say("stop", run.id)
    before = (run.path / "spec.toml").read_text()
    with pytest.raises(UserError, match="checkpoint"):
        verbs.resume(run, start="7")
    assert run.state().state == "stopped"
    other = cluster.fill()
    said = say("resume", run.id, "--set", "run.grace=7")
    job = job_of(run).id
    assert job != first
    assert said.startswith(f"run {run.id} submitted: Slurm job {job} ")
    assert (seen(run).state, run.state().attempt) == ("queued", 2)
    assert "comment=mine" in (run.path / "job.sh").read_text()
    now = (run.path / "spec.toml").read_text()
    assert ("grace = 7" in now, "grace = 7" in before) == (True, False)
    assert cluster.ask("squeue", "-h", "-j", str(job), "-o", "%k").strip() == "mine"
    cluster.ask("scancel", str(other))
    state = wait_for(lambda: (now := seen(run)).state == "running" and now)
    assert [(a.number, a.outcome) for a in state.attempts] == [(1, "stopped"), (2, None)]
    assert say("stop", run.id).endswith(f"{run.id} stopped\n")


# --- without having run --------------------------------------------------------------------------

def test_cancelled_while_it_waits(cluster, tmp_path):
    cluster.fill()
    mine, job = submitted(*STOOD_IN)
    other, number = submitted(*STOOD_IN)
    assert say("stop", mine.id) == \
        f"{mine.id} stopped: Slurm job {job} was cancelled before it ran\n"
    assert cluster.state(job) == "CANCELLED"
    cluster.ask("scancel", str(number))  # as a person may type
    state = seen(other)
    assert (state.state, state.reason) == (
        "stopped", f"Slurm job {number} was cancelled before it ran")
    assert say("stop", mine.id, code=1) == ""


def test_ranks_that_fail_before_they_report(cluster, tmp_path):
    """Somebody is told of it, by this machine and not by the job's."""
    (tmp_path / "dies").touch()
    with endpoint(200) as there:
        private(config.path(), f'[[to]]\nkind = "json"\nurl = "{there.url}"\n')
        run, _ = submitted(*STOOD_IN)
        state = wait_for(lambda: not (now := seen(run)).live and now)
        assert (state.state, state.reason) == (
            "failed", "rank 0: exited with 1")
        wait_for(lambda: (seen(run), listed(run)["slurm"]["state"] == "FAILED")[1])
        wait_for(lambda: there.got)
        assert (there.got[0].json["run"], there.got[0].json["cause"]) == (run.id, state.reason)
        wait_for(lambda: [result for _, _, result in journal.read(run.path)] == ["sent"])
    assert len(there.got) == 1


def test_a_job_that_slurm_forgets_is_lost(cluster, tmp_path):
    cluster.fill()
    run, job = submitted(*STOOD_IN)
    jobs.write(run.path, replace(job_of(run), id=4_000_000))
    state = seen(run)
    assert (state.state, state.reason) == (
        "lost", "Slurm job 4000000 is no longer known to Slurm: Slurm accounting storage is "
                "disabled")
    jobs.write(run.path, Job(job))
    assert seen(run).state == "queued"


# --- refused -------------------------------------------------------------------------------------

@pytest.mark.parametrize(("more", "words"), [
    (["--partition", "none"], "the job was not submitted: invalid partition specified: none; "
                              "Batch job submission failed: Invalid partition name specified"),
    (["--time", "soon"], "the job was not submitted: Invalid --time specification"),
    (["-o", "output=here"], "-o output: the output of a submitted run goes into its run folder"),
    (["--output", "x.sh"], "leave one out")])
def test_what_is_refused_leaves_nothing(cluster, home, tmp_path, more, words):
    done = CliRunner().invoke(cli, ["slurm", "--submit", "--devices", "cpu:0", *more,
                                    *STOOD_IN])
    assert isinstance(done.exception, UserError)
    assert words in str(done.exception)
    assert not (home / "runs").exists() or not runs.all_runs()
    assert not cluster.ask("squeue", "-h")
