"""Every key of the spec, walked from its field: default, bounds, `--set`, TOML, plan.json, rank."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
import tomllib
from dataclasses import FrozenInstanceError, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common.errors import SpecError
from gpu_engine.common.values import Kind, convert, parse, show
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.spec import schema
from gpu_engine.spec.read import apply_set, from_dict, from_dict_leniently
from gpu_engine.spec.schema import Key, RunSpec
from gpu_engine.spec.write import differences, flat, to_dict, to_toml
from gpu_engine.worker.rank.job import Identity, from_plan

from ..plans import plan

KEYS = [key for key in schema.keys().values() if key.section]
words = st.text(st.characters(min_codepoint=33, max_codepoint=0x2fff, exclude_categories=["C", "Z"],
                              exclude_characters=","), min_size=1, max_size=8)


hosts = st.lists(st.from_regex(r"[a-z][a-z0-9.-]{0,5}(:[0-9])?", fullmatch=True), min_size=1,
                 max_size=3, unique_by=lambda entry: entry.partition(":")[0])


def values_of(key: Key) -> st.SearchStrategy[Any]:
    """Values that `key` takes."""
    if key.dotted == "run.env":
        return st.dictionaries(st.from_regex(r"[A-Z]{1,5}", fullmatch=True), words, max_size=3)
    return st.none() | hosts if key.dotted == "devices.hosts" else values(key.kind)


def values(kind: Kind) -> st.SearchStrategy[Any]:
    """Values that a key of this kind takes."""
    bounds = kind.bounds
    low = bounds.ge if bounds.ge is not None else bounds.gt
    if kind.name == "union":
        return st.one_of(*map(values, kind.args))
    if kind.name == "choice":
        return st.sampled_from([value for _, value in kind.choices])
    if kind.name == "int":
        return st.integers(int(low or 0), int(bounds.le or 10**9))
    return {"none": st.none(), "bool": st.booleans(), "str": words,
            "float": st.floats(low, 1e12 if bounds.le is None else bounds.le,
                               exclude_min=bounds.gt is not None),
            "list": st.lists(values(kind.args[0]) if kind.name == "list" else words,
                             min_size=1, max_size=4),
            "dict": st.dictionaries(
                st.from_regex(r"[a-z]{1,5}", fullmatch=True),
                words if [a.name for a in kind.args[1:]] == ["str"]
                else st.integers() | st.booleans() | words,
                min_size=1, max_size=3),  # an empty one is not written
            }[kind.name]


def of(spec: RunSpec, key: Key) -> Any:
    return getattr(getattr(spec, key.section), key.name)


def with_value(key: Key, value: Any) -> RunSpec:
    return replace(RunSpec(), **{key.section: schema.SECTIONS[key.section](**{key.name: value})})


def test_the_walk_sees_every_field_of_every_section():
    assert [key.dotted for key in KEYS] == [
        f"{section}.{f.name}" for section, cls in schema.SECTIONS.items() for f in fields(cls)]
    assert [f.name for f in fields(RunSpec)] == ["name", *schema.SECTIONS]
    assert schema.known_keys() == [key.dotted for key in KEYS]
    assert [key for key in (*schema.keys(), "task.params.x", "run.env.X", "run.envX", "batch.x")
            if not schema.is_key(key)] == ["run.envX", "batch.x"]
    assert "a\\ud800" in to_toml(RunSpec(name="a\ud800"))
    nested = RunSpec(task=schema.TaskSpec(params={"x": [[1]]}))
    to_dict(nested)["task"]["params"]["x"][0].append(2)
    assert nested.task.params == {"x": [[1]]}


@given(st.integers(1, 9), st.integers(0, 9))
def test_a_range_of_steps_has_its_last(first, more):
    assert schema.parse_steps([f"{first}", f"{first}-{first + more}"]) == (
        range(first, first + 1), range(first, first + more + 1))


def test_what_is_best_and_what_is_printed():
    assert [schema.parse_best(text) for text in (None, "", "x", "min:x:y", "max:x")] == [
        None, None, ("x", False), ("x:y", False), ("x", True)]
    for wrong in ("mix:x", "min:", ":x"):
        with pytest.raises(SpecError, match="expected the name of a value, min:name or max:name"):
            schema.parse_best(wrong)
    with pytest.raises(SpecError) as caught:
        schema.parse_metrics({"a": "(", "b": "x", "c": "(a)(b)", "d": "(x)"})
    assert [(p.key, p.value) for p in caught.value.problems] == [
        ("run.metrics.a", "("), ("run.metrics.b", "x"), ("run.metrics.c", "(a)(b)")]
    assert (schema.parse_metrics("auto"), [*schema.parse_metrics({"d": "(x)"})]) == ({}, ["d"])


@pytest.mark.parametrize(("ids", "text"), [
    (["0", "cpu:1"], "0,cpu:1"), (["a,b"], '["a,b"]'), (["[a", "b"], '["[a", "b"]'), ([], "[]"),
    (["", "b"], '["", "b"]'), ([" a"], '[" a"]'), (["(a"], '["(a"]'), (["{a"], '["{a"]')])
def test_a_list_is_typed_without_brackets_where_that_is_clear(ids, text):
    spec = RunSpec(devices=schema.DevicesSpec(ids=ids), run=schema.ProcessSpec(env={"A": "x"}))
    assert flat(spec).items() >= {"devices.ids": text, "run.env.A": "x"}.items()


@pytest.mark.parametrize("wrong", ["a", "0", "0-5", "5-3", "-2", "2-", "1.5"])
def test_what_is_no_step_is_refused(wrong):
    with pytest.raises(SpecError, match=r"train\.skip_steps"):
        schema.parse_steps([wrong])


@pytest.mark.parametrize("cls", [RunSpec, *schema.SECTIONS.values()])
def test_every_field_has_a_docstring(cls):
    """A section of [RunSpec] is told by its own."""
    body = ast.parse(inspect.getsource(cls)).body[0].body
    told = {a.target.id for a, b in pairwise(body)
            if isinstance(a, ast.AnnAssign) and isinstance(b, ast.Expr)
            and isinstance(getattr(b.value, "value", None), str)}
    assert told | set(schema.SECTIONS if cls is RunSpec else ()) == {f.name for f in fields(cls)}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.dotted)
def test_the_default_is_one_that_may_be_given(key):
    assert of(RunSpec(), key) == key.default
    assert convert(key.default, key.kind) == key.default
    assert of(from_dict({}), key) == key.default


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.dotted)
def test_what_is_beyond_the_bounds_is_refused_and_the_bound_itself_is_not(key):
    kind = key.kind.without_none
    if kind.name not in ("int", "float"):
        bad: list[Any] = [3.5] if kind.name != "dict" else [[1]]
        good: list[Any] = []
    else:
        one = 1 if kind.name == "int" else 0.5
        limits = kind.bounds
        bad = ["1" if not limits.time else "1 x", True, float("nan"), float("inf")]
        bad += [limits.ge - one] if limits.ge is not None else []
        bad += [limits.gt] if limits.gt is not None else []
        bad += [limits.le + one] if limits.le is not None else []
        good = [limit for limit in (limits.ge, limits.le) if limit is not None]
        assert limits.ge is not None or limits.gt is not None, "a number of the spec has bounds"
    for value in bad:
        with pytest.raises(SpecError) as caught:
            from_dict({key.section: {key.name: value}})
        (problem,) = caught.value.problems
        assert problem.key == key.dotted
        assert problem.message.startswith("expected ")
        assert of(from_dict_leniently({key.section: {key.name: value}}), key) == key.default
    for value in good:
        assert of(from_dict({key.section: {key.name: value}}), key) == value


@given(st.sampled_from(KEYS), st.data())
def test_a_value_comes_through_every_way_unchanged(key, data):
    value = data.draw(values_of(key))
    spec = with_value(key, value)
    assert from_dict(to_dict(spec)) == spec
    assert from_dict(tomllib.loads(to_toml(spec))) == spec
    typed: dict[str, Any] = {}
    for assignment in differences(RunSpec(), spec):
        apply_set(typed, assignment)
    if value is not None:  # the default of every key that may be None
        assert from_dict(typed) == spec
    # What a field of the form shows, it takes.
    if value is not None and key.kind.without_none.name != "dict":
        shown = parse(show(value), key.kind)
        assert convert(shown, key.kind) == value
    written = json.loads(json.dumps(plan(2, spec=to_dict(spec)).to_dict()))
    job = from_plan(LaunchPlan.from_dict(written), Path("run"), Identity(1, 2))
    assert of(job.spec, key) == value


def test_a_spec_can_not_be_changed_in_place():
    spec = RunSpec()
    with pytest.raises(FrozenInstanceError):
        spec.batch.size = 3
    with pytest.raises((AttributeError, TypeError)):
        spec.batch.sise = 3


def test_what_another_version_has_written_is_passed_over():
    spec = from_dict_leniently({
        "name": "x", "future": {"a": 1}, "train": {"lr": 0.5, "new": 1, "seed": "a"},
        "parallel": 3, "batch": {"size": 12}})
    assert (spec.name, spec.train.lr, spec.train.seed, spec.batch.size) == ("x", 0.5, 0, 12)
    assert from_dict_leniently(None) == from_dict_leniently([1]) == RunSpec()


def test_spec_and_plan_of_a_rank_need_the_standard_library_alone():
    """Also the builder, which plans a rank that torchrun has started."""
    code = """
import sys
before = set(sys.modules)
import gpu_engine.spec.read, gpu_engine.spec.write, gpu_engine.plan.records
import gpu_engine.plan.build, gpu_engine.worker.rank.job
print(*{m.partition(".")[0] for m in set(sys.modules) - before})
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(out.stdout.split()) - set(sys.stdlib_module_names) == {"gpu_engine"}
