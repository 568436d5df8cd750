"""The state of a run, from what its supervisor wrote and what its place said."""

from dataclasses import replace

import pytest

from gpu_engine.runs import job as jobs
from gpu_engine.runs.job import Job
from gpu_engine.runs.judge import UNHEARD, judge
from gpu_engine.runs.state import AttemptRecord, State

NEW = State("queued", "1cfe", "toy", 1.0)
"""As the submission writes it."""


def wrote(name, *requeued, outcome=None):
    """What rank 0 wrote in the start after so many requeues."""
    attempts = tuple(AttemptRecord(i, 2.0 * i, outcome=outcome, requeued=n)
                     for i, n in enumerate(requeued, 1))
    return State(name, "1cfe", "toy", 1.0, started=2.0, attempt=len(requeued), pid=7, ticks=8,
                 attempts=attempts, ended=9.0 if outcome else None)


def job(state, restarts=0, **more):
    return Job(41007, state=state, restarts=restarts, **more)


@pytest.mark.parametrize(("recorded", "slurm", "state", "pid"), [
    (NEW, job("PENDING"), "queued", None),
    (NEW, job("CONFIGURING", nodes="n1"), "starting", None),
    (NEW, job("RUNNING", nodes="n1"), "starting", None),
    (NEW, job("CANCELLED"), "stopped", None),
    (NEW, job("FAILED", nodes="n1"), "failed", None),
    (NEW, job("COMPLETED", nodes="n1"), "failed", None),
    (NEW, job(jobs.GONE), "lost", None),
    # The ranks have reported since Slurm was asked.
    (wrote("running", 0), job("PENDING"), "running", 7),
    (wrote("running", 0), job("RUNNING", nodes="n1"), "running", 7),
    (wrote("running", 0), job("SUSPENDED", nodes="n1"), "running", 7),
    (wrote("running", 0), job("NODE_FAIL", nodes="n1"), "failed", 7),
    (wrote("running", 0), job("TIMEOUT", nodes="n1"), "failed", 7),
    (wrote("running", 0), job("OUT_OF_MEMORY", nodes="n1"), "failed", 7),
    (wrote("running", 0), job("CANCELLED", nodes="n1"), "stopped", 7),
    (wrote("running", 0), job(jobs.GONE, nodes="n1"), "lost", 7),
    (wrote("completed", 0, outcome="completed"), job("COMPLETING", nodes="n1"), "completed", 7),
    (wrote("completed", 0, outcome="completed"), job(jobs.GONE), "completed", 7),
    (wrote("failed", 0, outcome="failed"), job("FAILED", nodes="n1"), "failed", 7),
    (wrote("stopped", 0, outcome="stopped"), job("FAILED", nodes="n1"), "stopped", 7),
    # They have saved, and the script is about to put the job back.
    (wrote("stopped", 0, outcome="stopped"), job("RUNNING", nodes="n1"), "stopping", None),
    # It was requeued: what was recorded is of an earlier start.
    (wrote("stopped", 0, outcome="stopped"), job("PENDING", 1), "queued", None),
    (wrote("running", 0), job("PENDING", 1), "queued", None),
    (wrote("stopped", 0, outcome="stopped"), job("RUNNING", 1, nodes="n2"), "starting", None),
    (wrote("running", 0, 1), job("RUNNING", 1, nodes="n2"), "running", 7),
    (wrote("failed", 0, outcome="failed"), job("CANCELLED", 1), "stopped", 7),
])
def test_the_state(recorded, slurm, state, pid):
    found = judge(recorded, job=slurm, stop=False)
    assert (found.state, found.pid) == (state, pid)
    assert found.attempts == recorded.attempts
    if found.live:
        assert (found.ended, found.exit_code, found.cause) == (None, None, None)


@pytest.mark.parametrize(("recorded", "slurm", "state"), [
    (NEW, job("PENDING"), "stopping"),
    (NEW, job("CANCELLED"), "stopped"),
    (NEW, job("COMPLETED", nodes="n1"), "stopped"),
    (wrote("running", 0), job("RUNNING", nodes="n1"), "stopping"),
    (wrote("running", 0), job("FAILED", nodes="n1"), "stopped"),
    (wrote("stopped", 0, outcome="stopped"), job("FAILED", nodes="n1"), "stopped"),
    (wrote("completed", 0, outcome="completed"), job("COMPLETED", nodes="n1"), "completed")])
