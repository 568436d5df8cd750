"""Asking Slurm about all runs together, with stand-ins for its commands that count their calls."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_engine.cli.spec_options import choose_spec
from gpu_engine.common.errors import UserError
from gpu_engine.common.paths import runs_folder
from gpu_engine.places import verbs
from gpu_engine.runs import environment
from gpu_engine.runs import job as jobs
from gpu_engine.runs.create import create_run
from gpu_engine.runs.environment import Environment
from gpu_engine.runs.folder import Run
from gpu_engine.runs.job import Job, Request
from gpu_engine.runs.state import AttemptRecord, State
from gpu_engine.slurm import watch
from gpu_engine.spec.write import to_toml

from ..plans import plan
from ..training.conftest import TOY
from .kit import job_of

WIDTHS = (20, 20, 10, 30, 30, 500, 200)


class Programs:
    """Stand-ins for squeue, sacct, scancel and scontrol."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\necho {name} \"$@\" >> {self.folder}/calls\n{text}\n")
        path.chmod(0o755)

    def lists(self, *jobs: tuple[str, ...]) -> None:
        """squeue shows these, each a column's values."""
        lines = ["".join(text.ljust(width) for text, width in zip(job, WIDTHS, strict=True))
                 for job in jobs]
        (self.folder / "listed").write_text("\n".join(["CLUSTER: trial", *lines, ""]))
        self.put("squeue", f"cat {self.folder}/listed")

    def calls(self, name: str) -> list[str]:
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(f"{name} ")]


@pytest.fixture
def slurm(home, tmp_path, monkeypatch) -> Programs:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))  # this machine may have Slurm
    for name in ("cat", "env", "sleep"):
        (folder / name).symlink_to(f"/bin/{name}")
    programs = Programs(folder)
    programs.put("sacct", "echo 'sacct: error: Slurm accounting storage is disabled' >&2; exit 1")
    for name in ("scancel", "scontrol"):
        programs.put(name, "")
    return programs


def submitted(number: int, **more) -> Run:
    run, lock = create_run("toy", "", plan())
    os.close(lock)
    jobs.write(run.path, Job(number, **more))
    return run


def test_one_call_for_all_runs_and_none_without_jobs(slurm):
    run, lock = create_run("toy", "", plan())
    os.close(lock)
    slurm.lists()
    watch.refresh()
    assert not slurm.calls("squeue")
    runs = [submitted(i) for i in range(1, 21)]
    submitted(99, state="COMPLETED")
    slurm.lists(*((str(i), "PENDING", "2", "1800000000", "N/A", "", "Resources")
                  for i in range(1, 21)))
    for _ in range(3):
        watch.refresh()
    assert len(slurm.calls("squeue")) == 1
    assert {job_of(r) for r in runs} == {
        Job(i, reason="Resources", restarts=2, expected=1_800_000_000.0) for i in range(1, 21)}
    assert run.state().state == "lost"  # it is no job
    watch.refresh(at_once=True)
    assert len(slurm.calls("squeue")) == 2
    ahead = time.time() + 86400.0
    os.utime(runs_folder() / watch._STAMP, (ahead, ahead))  # the clock was set back since
    watch.refresh()
    assert len(slurm.calls("squeue")) == 3
    assert not slurm.calls("sacct")


def test_what_squeue_no_longer_lists_is_asked_of_the_accounting(slurm):
    one, other = submitted(7, state="RUNNING", nodes="n1", restarts=2), submitted(8)
    slurm.lists()
    slurm.put("sacct", "echo '7|CANCELLED by 1000|5|9|n1'; echo '7.batch|FAILED|5|9|n1';"
                       "echo '8|CANCELLED by 0|9|9|None assigned'")
    watch.refresh()
    assert slurm.calls("sacct") == [
        "sacct --noheader --parsable2 --allocations --jobs=7,8 "
        "--format=JobIDRaw,State,Start,End,NodeList"]
    assert (job_of(one).state, job_of(one).ended, job_of(one).nodes) == ("CANCELLED", 9.0, "n1")
    assert job_of(one).restarts == 2  # of which the accounting says nothing
    assert other.state().reason == "Slurm job 8 was cancelled by root before it ran"


def test_slurm_that_cannot_be_asked_changes_no_state(slurm):
    run = submitted(7, reason="Priority")
    slurm.put("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller "
                        "(connect failure)' >&2; exit 1")
    watch.refresh()
    state = run.state()
    assert state.state == "queued"
    assert state.reason.endswith("Unable to contact slurm controller (connect failure)")
    since = job_of(run).since
    watch.refresh(at_once=True)
    assert job_of(run).since == since
    before = len(slurm.calls("squeue"))
    stamp = watch.runs_folder() / watch._STAMP
    os.utime(stamp, (time.time() - 10,) * 2)
    watch.refresh()  # it is not asked as often as one that answers
    assert len(slurm.calls("squeue")) == before
    with pytest.raises(UserError, match=r"Slurm can't be asked: .*scancel 7 cancels it"):
        verbs.stop(run)
    slurm.lists(("7", "RUNNING", "0", "5", "N/A", "n1", "None"))
    watch.refresh(at_once=True)
    assert job_of(run) == Job(7, state="RUNNING", nodes="n1")
    (slurm.folder / "squeue").unlink()
    watch.refresh(at_once=True)
    assert run.state().reason.endswith("squeue is not installed on this machine")


