"""Whatever stands in the small files of a run folder, it is a sound record or none: no command ends
in a traceback, and one damaged run is one row."""

from __future__ import annotations

import contextlib
import json
import math
import types
import typing
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpu_engine.common.errors import UserError
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.remote.run import parts
from gpu_engine.runs import checkpoints, environment, job, notes, sweep, waiting
from gpu_engine.runs import folder as runs
from gpu_engine.runs.judge import judge
from gpu_engine.runs.state import State
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import to_toml

from .. import odd_runs
from ..command_line import called
from ..trust.hostile_runs import STEP, finished, plan_of, prepared, read, state_of

ODD = [None, True, -1, 0, 1, 1.5, 10 ** 400, 1e300, -1e300, math.nan, math.inf, "", "x", "\ud800",
       "\x1b]52;c;eA==\x07", "a\nb", "١٢", [], [[]], [1, "x"], {}, {"a": 1}, [{}], [None], "[1]",
       "{}"]
anything = st.recursive(
    st.sampled_from(ODD) | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner,
                                                                max_size=3), max_leaves=6)

STATE, PLAN = state_of(), plan_of(Path("/x"))


@st.composite
def altered(draw: st.DrawFn, whole: dict[str, Any]) -> Any:
    """`whole` with something else in up to three of its places, at any depth."""
    whole = json.loads(json.dumps(whole))
    for _ in range(draw(st.integers(1, 3))):
        here: Any = whole
        while True:
            keys = list(here) if isinstance(here, dict) else range(len(here))
            key = draw(st.sampled_from(keys))
            if not isinstance(here[key], dict | list) or not here[key] or draw(st.booleans()):
                here[key] = deepcopy(draw(anything))
                break
            here = here[key]
    return whole


hints_of = partial(typing.get_type_hints, include_extras=True)


def fits(value: object, hint: Any) -> bool:
    """Whether a value has the type that its field says."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        low, high = hint.__metadata__[0].ge, hint.__metadata__[0].le
        return fits(value, args[0]) and (low is None or value >= low) \
            and (high is None or value <= high)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, a) for a in args)
    if origin is typing.Literal:
        return value in args
    if origin is tuple:
        return isinstance(value, tuple) and all(fits(v, args[0]) for v in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(k, args[0]) and fits(v, args[1])
                                               for k, v in value.items())
    if is_dataclass(hint):
        return isinstance(value, hint) and all(fits(getattr(value, f.name), hints_of(hint)[f.name])
                                               for f in fields(hint))
    return hint is Any or (type(value) is hint if hint is not None else value is None)


@given(anything | altered(STATE))
@example(STATE)
def test_a_state_is_sound_or_none(data):
    state = State.from_dict(data)
    if state is None:
        return
    assert fits(state, State)
    assert State.from_dict(state.to_dict()) == state
    state.took(1e9)
    json.dumps(state.to_dict(), allow_nan=False)
    assert state.cause is None or isinstance(state.cause.line, str)


@given(anything | altered(PLAN))
@example(PLAN)
def test_a_plan_is_sound_or_none(data):
    plan = LaunchPlan.from_dict(data)
    if plan is None:
        return
    for field in fields(LaunchPlan):
        if field.name != "spec":
            assert fits(getattr(plan, field.name), hints_of(LaunchPlan)[field.name]), field.name
    assert isinstance(plan.spec, RunSpec)
    again = LaunchPlan.from_dict(plan.to_dict())
    assert repr(again) == repr(plan)  # NaN does not equal itself
    assert plan.sentences()
    assert isinstance(to_toml(plan.spec), str)
    assert [r.sentence() for r in plan.ranks] + [plan.interpreter and plan.interpreter.sentence(),
                                                 plan.code and plan.code.sentence()]


@pytest.mark.parametrize("log", ["/etc/passwd", "../../x.log", "ranks/../../x.log", "ranks/",
                                 "a/b.log", ".bashrc"])
def test_a_plan_names_no_log_outside_of_the_run_folder(log):
    process = PLAN["processes"][0] | {"log": log}
    assert LaunchPlan.from_dict(PLAN | {"processes": [process]}) is None


SMALL = {
    "notes.json": (notes.read, notes.Notes), "sweep.json": (sweep.read, sweep.Member),
    "slurm.json": (job.read, job.Job), "queue.json": (waiting.read, waiting.Entry),
    "environment.json": (environment.read, environment.Environment),
    "hosts/a.json": (parts.read, None), "hosts/former/c.json": (parts.former, None),
    f"{STEP}/manifest.json": (lambda run: checkpoints.choose(run / "checkpoints", "best", None),
                              None)}
"""Of each file of a run: what reads it, and what that returns; None: several, or an error."""


@cache
def whole(name: str) -> dict[str, Any]:
    """What stands in this file of a run."""
    with TemporaryDirectory() as folder:
        run = Path(folder, "77aa")
        finished(run)
        return read(prepared(name, run))


@pytest.mark.parametrize("name", SMALL)
@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_small_file_is_a_sound_record_or_none(tmp_path, name, data):
    reader, cls = SMALL[name]
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(data.draw(st.binary(max_size=60) | (
        anything | altered(whole(name))).map(lambda value: json.dumps(value).encode())))
    with contextlib.suppress(*(() if cls else (UserError,))):
        found = reader(tmp_path)
        assert found is None or cls is None or fits(found, cls)
    if name == "slurm.json" and found is not None:
        assert found.sentence()
        json.dumps(job.to_dict(tmp_path), allow_nan=False)
        judge(State.from_dict(STATE), job=found)


def test_a_damaged_state_says_so_in_its_row():
    good = odd_runs.ended()
    path = odd_runs.ended(age=5).path
    (path / "state.json").write_text(json.dumps(STATE | {"attempts": [{"number": "x"}]}))
    said = called("runs")
    assert said.returncode == 0, said.stderr
    rows = {line.split()[0]: line for line in said.stdout.splitlines()}
    assert "state.json is damaged: it holds no state" in rows[path.name]
    assert "completed" in rows[good.id]
    assert runs.Run(path).state().state == "lost"