def test_after_a_person_has_stopped_it(recorded, slurm, state):
    assert judge(recorded, job=slurm, stop=True).state == state


@pytest.mark.parametrize(("slurm", "stop", "says"), [
    (job("CANCELLED", reason="by anna", nodes="n1"), False,
     "Slurm job 41007 was cancelled by anna"),
    (job("PREEMPTED", nodes="n1"), False, "Slurm job 41007 was preempted"),
    (job("FAILED", nodes="n1", words="saved 13"), False, "Slurm job 41007 failed"),
    (job(jobs.GONE), False, f"asked to stop {jobs.BY_SLURM}"),
    (job("FAILED", nodes="n1"), True, f"asked to stop {jobs.BY_SLURM}")])
def test_why_it_stopped_is_what_slurm_says_of_it(slurm, stop, says):
    saved = replace(wrote("stopped", 0, outcome="stopped"), reason=f"asked to stop {jobs.BY_SLURM}")
    assert judge(saved, job=slurm, stop=stop).reason == says
    worse = replace(saved, reason="worse than 3 of 3 after 00:03")
    assert judge(worse, job=slurm, stop=stop).reason == worse.reason


def test_an_attempt_outside_of_a_job_is_not_one_of_its_starts():
    local = replace(wrote("running", 0), attempts=(AttemptRecord(1, 2.0),))
    assert judge(local, job=job("RUNNING", nodes="n1")).state == "starting"


def test_only_a_place_that_was_asked_says_that_a_run_is_lost():
    """Here the lock has said it. The hosts of a run go on while nobody here asks them."""
    running, ended = wrote("running", None), wrote("failed", None, outcome="failed")
    assert judge(running, held=True) == running == judge(running, held=True, there=(0, 1))
    lost = judge(running)
    assert (lost.state, lost.exit_code) == ("lost", 1)
    away = judge(running, there=(0, 1))
    assert (away.state, away.unheard, away.reason) == ("running", (0, 1), UNHEARD)
    waits = replace(NEW, reason="waits for GPU 0")
    assert judge(NEW, waits=waits) == waits
    assert judge(ended) == ended == judge(ended, there=(0,))


@pytest.mark.parametrize(("slurm", "says"), [
    (job("PENDING"), "was submitted"),
    (job("PENDING", reason="None"), "was submitted"),
    (job("PENDING", reason="Resources"), "waits (Resources)"),
    (job("PENDING", reason="Licenses"), "waits (Licenses)"),
    (job("RUNNING", nodes="n[1-2]"), "is running on n[1-2]"),
    (job("CANCELLED"), "was cancelled before it ran"),
    (job("CANCELLED", nodes="n1"), "was cancelled"),
    (job("CANCELLED", 1), "was cancelled"),  # it ran, and was in the queue again
    (job("FAILED", nodes="n1", words="no torch here"), "failed: no torch here"),
    (job("TIMEOUT", nodes="n1"), "reached its time limit"),
    (job(jobs.GONE, words="Slurm accounting storage is disabled"),
     "is no longer known to Slurm: Slurm accounting storage is disabled"),
    (job("RUNNING", nodes="n1", doubt="squeue is not installed on this machine"),
     "is running on n1; Slurm can't be asked since some time: squeue is not installed on this "
     "machine")])
def test_what_is_said_of_it(slurm, says):
    assert slurm.sentence() == f"Slurm job 41007 {says}"


def test_it_is_read_as_it_was_written(tmp_path):
    assert jobs.read(tmp_path) is None
    known = job("PENDING", 3, reason="Priority", expected=5.0)
    jobs.write(tmp_path, known)
    jobs.ask_to_stop(tmp_path)
    assert (jobs.read(tmp_path), jobs.asked_to_stop(tmp_path)) == (known, True)
    (tmp_path / jobs.FILE).write_text('{"id": "x"}')
    assert jobs.read(tmp_path) is None
    jobs.forget(tmp_path)
    assert not list(tmp_path.iterdir())
