"""Readers of what others may have written, given anything: each returns what it says or raises the
error that it says. `make fuzz` tries many more examples than the suite."""

from __future__ import annotations

import contextlib
import json
import shutil
import time

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpu_engine.common.errors import UserError
from gpu_engine.remote.reach.protocol import BadMessage, Told, loaded, typed
from gpu_engine.runs.state import State
from gpu_engine.spec.read import from_dict, from_dict_leniently, load
from gpu_engine.spec.write import to_toml

from ..command_line import called
from ..remote.reach.test_protocol import KINDS
from ..runs.test_any_value import altered, anything
from .hostile_runs import (
    FILES,
    as_json,
    events_of,
    good,
    prepared,
    runs_now,
    state_of,
)
from .watching import limits

pytestmark = pytest.mark.usefixtures("world")
SOME = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
STATE = json.loads(json.dumps(state_of()))
@SOME
@given(st.one_of(anything, altered({"name": "x", "train": {"steps": 1}, "batch": {"size": 2},
                             "devices": {"ids": ["0"]}, "run": {"python": "x"},
                             "task": {"use": "a:b", "params": {"x": 1}}})))
def test_specs(data):
    assert from_dict_leniently(data) is not None
    if isinstance(data, dict):
        with contextlib.suppress(UserError):
            from_dict(data)


@SOME
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(
    lambda text: text.encode("utf-8", "surrogatepass")), st.sampled_from([
        b"a = " + b"[" * 5000, b"a = " + b"9" * 5000, b"a = 1979-05-27", b"[a]\n[a]\n",
        b"[task]\nuse = 5\n", b'name = "\\u001b]52"\n', b"train.lr = inf\n", b"train.lr = nan\n",
        b"train.steps = 0x7fffffffffffffffffffffff\n", b'"\\u0000" = 1\n'])))
def test_preset_files(tmp_path, data):
    path = tmp_path / "x.toml"
    path.write_bytes(data)
    with contextlib.suppress(UserError):
        assert to_toml(load(path))


EVENTS = [json.loads(line) for line in events_of(0)]


_LINES = (*events_of(0), b'  File "a.py", line 1\n    x\n', b"2026-01-01 12:34:56 ", b"x\n",
          b"Traceback (most recent call last):\n",
          b"Current thread 0x1 (most recent call first):\n")
_PIECES = st.one_of(
    st.sampled_from(_LINES), st.sampled_from(_LINES).map(lambda line: line.rstrip(b"\n") + b","),
    st.sampled_from([b'{"kind":"%b"},' % e["kind"].encode() for e in EVENTS]),
    st.sampled_from([b"[", b'{"a":', b"a.", b'"', b"'", b"(", b"\\", b"9", b" ", b"\t", b"\r",
                     b"\x1b[", b"\x1b[2K\r", "e\u0301".encode()]),
    st.binary(min_size=1, max_size=20))
_MUCH = 1 << 18
"""Bytes of it, for which a reader needs a tenth of a second; one whose time grows with the square
needs minutes."""


@SOME
@example("spec.toml", b"a.", b"")
@example("spec.toml", b'"a".', b"")
@given(st.sampled_from([name for name in FILES
                        if name.endswith((".jsonl", ".log", ".toml"))]),
       st.lists(_PIECES, min_size=1, max_size=2).map(b"".join), st.sampled_from([b"", b"["]))
def test_the_time_that_much_of_the_same_takes(world, name, piece, before):
    path = world.runs / "77aa"
    shutil.rmtree(path, ignore_errors=True)
    good(path, world)
    runs_now(path, world, locked=False)
    good_lines = b"".join(events_of(0)) if name.endswith(".jsonl") else b""
    prepared(name, path).write_bytes(good_lines + before + piece * (_MUCH // len(piece)) + b"\n")
    for words in (("runs",), ("show", "77aa"), ("logs", "-n", "9999", "77aa"),
                  ("report", "77aa"),
                  ("export", "--to", "csv", "-o", "r.csv", "77aa")):
        with limits():
            assert "Traceback (most" not in called(*words).stderr


@SOME
@given(st.one_of(st.binary(max_size=80), anything.map(lambda value: as_json(value).encode()),
                 st.dictionaries(st.sampled_from([
                     "id", "path", "state", "name", "offset", "text", "snapshot", "inventory",
                     "version", "tried", "port", "rank", "cwd", "here", "checkpoint"]),
                     anything, max_size=8).map(lambda value: as_json(value).encode())),
       st.sampled_from([kind for kinds in KINDS.values() for kind in kinds]))
def test_answers_of_a_host(line, kind):
    with contextlib.suppress(BadMessage):
        typed(loaded(line), kind)


@SOME
@given(altered(STATE))
def test_a_state_that_a_host_tells(state):
    with contextlib.suppress(BadMessage):
        told = typed(loaded(as_json(state).encode()), Told)
        assert isinstance(told.took(time.time()), int | float | None)
        State.from_dict(json.loads(json.dumps(told.to_dict(), allow_nan=False)))
