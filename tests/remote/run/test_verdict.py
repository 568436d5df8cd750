"""How several hosts' ends come to one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpu_engine.remote.run.parts import Part
from gpu_engine.remote.run.span import Span
from gpu_engine.remote.run.verdict import End, by_our_clock, judge
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import Cause, State
from gpu_engine.supervisor.attempt import ALONE


def end(state, cause=None, at=None, reason=None, **more):
    return End(State(state, "ab", "run", 1.0, reason=reason, cause=cause), failed_at=at, **more)


OWN = Cause("boom", 1, "ValueError")
ECHO = Cause("Connection reset by peer", 0, "RuntimeError")
PEER = Cause("rank 1 has failed", 0, "PeerLost")


@pytest.mark.parametrize(("ends", "outcome", "line"), [
    ({"a": end("completed"), "b": end("completed")}, "completed", None),
    ({"a": end("failed", ECHO, 1.0), "b": end("failed", OWN, 2.0)}, "failed",
     "rank 1 on b: ValueError: boom"),
    ({"a": end("failed", PEER, 1.0), "b": end("failed", OWN, 2.0)}, "failed",
     "rank 1 on b: ValueError: boom"),
    ({"a": end("failed", OWN, 3.0), "b": end("failed", Cause("bang", 2, "OSError"), 2.0)},
     "failed", "rank 2 on b: OSError: bang"),
    ({"a": end("failed", ECHO, 1.0), "b": End(None, refused="GPU 0 is held by run 12")},
     "failed", "b: GPU 0 is held by run 12"),
    ({"a": end("failed", ECHO, 1.0), "b": end("lost", reason="the machine was restarted")},
     "failed", "b: the machine was restarted"),
    ({"a": end("failed", ECHO, 1.0), "b": End(None, lost="no answer")},
     "failed", "b: it can't be reached: no answer"),
    ({"a": end("completed"), "b": end("failed", ECHO, 1.0)},
     "failed", "rank 0 on b: RuntimeError: Connection reset by peer"),
    ({"a": end("stopped"), "b": end("stopped")}, "stopped", None),
    ({"a": end("stopped"), "b": end("completed")}, "stopped", None),
    ({"a": end("completed"), "b": end("completed", reason="time was up after 05:00")},
     "completed", "time was up after 05:00")])
def test_an_attempt(ends, outcome, line):
    said = judge(ends, stop_asked=False)
    assert said[:2] == (outcome, line)
    assert (said[2].line if said[2] else None) == (line if outcome == "failed" else None)


@pytest.mark.parametrize(("told", "ours"), [
    (1_107.0, 1_007.0), (1_102.0, 1_002.0), (None, None),
    (1_107.0 - 3600, None), (1_107.0 + 3600, None)])
def test_a_clock_that_was_set_meanwhile_makes_nobody_the_first(told, ours):
    """Back or forward by an hour, on a host whose clock was 100 s ahead at the launch."""
    at = by_our_clock(told, 100.0, 1_000.0, 1_010.0)
    assert at == ours
    ends = {"a": end("failed", OWN, 1_008.0), "b": end("failed", Cause("bang", 2, "OSError"), at)}
    assert judge(ends, stop_asked=False)[1] == (
        "rank 2 on b: OSError: bang" if ours else "rank 1 on a: ValueError: boom")


def test_a_stop_that_somebody_asked_for():
    stopped = {"a": end("stopped"), "b": end("failed", ECHO, 1.0)}
    assert judge(stopped, stop_asked=True)[0] == "stopped"
    assert judge(stopped | {"b": End(None, lost="no answer")}, stop_asked=True)[:2] \
        == ("stopped", None)
    assert judge(stopped | {"b": end("failed", OWN, 1.0)}, stop_asked=True)[0] == "failed"


def test_ranks_that_ended_with_the_others_were_not_stopped_by_a_signal_of_their_own():
    """The ranks of a host that could not be told end as the others do, which its supervisor can't
    know."""
    ends = {"a": end("stopped"), "b": end("stopped", reason=ALONE)}
    assert judge(ends, stop_asked=True)[:2] == ("stopped", None)
    assert judge(ends, stop_asked=False)[:2] == ("stopped", ALONE)


@pytest.mark.parametrize(("told", "left"), [(True, False), (False, True)])
def test_a_host_that_was_told_to_stop_and_then_cut_off_is_not_said_to_go_on(tmp_path, told, left):
    span = object.__new__(Span)
    span.run = Run(tmp_path)
    span.parts = {"b": Part(host="b", node=0, ranks=(0,), spec={}, folders=(), key="k", run="3f2a")}
    span.links = {"b": SimpleNamespace(told_to_stop=told)}
    span.over = {"b": End(None, lost="the connection broke")}
    assert bool(span._left_behind(stopped=True)[0]) == left
    assert span.parts["b"].to_stop == left
