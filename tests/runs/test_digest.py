"""What lists tell of a run, and when the file that says so is believed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.runs import digest
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import State

from .. import odd_runs
from ..command_line import called
from ..event_lines import line
from .test_any_value import altered, anything, fits


def settings(spec: object) -> dict[str, str]:
    """What is known of a run with this spec in its plan."""
    run = odd_runs.ended()
    path = run.path / "plan.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"spec": spec}))
    return dict(digest.of(run).settings)


def test_keys_have_their_values_as_they_are_set():
    assert settings({
        "train": {"lr": 0.1, "steps": None, "amp": True, "params": {}},
        "run": {"env": {"A": "1", "B": None}, "grace": 5},
        "devices": {"ids": ["cpu:0", "cpu:1"]},
        "task": {"params": {"deep": {"a": {"b": 1}}}}}) == {
            "train.lr": "0.1", "train.amp": "true", "run.env.A": "1", "run.grace": "5",
            "devices.ids": "cpu:0,cpu:1", "task.params.deep": "…"}


@pytest.mark.parametrize("spec", [None, [], "x", {"train": None}, {"train": [1]}])
def test_a_spec_that_is_none_has_no_keys(spec):
    assert settings(spec) == {}


def test_what_is_kept_is_bounded():
    found = settings({"run": {"env": {f"{'K' * 120}": "1", "LONG": "x" * 999}
                              | {f"K{at}": "1" for at in range(999)}}})
    assert len(found) == 300
    assert max(map(len, found)) <= 100
    assert len(found["run.env.LONG"]) == 200


def trained(*losses: float) -> Run:
    run = odd_runs.ended()
    run.events(0).write_bytes(b"".join(line("step", {"step": step, "n": 1, "loss": loss})
                                       for step, loss in enumerate(losses, 1)))
    return run


def kept(run: Run) -> bool:
    return (run.path / digest.FILE).exists()


def test_whoever_looks_first_keeps_what_it_has_read_and_the_next_reads_that(monkeypatch):
    run = trained(3.0, 1.0, 2.0, float("nan"))
    first = digest.read(run)
    monkeypatch.setattr(digest, "sample", lambda *_, **__: pytest.fail("reads events"))
    assert repr(digest.read(run)) == repr(first)  # NaN too
    assert (first.figures.steps, first.figures.values["loss"].least) == (4, 1.0)
    assert called("runs", "--best", "loss").stdout == called("runs", "--best", "loss").stdout


def test_nothing_is_kept_of_a_run_that_goes_on_or_in_a_folder_that_is_not_ours_alone():
    run = trained(1.0)
    assert digest.read(run, keep=False).figures.loss == 1.0
    assert not kept(run)
    run.path.chmod(0o770)
    assert digest.read(run).figures.loss == 1.0
    assert not kept(run)
    run.path.chmod(0o700)
    run.write_state(replace(run.state(), state="queued"))
    (run.path / "lock").unlink()
    assert digest.read(run).state == "lost"  # its supervisor was killed
    assert kept(run)
    assert digest.find(run).reason == run.state().reason


@pytest.mark.parametrize("what", ["another attempt", "more events", "a job"])
def test_what_was_kept_before_something_changed_is_not_believed(what):
    run = trained(1.0)
    assert digest.read(run).figures.loss == 1.0
    if what == "another attempt":
        run.write_state(State("failed", run.id, "toy", 1.0, attempt=2, ended=9.0, reason="boom"))
    elif what == "a job":
        (run.path / "slurm.json").write_text("{}")
    else:  # as what a host was still to send
        run.events(1).write_bytes(line("step", {"step": 1, "n": 1, "loss": 3.0}))
    assert digest.find(run) is None
    found = digest.read(run)
    assert (found.reason, found.figures.loss) == {
        "another attempt": ("boom", 1.0), "more events": (None, 2.0), "a job": (None, 1.0)}[what]
    assert digest.find(run) == found


def test_more_than_a_file_may_hold_is_read_each_time():
    run = odd_runs.ended()
    run.events(0).write_bytes(line("metric", {"step": 1} | {f"{'x' * 60}{n}": 1.0
                                                            for n in range(3000)}))
    assert len(digest.read(run).figures.values) == 3000
    assert not kept(run)


KEPT = {"stamp": [1], "digest": {
    "state": "completed", "preset": "toy", "created": 1.0, "started": 1.0, "ended": 2.0,
    "seconds": 1.0, "reason": None, "warnings": ["w"], "spans": [[1.0, 2.0]], "devices": ["GPU 0"],
    "task": "t", "mode": "ddp", "replicas": 1, "world_size": 1, "steps": 1, "epochs": None,
    "best": None, "settings": {"train.lr": "1"}, "figures": {
        "steps": 1, "total": 1, "values": {"loss": {"least": 1.0, "greatest": 1.0, "last": "NaN"}},
        "samples_per_s": 1.0, "steps_per_s": 1.0, "means": [1.0, "NaN"], "exact": True}}}


@given(altered(KEPT) | anything | st.just(KEPT))
def test_whatever_stands_there_is_sound_or_not_believed(data):
    try:
        found = digest.decoded(json.dumps(data).encode())
    except ValueError:
        return
    assert fits(found.digest, digest.Digest)
