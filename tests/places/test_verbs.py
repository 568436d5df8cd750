"""What is asked of the place of a run that somebody follows."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from gpu_engine.cli import cli
from gpu_engine.places import verbs
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import State


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The looks at a run on hosts whose process here is killed at once, each time."""
    out: list[Run] = []
    monkeypatch.setattr(verbs, "look", lambda run: out.append(run) or True)
    return out


def test_a_process_that_ends_each_time_is_not_started_for_ever(looks, tmp_path):
    goes_on = verbs.Followed(Run(tmp_path), every=0.0)
    assert [goes_on(State("running", "0a1b", "x", 1.0)) for _ in range(8)] \
        == [True] * 5 + [False] * 3


@pytest.mark.parametrize("state", ["completed", "stopped", "failed"])
def test_a_run_that_has_ended_is_left_alone(looks, tmp_path, state):
    assert not verbs.Followed(Run(tmp_path))(State(state, "0a1b", "x", 1.0))
    assert not looks


@pytest.mark.parametrize(("live", "elsewhere", "exit_code"), [
    (False, False, 0), (True, False, 1), (False, True, 1)])
def test_a_stop_says_by_its_exit_that_something_may_go_on(
        monkeypatch, tmp_path, live, elsewhere, exit_code):
    """As nobody can follow it, or on a host that was not heard."""
    run, state = Run(tmp_path), State("running" if live else "stopped", "0a1b", "x", 1.0)
    monkeypatch.setattr(Run, "state", lambda _: state)
    for name, does in (("find", lambda _: run), ("stop", lambda *_, **__: None),
                       ("goes_on", lambda _: elsewhere), ("look", lambda *_, **__: False),
                       ("Followed", lambda _: lambda _: False)):
        monkeypatch.setattr(verbs, name, does)
    assert CliRunner().invoke(cli, ["stop", "0a1b"]).exit_code == exit_code
