"""The one fold: the same whatever the pieces, and open to another kind of event."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.events import notices, schema, view
from gpu_engine.events.reader import Tail
from gpu_engine.events.view import RunView
from gpu_engine.events.writer import append, encode, json_safe

from .. import event_lines
from ..event_lines import from_dict
from . import kinds


def event(kind: str, at=1.0, **fields: object) -> schema.Event:
    return from_dict({"t": at, "kind": kind} | fields)


def folded(*events: schema.Event, rank=0) -> RunView:
    run = RunView()
    for one in events:
        run.fold(rank, one)
    return run


@given(st.lists(kinds.any_event, max_size=25), st.lists(st.integers(1, 400), min_size=1))
def test_the_same_lines_in_any_pieces_give_the_same_view(tmp_path_factory, events, cuts):
    lines = b"".join(map(encode, events))
    at_once = RunView()
    folder = tmp_path_factory.mktemp("t")
    (folder / "whole").write_bytes(lines)
    for one in Tail(folder / "whole").read(1 << 30):
        at_once.fold(0, one)
    assert len(events) == 0 or at_once.ranks
    bit_by_bit, tail = RunView(), Tail(folder / "grows")
    (folder / "grows").touch()
    while lines:
        for size in cuts:
            event_lines.append(folder / "grows", lines[:size])
            lines = lines[size:]
            for one in tail.read(37):
                bit_by_bit.fold(0, one)
    while tail.offset < (folder / "grows").stat().st_size:
        for one in tail.read(41):
            bit_by_bit.fold(0, one)
    assert repr(bit_by_bit) == repr(at_once)  # NaN is no other than NaN in words
    assert tail.skipped == 0
    at_once.progress()
    at_once.warnings()
    at_once.first_error()
    for rank in at_once.ranks.values():
        assert rank.busy is not None
        rank.to_dict()


def test_every_kind_has_its_line():
    assert set(view.FOLD) == set(schema.KINDS.values())


@pytest.mark.parametrize(("told", "shown"), [
    ({"loss": 2.0, "losses": [3.0, 1.0]}, 1.0),
    ({"loss": 2.0, "loss_min": 0.5, "loss_max": 4.0, "loss_last": 0.5}, 0.5),
    ({"loss": 2.0, "loss_last": "NaN"}, math.nan), ({"loss": 2.0}, 2.0), ({}, None)])
def test_the_loss_of_a_rank_is_that_of_its_step(told, shown):
    loss = folded(event("step", step=9, n=2, lr=0.1, **told)).ranks[0].loss
    assert loss == shown or (loss != loss and shown != shown)


@given(kinds.any_event)
def test_a_time_is_written_in_milliseconds_and_a_record_as_its_line(one):
    assert json.loads(encode(one))["t"] == round(one.t, 3)
    assert json_safe([one]) == [json_safe(asdict(one))]


def test_a_line_that_was_cut_is_ended_before_the_next(tmp_path):
    (tmp_path / "events").write_bytes(b"{")
    one = event("memory", rss=5)
    append(tmp_path / "events", one)
    append(tmp_path / "events", one)
    assert (tmp_path / "events").read_bytes() == b"{\n" + 2 * encode(one)


@pytest.mark.parametrize(("told", "began", "points"), [
    ({"losses": [3.0, 1.0]}, 4.0, [(8, 5.0, 3.0, 3.0, 3.0), (9, 6.0, 1.0, 1.0, 1.0)]),
    ({"losses": [3.0]}, None, [(9, 6.0, 3.0, 3.0, 3.0)]),
    ({"losses": [3.0]}, 7.0, [(9, 6.0, 3.0, 3.0, 3.0)]), ({}, 4.0, []),
    ({"loss": 2.0}, 4.0, [(9, 6.0, 2.0, 2.0, 2.0)]),
    ({"loss": 2.0, "loss_min": 0.5, "loss_max": 4.0}, 4.0, [(9, 6.0, 2.0, 0.5, 4.0)])])
def test_the_losses_of_an_event_are_points_over_its_time(told, began, points):
    assert view.points_of(event("step", step=9, n=2, **told), 6.0, began) == points


def test_a_restart_clears_the_error_and_goes_back():
    run = RunView()
    for rank in (0, 1):
        for one in (event("start", rank=rank, device=["cpu"]), event("schedule", total_steps=40),
                    event("step", 101.0, step=10, losses=[3.0, 2.0], samples_per_s=5.0),
                    event("step", 102.0, step=20, loss=1.0 + rank, samples_per_s=5.0)):
            run.fold(rank, one)
    p = run.progress()
    assert (p.step, p.total_steps, p.loss, p.samples_per_s) == (20, 40, 1.5, 10.0)
    assert p.seconds_left == pytest.approx(2.0)
    run.fold(0, event("error", 103.0, type="E", message="first"))
    run.fold(0, event("error", 104.0, type="E", message="second"))
    run.fold(1, event("error", 102.5, type="E", message="sooner"))
    assert run.ranks[0].error.message == "first"
    assert run.first_error().rank == 1
    rank = run.fold(0, event("start", rank=0, attempt=2))
    assert (rank.error, rank.attempt, run.attempt) == (None, 2, 2)
    assert rank.steps_per_s is None  # its first steps are not compared with those before the pause
    run.fold(0, event("schedule", total_steps=15, first_step=12))
    assert (rank.step, rank.loss) == (12, None)
    other = run.fold(1, event("schedule", total_steps=15, first_step=20))
    assert (other.step, other.loss) == (20, 2.0)  # as it was
    run.fold(0, event("step", 110.0, step=15, n=2, losses=[1.0, 1.0]))
    run.fold(0, event("step", 111.0, step=16, loss=1.0))
    assert run.begins == {2: 14}
    p = run.progress()  # 16 of 15: a number of steps may be an estimate
    assert (p.seconds_left, p.share) == (0.0, 1.0)


def test_a_rank_that_begins_anew_keeps_nothing_of_what_its_process_did():
    began = event("start", rank=0, pid=7)
    run = folded(began, event("training", number=2, step=40, name="SGD"),
                 event("step", step=41), event("step_time", step=41, n=1, seconds=9.0),
                 event("phase", phase="checkpoint", since=1.0, done=5, total=9),
                 event("stands", step=41, phase="checkpoint", since=1.0, works=False, place="a.py"),
                 notices.same_order(3, 10), event("end", outcome="failed", steps=41, exit=3))
    run.fold(0, event("end", 2.0, outcome="failed"))  # the supervisor's, which knows less
    rank = run.ranks[0]
    assert (rank.ended, rank.exit, list(run.told)) == (True, 3, ["set-epoch"])
    run.fold(0, replace(began, attempt=2))
    assert not any((rank.written, rank.stands, rank.stepped, rank.ended, rank.spans))
    assert (rank.exit, rank.training, rank.training_from, run.told) == (None, None, None, {})


def test_a_step_that_is_only_printed_says_how_far_a_rank_is_that_shows_none():
    printed = [event("metric", step=step, v=1.0) for step in (7, 5, None)]
    assert folded(*printed).ranks[0].at_step == 7
    assert folded(event("step", step=3), *printed).ranks[0].at_step == 3


def test_what_is_said_of_a_silent_rank_or_late_is_no_sign_of_life():
    said = [event("step", 5.0, step=1), event("warning", 3.0, message="x"),
            event("quiet", 9.0, process="z")]
    rank = folded(*said).ranks[0]
    assert (rank.beat, rank.quiet) == (5.0, "z")
    assert folded(*said, event("memory", 9.0, rss=5)).ranks[0].quiet is None


def test_what_stood_goes_on_with_a_step():
    stood = event("stands", step=4, phase="data", since=1.0, works=True, place="a.py")
    assert folded(stood).ranks[0].stands == stood
    for works, lasted in ((True, 0.0), (False, 4.0)):
        rank = folded(replace(stood, works=works), event("step", 5.0, step=5)).ranks[0]
        assert (rank.stands, rank.stepped, rank.stood) == (None, True, lasted)


def test_the_ranks_of_the_latest_attempt_count_which_may_be_fewer():
    run = RunView()
    for rank in (0, 1):
        for one in (event("start", rank=rank), event("step", step=10, loss=9.0, samples_per_s=3.0),
                    event("error", 3.0, type="E", message="of one GPU less")):
            run.fold(rank, one)
    run.begin_attempt(2)
    assert run.progress().step == 10  # none has begun it yet
    for one in (event("start", rank=0, attempt=2), event("step", step=50, loss=1.0,
                                                         samples_per_s=7.0)):
        run.fold(0, one)
    p = run.progress()
    assert (p.step, p.loss, p.samples_per_s) == (50, 1.0, 7.0)
    assert run.first_error() is None
    run.fold(1, event("error", 9.0, type="E", message="of the attempt before, read late"))
    assert run.first_error() is None


def test_another_process_of_the_same_rank_and_the_faster_rank_do_not_count():
    run = RunView()
    for number, each in enumerate(({}, {}, {"as_rank": 0, "process": 2})):
        run.fold(number, event("start", rank=number, **each))
        run.fold(number, event("schedule", total_steps=20))
        for at in (1, 2):
            run.fold(number, event("step", 100.0 + at * (1 + number), step=5 * at, loss=1.0))
    p = run.progress()
    assert (p.step, p.steps_per_s, p.seconds_left) == (10, 2.5, 4.0)


def test_of_many_warnings_the_newest_stay():
    run = folded(*(event("warning", message=f"w{n}") for n in range(60)))
    assert run.warnings() == [f"w{n}" for n in range(10, 60)]


def test_the_first_loss_that_is_not_finite_is_told_of_this_attempt():
    run = folded(event("step", step=6, n=3, losses=[1.0, "NaN", "Infinity"]),
                 event("step", step=9, n=3, loss="NaN"))
    assert run.bad_step == (5, 0)
    run.fold(1, event("step", step=3, n=3, loss=1.0, loss_max="Infinity"))
    assert run.bad_step == (3, 1)
    run.fold(0, event("start", rank=0, attempt=2))
    assert run.bad_step is None
    run.fold(1, event("step", step=4, losses=["NaN"]))  # the other rank's file is behind
    assert run.bad_step is None


def test_a_new_attempt_forgets_how_the_last_one_ended():
    run = folded(event("start", rank=0, pid=7), event("memory", rss=5),
                 event("step", step=4, loss=1.0), event("end", outcome="failed"))
    run.begin_attempt(1)
    assert run.ranks[0].outcome == "failed"
    run.begin_attempt(2)
    rank = run.ranks[0]
    assert (rank.outcome, rank.pid, rank.rss, rank.beat) == (None, None, None, None)
    assert not rank.step_times
    assert rank.step == 4


def test_the_last_checkpoint_and_the_last_evaluations():
    run = RunView()
    run.fold(1, event("checkpoint", 9.0, step=20, path="b", bytes=4))
    run.fold(0, event("checkpoint", 5.0, step=10, path="a", bytes=3))
    assert (run.saved.step, run.saved.path, run.saved.size, run.saved.at) == (20, "b", 4, 9.0)
    run.fold(0, event("checkpoint", 12.0, step=15, path="c"))  # resumed from step 10
    assert run.saved.step == 15
    for step in range(30):
        run.fold(0, event("eval", step=step, accuracy=step / 30, odd=None))
    assert len(run.evaluations) == 20
    assert run.evaluations[-1] == (29, {"accuracy": 29 / 30})
