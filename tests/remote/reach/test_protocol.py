"""Lines between machines: what is sent is what is read, and what is odd spoils nothing."""

from __future__ import annotations

import dataclasses
import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.devices.availability import Availability
from gpu_engine.devices.records import DeviceProcess, HostSample, Sample, Snapshot
from gpu_engine.interpreters.inspection import Build
from gpu_engine.remote.reach import protocol
from gpu_engine.remote.reach.hosts import Host
from gpu_engine.remote.reach.protocol import BadMessage, Piece
from gpu_engine.remote.run.nodes import Machine
from gpu_engine.remote.run.survey import Checkup
from gpu_engine.runs.state import AttemptRecord, Cause, RankProcess, State
from tests.conftest import gpus

STATE = State("failed", "ab12", "mnist", 1.5, started=2.5, ended=3.5, attempt=2, pid=7, ticks=8,
              boot="b", processes=(RankProcess(0, 7, 8, -9), RankProcess(1, 9, None)), exit_code=1,
              reason="rank 0: killed", cause=Cause("killed", 0, "Killed", "Traceback\n  line"),
              attempts=(AttemptRecord(1, 1.0, 2.0, "failed", "r", ("a=1",)),))
DEVICE = gpus(1).devices[0]
SAMPLE = Sample(DEVICE, 0.5, 1, 2, throttle=("too hot (hardware)",),
                processes=(DeviceProcess(9, 4, user="alice", command="python train.py"),))
MESSAGES = [
    protocol.Hello(), protocol.Hello(("/d", "~"), True, "a" * 64),
    protocol.Watch(0.5, ("~",)),
    protocol.Check({"name": "x", "batch": {"size": 4}, "task": {"params": {"a": [1, 2.5]}}},
                   ("/d", "~")),
    protocol.Listen(29500), protocol.Reach(("10.0.0.1",), 29500),
    protocol.Start({"name": "x"}, "key"), protocol.Resume("ab12", {}, 2, "step-00000100"),
    protocol.Follow("ab12", (protocol.At("ranks/00000.jsonl", 5, 3, 99),)),
    protocol.Stop("ab12", True), protocol.Stacks("ab12", (0, 1)),
    protocol.Trace("ab12", 3, (0, 1), 120.0),
    protocol.Traced((protocol.TraceOf(0, "/h/t.json.gz", None), protocol.TraceOf(1, None, "x"))),
    protocol.Choose("ab12", "best", "max:accuracy"), protocol.Chosen("step-00000001"),
    protocol.SendCode("a" * 64, 3, 9), protocol.CodeKept("/h/code/aaaaaaaaaaaa"),
    protocol.Remove(None, "key"), protocol.Removed("/h/runs/ab12", 9, "/h/code/a", "used"),
    protocol.Welcome(1, "0.1.0", "/usr/bin/python", "3.12.1", "gpu1", "alice", "/h", "/home/a",
                     None, None, "1:2", 1.5, ("10.0.0.1",), Build("2.13", "13.0", None),
                     "/home/a/.venv/bin/python", inventory=gpus(8),
                     code=protocol.CodeState("/h/code/aaaaaaaaaaaa", False)),
    protocol.Looked(Snapshot(1.0, (SAMPLE,), HostSample(0.5)),
                    {"0": Availability("busy", "in use")}),
    protocol.Checked((protocol.Wrong("run.python", "/x", "no such"),), ("w",), "/d"),
    protocol.Listening(1), protocol.Reached({"10.0.0.1": "refused"}),
    protocol.Started("ab12", "/h/runs/ab12", 2), Piece("ranks/00000.log", 4, b"\0\xffx"),
    protocol.Told(STATE),
    protocol.Done(), protocol.Failed("why")]


def _read(line: bytes, message):
    reads = protocol.request if isinstance(message, get_args(protocol.Request)) \
        else protocol.answer
    return reads(line)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_message_is_read_as_it_was_sent(message):
    line = protocol.pack(message)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert _read(line, message) == message


def test_every_kind_is_among_the_messages():
    assert {type(m) for m in MESSAGES} == {*get_args(protocol.Request),
                                           *get_args(protocol.Answer)}


