"""What a list of runs knows of each without its events."""

from __future__ import annotations

import json

import pytest

from gpu_engine.runs import summary

from .. import odd_runs


def settings(spec: object) -> dict[str, str]:
    """What is known of a run with this spec in its plan."""
    run = odd_runs.ended()
    path = run.path / "plan.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"spec": spec}))
    found = summary.read(run)
    return dict(found.settings)


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
