"""How often a command that follows a run on hosts starts its process here again."""

from __future__ import annotations

import pytest

from gpu_engine.launching import reattach
from gpu_engine.remote.run import parts
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import State


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch, tmp_path) -> list[Run]:
    """The runs that were taken up, of which each process is killed at once."""
    out: list[Run] = []
    (tmp_path / parts.FOLDER).mkdir()
    monkeypatch.setattr(reattach, "reattach", lambda run: out.append(run) or True)
    return out


def test_a_process_that_ends_each_time_is_not_started_for_ever(taken, tmp_path):
    goes_on = reattach.StillOn(Run(tmp_path))
    assert [goes_on(State("running", "0a1b", "x", 1.0)) for _ in range(8)] \
        == [True] * 5 + [False] * 3


@pytest.mark.parametrize("state", ["completed", "stopped", "failed"])
def test_a_run_that_has_ended_is_left_alone(taken, tmp_path, state):
    assert not reattach.StillOn(Run(tmp_path))(State(state, "0a1b", "x", 1.0))
    assert not taken