@given(st.sampled_from(MESSAGES), st.data())
def test_a_message_with_one_odd_value_is_read_or_refused(message, data):
    """Refused, or a record whose every value is of its type: nothing odd gets in."""
    whole = json.loads(protocol.pack(message))
    name = data.draw(st.sampled_from(sorted(whole)))
    whole[name] = data.draw(st.none() | st.booleans() | st.integers() | st.text(max_size=5)
                            | st.lists(st.integers(), max_size=3) | st.just({}) | st.just(1e400)
                            | st.just(10 ** 30))
    try:
        again = _read(json.dumps(whole).encode(), message)
    except BadMessage:
        return
    assert _read(protocol.pack(again), again) == again


@pytest.mark.parametrize("line", [
    b'{"kind":"told","state":{"state":"running","id":"a","name":"b"}}',
    b'{"kind":"told","state":{"state":"gone","id":"a","name":"b","created":1}}',
    b'{"kind":"hello"}', b'[]', b'', b'null',
    b'{"kind":"listening","port":NaN}', b'{"kind":"listening","port":1.5}',
    b'{"kind":"listening","port":1e999}', b'{"kind":"listening","port":true}',
    b'{"kind":"piece","name":"a","offset":0,"data":"@@"}',
    b'{"kind":"looked","snapshot":{"taken":1e301,"samples":[]}}',
    b'{"kind":"listening","port":9223372036854775808}',
    b'{"kind":"lacking files","names":[' + b'"a",' * 4096 + b'"a"]}',
    b"[" * 100000, b'{"kind":"done"}' + b" " * protocol.LONGEST,
    b'{"kind":"failed","message":"' + b"x" * (1 << 17) + b'"}'])
def test_odd_answers_are_refused(line):
    with pytest.raises(BadMessage):
        protocol.answer(line)


@pytest.mark.parametrize("spec", [
    '{"a":' * 20 + "1" + "}" * 20, '{"a":' + "[" * 50000 + "]" * 50000 + "}",
    '{"' + "x" * (1 << 17) + '":1}', '{"a":[' + "1," * 4096 + "1]}", '{"a":1e400}', '{"a":1e309}'])
def test_a_spec_has_bounds_too(spec):
    with pytest.raises(BadMessage):
        protocol.request(b'{"kind":"start","key":"k","spec":%s}' % spec.encode())


def test_what_is_not_known_is_passed_over():
    line = b'{"kind":"done","newer":[' + b'{"x":"y"},' * 9 + b"{}]}"
    assert protocol.answer(line) == protocol.Done()


def test_for_scripts_a_checkup_is_plain_values():
    welcome, = (m for m in MESSAGES if isinstance(m, protocol.Welcome))
    there = Machine(Host("h"), welcome, welcome.inventory, 0.1, 0.5)
    told = Checkup(there.host, there, ()).to_dict()
    assert told.keys() == {"host", "opened", "welcome", "inventory", "clock", "problems", "ok"} \
        == Checkup(Host("h"), None, ("away",)).to_dict().keys()
    assert told["welcome"] == {f: getattr(welcome, f) for f in welcome.__struct_fields__
                               if f not in ("inventory", "code")} | {
        "torch": {"version": "2.13", "cuda": "13.0", "hip": None}}
    json.dumps(told, allow_nan=False)


def test_texts_that_come_from_a_host_are_harmless():
    odd = "a\x1b]52;c;ZWNobw==\x07b\x1b[2J\u202ec\nsecond\x9b31m line"
    read = protocol.answer(protocol.pack(protocol.Told(dataclasses.replace(
        STATE, reason=odd, cause=Cause(odd)))))
    assert isinstance(read, protocol.Told)
    for text in (read.state.reason, read.state.cause.message):
        assert text == "abc\nsecond line"


def test_what_is_sent_there_stays_as_it_is():
    """A spec's text is the person's own, and reaches the other side to the letter."""
    spec = {"task": {"command": ["python", "a\tb.py", "\x1b", "\u202e"]}}
    assert protocol.request(protocol.pack(protocol.Start(spec, "k"))) \
        == protocol.Start(spec, "k")


def test_figures_that_are_not_numbers_are_unknown():
    read = protocol.answer(protocol.pack(protocol.Looked(Snapshot(
        1.0, (dataclasses.replace(SAMPLE, utilization=float("nan")),)))))
    assert isinstance(read, protocol.Looked)
    assert read.snapshot.samples[0].utilization is None
