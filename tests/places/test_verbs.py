"""What is asked of the place of a run that somebody follows."""

from __future__ import annotations

import pytest

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