def test_a_run_that_is_resumed_while_slurm_is_asked_keeps_its_new_job(slurm, monkeypatch):
    run = submitted(7)

    def meanwhile():
        jobs.write(run.path, Job(8))
        return {7: Job(7, "TIMEOUT", ended=9.0)}

    monkeypatch.setattr(watch.commands, "jobs", meanwhile)
    watch.refresh()
    assert job_of(run) == Job(8)


def test_a_stopped_job_that_goes_back_to_the_queue_is_cancelled(slurm):
    run = submitted(7, state="RUNNING", nodes="n1")
    jobs.ask_to_stop(run.path)
    slurm.lists(("7", "PENDING", "1", "1800000000", "N/A", "", "BeginTime"))
    watch.refresh()
    assert slurm.calls("scancel") == ["scancel 7"]
    assert run.state().state == "stopping"


def test_a_stop_that_is_refused_leaves_the_run_as_it_was(slurm):
    run = submitted(7)
    slurm.lists(("7", "PENDING", "0", "N/A", "N/A", "", "Priority"))
    slurm.put("scancel", "echo 'scancel: error: Kill job error on job id 7: Access denied' >&2; "
                         "exit 1")
    with pytest.raises(UserError, match="Kill job error on job id 7: Access denied"):
        verbs.stop(run)
    assert not jobs.asked_to_stop(run.path)
    assert run.state().state == "queued"


@pytest.mark.parametrize(("reported", "now", "calls"), [
    (True, False, ["scancel --signal=USR1 7"]),
    (True, True, ["scancel --signal=KILL 7.0", "scancel 7"]),
    (False, False, ["scancel 7"])])  # no rank is there that could save
def test_how_a_job_that_runs_is_stopped(slurm, reported, now, calls):
    run = submitted(7)
    slurm.lists(("7", "RUNNING", "0", "5", "N/A", "n1", "None"))
    if reported:
        run.write_state(State("running", run.id, "toy", 1.0, pid=3, attempts=(
            AttemptRecord(1, 2.0, requeued=0),)))
    verbs.stop(run, now=now)
    assert slurm.calls("scancel") == calls
    assert slurm.calls("scontrol") == ["scontrol update JobId=7 Requeue=0"]
    assert run.state().state == "stopping"
    if reported and not now:
        verbs.stop(run)
        assert slurm.calls("scancel")[1:] == ["scancel --signal=INT 7"]


def test_who_is_ended_while_sbatch_does_not_answer_leaves_no_run(slurm, home, tmp_path):
    """And it is said at once what is waited for."""
    slurm.put("sbatch", f"while [ ! -e {tmp_path}/answers ]; do sleep 0.1; done; exit 1")
    waits = subprocess.Popen(
        [sys.executable, "-m", "gpu_engine", "run", "--detach", "--set",
         "devices.hosts=slurm:cpu:0", "--", "/bin/true"], stderr=subprocess.PIPE, text=True)
    assert waits.stderr is not None
    assert "sbatch has not answered yet" in waits.stderr.readline()
    waits.terminate()
    (tmp_path / "answers").touch()
    assert waits.wait() == -signal.SIGTERM
    assert not list(runs_folder().iterdir())


def test_a_resume_that_is_refused_leaves_the_run_as_it_was(slurm, monkeypatch):
    spec = choose_spec(None, [f"task.use={TOY}", "batch.size=8", "devices.hosts=slurm:cpu:0"]).spec
    run, lock = create_run("toy", to_toml(spec), plan())
    os.close(lock)
    run.write_state(State("stopped", run.id, "toy", 1.0, ended=2.0, attempts=(
        AttemptRecord(1, 1.5, 2.0, "stopped", requeued=0),)))
    jobs.write(run.path, Job(7, state="FAILED", nodes="n1", request=Request(1, 1)))
    jobs.ask_to_stop(run.path)
    environment.write(run.path, Environment(code="0" * 64))
    before = {p.name: p.read_bytes() for p in run.path.iterdir() if p.is_file()}
    slurm.put("sbatch", "echo 'sbatch: error: Batch job submission failed: Access denied' >&2; "
                        "exit 1")
    for start, says in (("newest", "Batch job submission failed: Access denied"),
                        ("best", "checkpoint")):
        with pytest.raises(UserError, match=says):
            verbs.resume(run, start=start)
        assert {p.name: p.read_bytes() for p in run.path.iterdir()
                if p.is_file() and p.name != jobs.SCRIPT} == before
    slurm.put("sbatch", "echo 8")
    verbs.resume(run, ["train.steps=9"])
    assert job_of(run) == Job(8, request=Request(1, 1))
    assert (run.state().state, run.state().attempt) == ("queued", 2)
    assert run.state().changed[-1] == "train.steps=9"
    assert not jobs.asked_to_stop(run.path)
