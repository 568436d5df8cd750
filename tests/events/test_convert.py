"""Events as lines: every kind there and back, and what is no event."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.events import schema
from gpu_engine.events.reader import BadEvent, decoded
from gpu_engine.events.writer import encode, to_dict

from .. import event_lines
from ..event_lines import from_dict
from . import kinds


def same(a: Any, b: Any) -> bool:
    """Equal, where NaN is NaN; times as they are written, to the millisecond."""
    return repr(to_dict(a)) == repr(to_dict(b)) and type(a) is type(b)


@given(kinds.any_event)
def test_every_kind_comes_back_as_it_was(event):
    line = encode(event)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    told = json.loads(line, parse_constant=lambda _: pytest.fail("not strict"))
    assert told["kind"] == event.kind
    assert same(decoded(line), event)


def test_every_kind_is_tried():
    assert {cls.kind for cls in kinds.KINDS} >= {
        "start", "schedule", "step", "training", "memory", "metric", "eval", "checkpoint",
        "phase", "warning", "error", "end"}


WRITTEN = [
    {"kind": "start", "rank": 1, "local_rank": 1, "node": 0, "pid": 7, "started": 99,
     "device": ["GPU 1"], "world_size": 2, "attempt": 1},
    {"kind": "step", "step": 12, "n": 2, "epoch": 0, "loss": 1.5, "losses": [1.0, 2.0],
     "lr": 0.1, "samples_per_s": 8.0, "data_wait": 0.0, "skipped": 0},
    {"kind": "step", "step": 9, "n": 1, "lr": None, "skipped": 0, "others": {
        "2": {"name": "Adam", "step": 3, "n": 1, "loss": 4.0, "losses": [4.0]}}},
    {"kind": "memory", "rss": 10, "gpu_allocated": [1, 2], "gpu_reserved": [3, 4],
     "gpu_peak": [5, None], "gpu_total": [8, None], "gpu_retries": [3, 0]},
    {"kind": "devices", "ids": ["0", "1"], "clock": [0.5, None], "throttle": ["", None],
     "others": [None, 0.25]},
    {"kind": "metric", "step": 4, "accuracy": 0.5, "odd": None},
    {"kind": "checkpoint", "step": 5, "path": "checkpoints/step-00000005", "seconds": 0.1,
     "bytes": 9, "blocked": 0.0},
    {"kind": "phase", "phase": "data", "since": 2.0, "step": 4, "done": 3, "total": 5},
    {"kind": "error", "type": "E", "message": "m", "traceback": "", "phase": "data", "step": 3,
     "requested": 8},
    {"kind": "end", "outcome": None, "steps": None, "seconds": None},
]


@pytest.mark.parametrize("told", WRITTEN, ids=lambda told: told["kind"])
def test_the_format_of_the_file_is_what_it_was(told):
    """Lines that stand in the run folders of people are written to the letter as they were."""
    event = from_dict({"t": 1.5, **told})
    assert json.loads(encode(event)) == {"t": 1.5, **told}


@pytest.mark.parametrize("line", [
    [], 3, "step", {}, {"kind": "step"}, {"t": 1.0}, {"t": "NaN", "kind": "end"},
    {"t": 1.0, "kind": 3}, {"t": 1.0, "kind": "step"}, {"t": 1.0, "kind": "step", "step": 1.5},
    {"t": 1.0, "kind": "step", "step": True}, {"t": 1.0, "kind": "step", "step": -1},
    {"t": 1.0, "kind": "step", "step": 1 << 70},
    {"t": 1.0, "kind": "step", "step": 1, "losses": [1.0, "x"]},
    {"t": 1.0, "kind": "step", "step": 1, "loss": 10**400},
    {"t": 1.0, "kind": "metric", "step": 1, "a": 10**400},
    {"t": 1.0, "kind": "step", "step": 1, "others": {"a": {}}},
    {"t": 1.0, "kind": "step", "step": 1, "others": {"1": []}},
    {"t": 1.0, "kind": "start", "rank": 0, "device": "cpu"},
    {"t": 1.0, "kind": "error", "type": None, "message": "x"},
    *({"t": time, "kind": "end"} for time in (1e300, -1e18, 1e12, "Infinity", True)),
    *({"t": 1.0, "kind": "phase", "phase": "data", "step": 1, "since": time}
      for time in (1e300, -1e18, 1e12, "NaN"))])
def test_a_field_of_the_wrong_type_is_no_event(line):
    with pytest.raises(BadEvent):
        from_dict(line)


def test_what_a_newer_program_writes_is_left_out():
    assert from_dict({"t": 1.0, "kind": "gossip"}) is None
    event = from_dict({"t": 1.0, "kind": "warning", "message": "x", "colour": 3})
    assert event.message == "x"
    metric = from_dict({"t": 1.0, "kind": "metric", "step": 1, "a": 2, "b": "1", "c": True})
    assert metric.values == {"a": 2.0}


values = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
                      lambda s: st.lists(s, max_size=3)
                      | st.dictionaries(st.text(max_size=3), s, max_size=3), max_leaves=5)


@given(st.sampled_from([*schema.KINDS, "unknown", "__class__"]), st.dictionaries(st.sampled_from(
    sorted({name for told in WRITTEN for name in told} | {"x"})), values))
def test_any_object_is_an_event_or_refused(kind, fields):
    try:
        from_dict({"t": 1.0, **fields, "kind": kind})
    except BadEvent:
        pass


def test_numbers_survive_even_when_not_finite():
    line = event_lines.line("step", {"step": 3, "loss": math.nan,
                                     "losses": [1.5, math.inf, -math.inf]}, t=1.0)
    event = decoded(line)
    assert math.isnan(event.loss)
    assert event.losses == (1.5, math.inf, -math.inf)
    assert encode(event) == event_lines.line("step", {
        "step": 3, "lr": None, "skipped": None, "n": 1, "loss": math.nan,
        "losses": [1.5, math.inf, -math.inf]}, t=1.0)


def test_a_name_that_the_line_needs_itself_is_told_apart():
    event = schema.Metric(3, {"step": 1.0, "kind": 2.0, "kind_": 3.0})
    told = json.loads(encode(event))
    assert (told["step"], told["kind"]) == (3, "metric")
    assert (told["step_"], told["kind__"], told["kind_"]) == (1.0, 2.0, 3.0)
