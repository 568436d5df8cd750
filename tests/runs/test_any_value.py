"""Whatever stands in the small files of a run folder, it is a sound record or none: no command ends
in a traceback, and one damaged run is one row."""

from __future__ import annotations

import json
import math
import types
import typing
from copy import deepcopy
from dataclasses import asdict, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpu_engine.plan.records import Code, Interpreter, LaunchPlan, Process, ResumeFrom
from gpu_engine.runs import environment, job, notes, sweep, waiting
from gpu_engine.runs import folder as runs
from gpu_engine.runs.state import AttemptRecord, Cause, RankProcess, State
from gpu_engine.spec.schema import RunSpec

from .. import odd_runs, plans
from ..command_line import called

ODD = [None, True, -1, 0, 1, 1.5, 10 ** 400, 1e300, -1e300, math.nan, math.inf, "", "x", "\ud800",
       "\x1b]52;c;eA==\x07", "a\nb", "١٢", [], [[]], [1, "x"], {}, {"a": 1}, [{}], [None], "[1]",
       "{}"]
anything = st.recursive(
    st.sampled_from(ODD) | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner,
                                                                max_size=3), max_leaves=6)

STATE = State(
    "failed", "5c2a", "toy", 1.7e9, started=1.7e9, ended=1.7e9 + 5, attempt=2, pid=4711, ticks=5,
    boot="b", processes=(RankProcess(0, 4712, 6, -9), RankProcess(1, 4713, 6)), exit_code=1,
    reason="rank 0: no", cause=Cause("no", 0, "OSError", "Traceback\n no", "gpu1"),
    attempts=(AttemptRecord(1, 1.7e9, 1.7e9 + 1, "failed", "why", ("lr=1",), 0),
              AttemptRecord(2, 1.7e9 + 2)), again=1.7e9, changed=("lr=2",))
PLAN = replace(
    plans.plan(spec={"name": "toy", "task": {"use": "a:B", "params": {"n": 1}}}),
    processes=(Process(("python",), {"A": "b"}, (0,), log="ranks/00000.log"),),
    lines=("torchrun",), warnings=("slow",), resume_from=ResumeFrom("step-00000001", 2),
    code=Code("/x", 1, 2, "abc"), interpreter=Interpreter("/bin/python", "run.python"))


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


@given(anything | altered(asdict(STATE)))
@example(asdict(STATE))
def test_a_state_is_sound_or_none(data: Any) -> None:
    state = State.from_dict(data)
    if state is None:
        return
    assert fits(state, State)
    assert State.from_dict(state.to_dict()) == state
    state.took(1e9)
    json.dumps(state.to_dict(), allow_nan=False)
    assert state.cause is None or isinstance(state.cause.line, str)


@given(anything | altered(PLAN.to_dict()))
@example(PLAN.to_dict())
def test_a_plan_is_sound_or_none(data: Any) -> None:
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
    assert [r.sentence() for r in plan.ranks] + [plan.interpreter and plan.interpreter.sentence(),
                                                 plan.code and plan.code.sentence()]


@pytest.mark.parametrize("log", ["/etc/passwd", "../../x.log", "ranks/../../x.log", "ranks/",
                                 "a/b.log", ".bashrc"])
def test_a_plan_names_no_log_outside_of_the_run_folder(log: str) -> None:
    process = replace(PLAN.processes[0], log=log)
    assert LaunchPlan.from_dict(replace(PLAN, processes=(process,)).to_dict()) is None


JOB = job.Job(41007, "c", "PENDING", "Resources", 1, 1.7e9, 1.7e9, "gpu[1-2]", "words",
              job.Request(1, 2, ("a=b",)), "no", 1.7e9)
SMALL = {
    "notes.json": (asdict(notes.Notes("n", ("a", "b"), "text")), notes.read, notes.Notes),
    "sweep.json": (asdict(sweep.Member("s1", "n", 1, 2, 1.7e9, {"a": "1"}, 1, 1, 2.0)), sweep.read,
                   sweep.Member),
    "slurm.json": (asdict(JOB), job.read, job.Job),
    "environment.json": (asdict(environment.Environment("1", "p", changed_files=3)),
                         environment.read, environment.Environment),
    "queue.json": (asdict(waiting.Entry(submitted=1.7e9, number=3.0, host="h", begin=1.7e9)),
                   waiting.read, waiting.Entry)}


@pytest.mark.parametrize("name", SMALL)
@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_small_file_is_a_sound_record_or_none(tmp_path: Path, name: str, data) -> None:
    whole, read, cls = SMALL[name]
    (tmp_path / name).write_text(json.dumps(data.draw(anything | altered(whole))))
    found = read(tmp_path)
    assert found is None or fits(found, cls)
    if name == "slurm.json" and found is not None:
        assert found.sentence()
        json.dumps(job.to_dict(tmp_path), allow_nan=False)
        job.judge(STATE, found, False)


def test_a_damaged_state_says_so_in_its_row(home) -> None:
    good = odd_runs.ended()
    path = odd_runs.ended(age=5).path
    (path / "state.json").write_text(json.dumps(asdict(STATE) | {"attempts": [{"number": "x"}]}))
    said = called("runs")
    assert said.returncode == 0, said.stderr
    rows = {line.split()[0]: line for line in said.stdout.splitlines()}
    assert "state.json is damaged: it holds no state" in rows[path.name]
    assert "completed" in rows[good.id]
    assert runs.Run(path).state().state == "lost"
