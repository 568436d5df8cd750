"""The rules on made figures: each speaks on its fault, and on nothing near it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_engine.diagnose import steps, verdicts
from gpu_engine.events import schema
from gpu_engine.events.rank_view import SPANS, RankView

HEALTHY = {"data": 0.02, "forward": 0.3, "backward": 0.3, "optimizer": 0.1, "save": 0.0,
           "eval": 0.0}


def rank(number: int = 0, spans: int = 8, n: int = 100, **parts: float | None) -> RankView:
    """A rank with spans of a second, whose parts are HEALTHY's but for those given."""
    view = RankView(number)
    for at in range(1, spans + 1):
        view.spent([schema.StepTime(at * n, n, 1.0, median=1 / n,
                                    **{"workers": 0, **HEALTHY, **parts})])
    return view


def codes(*views: RankView) -> list[str]:
    return [v.code for v in verdicts.of(views)]


def test_a_healthy_run_has_none():
    assert codes(rank()) == []
    assert codes(rank(0, wait=0.05), rank(1, wait=0.06)) == []
    assert codes() == []
    assert codes(RankView(0)) == []


@pytest.mark.parametrize(("data", "n", "there"), [
    (0.5, 100, True), (0.21, 100, True), (0.19, 100, False), (0.5, 300, False), (None, 100, False)])
def test_input_bound(data, n, there):
    assert codes(rank(n=n, forward=0.0, data=data)) == ["input-bound"] * there


def test_data_that_was_waited_for_at_the_beginning_is_not_told():
    """Workers start, or a file comes into memory."""
    view = RankView(0)
    for at in range(1, 9):
        data = 0.9 if at <= 2 else 0.05
        view.spent([schema.StepTime(at * 10, 10, 1.0, **HEALTHY | {"data": data, "forward": 0.0,
                                                                   "backward": 0.0})])
    assert steps.of_run(view).share("data") > verdicts.DATA
    assert codes(view) == []


def test_it_is_silent_with_too_few_steps_or_too_little_time():
    assert codes(rank(spans=3, data=0.5, forward=0.0)) == []
    assert codes(rank(n=5, data=0.5, forward=0.0)) == []
    assert codes(rank(n=10, data=0.5, forward=0.0)) == ["input-bound"]


def test_a_rank_that_is_not_heard_of_yet_leaves_all_unsaid():
    assert codes(rank(0, data=0.5, forward=0.0), RankView(1)) == []


def test_a_second_process_that_trains_as_a_rank_leaves_nothing_unsaid():
    second = RankView(1, as_rank=0, process=2)
    assert codes(rank(0, data=0.5, forward=0.0), second) == ["input-bound"]


@pytest.mark.parametrize("cause", ["data", "forward", "backward", "optimizer"])
def test_a_straggler_waits_least_and_is_named_with_its_part(cause):
    others = [rank(number, wait=0.5, forward=0.1, backward=0.1, optimizer=0.1)
              for number in (0, 2, 3)]
    slow = {"forward": 0.1, "backward": 0.1, "optimizer": 0.1, "wait": 0.03}
    slow[cause] = slow.get(cause, 0.02) + 0.45
    (found,) = verdicts.of([others[0], rank(1, **slow), *others[1:]])
    assert (found.code, found.rank) == ("straggler", 1)
    assert steps.NAMES[cause] in found.text
    assert found.figures[f"{cause}_a_step"] == pytest.approx(0.0045)


@pytest.mark.parametrize("factor", [1.3, 2, 10])
def test_a_rank_that_is_slower_as_a_whole_is_named_with_the_parts_that_are(factor):
    def of(number, slower):
        return rank(number, data=0.02, forward=0.3 / slower, backward=0.6 / slower, optimizer=0.02,
                    wait=0.02 + 0.9 * (1 - 1 / slower))

    (found,) = verdicts.of([of(0, factor), of(1, 1), of(2, factor), of(3, factor)])
    assert (found.code, found.rank) == ("straggler", 1)
    assert "its backward and forward take" in found.text
    longer = found.figures["backward_a_step"] + found.figures["forward_a_step"]
    assert longer == pytest.approx(0.009 * (1 - 1 / factor), rel=0.01)


def test_no_straggler_where_a_few_pauses_make_the_others_wait():
    """As after each epoch: a second in a step of 10 ms, four times, of 800 steps."""
    paused = [rank(0, backward=0.1, optimizer=0.1, forward=0.1, wait=0.0),
              rank(1, backward=0.1, optimizer=0.1, forward=0.1, wait=0.6)]
    assert codes(*paused) == ["straggler"]
    for view in paused:
        view.spans = type(view.spans)(replace(span, median=0.004) for span in view.spans)
    assert codes(*paused) == []


def test_no_straggler_where_its_parts_do_not_explain_it():
    assert codes(rank(0, wait=0.5, forward=0.1, backward=0.1),
                 rank(1, wait=0.0, forward=0.1, backward=0.1, save=0.44)) == ["saving"]


def test_a_straggler_is_named_though_one_rank_waits_far_longer_than_the_others():
    equal = {"forward": 0.1, "backward": 0.1, "optimizer": 0.1}
    (found,) = verdicts.of([
        rank(0, wait=0.5, **equal), rank(1, wait=0.03, **equal | {"forward": 0.55}),
        rank(2, wait=0.5, **equal), rank(3, wait=0.9, forward=0.01, backward=0.01, optimizer=0.01)])
    assert (found.code, found.rank) == ("straggler", 1)
    assert found.figures["seconds_a_step"] == pytest.approx(0.0047)


def test_no_straggler_where_a_wait_is_not_known():
    assert codes(rank(0, wait=0.6, forward=0.1), rank(1, wait=None, forward=0.6)) == []


@pytest.mark.parametrize("first_is_late", [(2, 3, 6, 7), (7, 8)])  # by turns; at the end alone
def test_no_straggler_if_it_is_another_rank_by_turns(first_is_late):
    views = [RankView(0), RankView(1)]
    for at in range(1, 9):
        for number, view in enumerate(views):
            mine = (number == 0) == (at in first_is_late)
            view.spent([schema.StepTime(at * 100, 100, 1.0, **{
                **HEALTHY, "forward": 0.55 if mine else 0.1, "wait": 0.0 if mine else 0.4})])
    assert codes(*views) == []


def test_saving_counts_where_it_is_often():
    assert codes(rank(save=0.06)) == ["saving"]
    assert codes(rank(save=0.04)) == []
    once = rank()
    once.spent([schema.StepTime(900, 10, 5.0, **{**HEALTHY, "save": 4.0})])
    assert codes(once) == []  # one long save, as at the end


def test_evaluations_that_take_longer_than_training():
    assert codes(rank(eval=0.6, forward=0.1, backward=0.1, optimizer=0.1)) == ["evaluation"]
    assert codes(rank(eval=0.4, forward=0.1, backward=0.1, optimizer=0.1)) == []
    once = rank()
    once.spent([schema.StepTime(900, 10, 20.0, **{**HEALTHY, "eval": 19.0})])
    assert codes(once) == []  # one long evaluation, as at the end


@pytest.mark.parametrize("where", ["wait", "forward"])
def test_one_rank_that_evaluates_alone_keeps_the_others_waiting(where):
    """In the next backward pass, or in an operation of the script's own."""
    train = {"data": 0.02, "forward": 0.1, "backward": 0.1, "optimizer": 0.02, "wait": 0.02}
    (found,) = verdicts.of([rank(0, eval=0.7, **train), rank(1, **train | {where: 0.72})])
    assert (found.code, found.rank, found.cost) == ("evaluation", 0, pytest.approx(0.7))
    assert "rank 0 alone evaluates, 70% of the time" in found.text
    assert codes(rank(0, eval=0.05, **train), rank(1, **train)) == []
    assert codes(rank(0, eval=0.4, **train), rank(1, eval=0.39, **train)) == []
    unknown = train | {"wait": None}
    assert codes(rank(0, eval=0.7, **unknown), rank(1, **unknown)) == []


def test_the_spans_of_a_long_run_are_added_up():
    view = rank(spans=500, n=10)
    assert len(view.spans) == SPANS
    run, last = steps.of_run(view), steps.of_last(view)
    assert (run.steps, run.seconds) == (5000, pytest.approx(500))
    assert run.parts["forward"] == pytest.approx(150)
    assert last.seconds == 30
    assert run.parts["rest"] == pytest.approx(500 * 0.28)


def test_the_last_steps_are_told_though_an_evaluation_has_gone_on_since():
    view = rank()
    view.spent([schema.StepTime(800, 0, 40.0, eval=40.0)])
    assert steps.of_last(view).steps == 100


def test_the_median_counts_each_span_for_its_steps():
    view = RankView(0)
    for n, median in ((50, 0.01), (45, 0.2), (5, 0.3)):
        view.spent([schema.StepTime(100, n, 1.0, median=median, **HEALTHY)])
    assert steps.of_run(view).median == 0.01


def test_figures_that_cannot_be_true_are_left_out():
    view = rank(data=0.5, forward=0.0)
    for odd in (float("nan"), float("inf"), -1.0, 1e300):
        view.spent([schema.StepTime(1, 10, odd, **HEALTHY)])
        view.spent([schema.StepTime(1, 10, 1.0, **HEALTHY | {"data": odd})])
    assert steps.of_run(view).seconds == 8


def test_what_is_not_known_is_told_as_that():
    view = rank(wait=None, copy=None, gc=0.25)
    parts = steps.of_run(view)
    assert parts.share("wait") is None
    assert verdicts.to_dict([view, RankView(1)])["ranks"][0]["run"]["parts"]["wait"] is None
    assert steps.line(parts) == (
        "10 ms a step: data 2%, forward 30%, backward 30%, optimizer 10%, rest 28%")


def test_a_bar_has_a_letter_for_each_tenth_of_the_last_span():
    view = rank(wait=None)
    assert steps.bar(view) == "fffbbbo···"
    view.spent([schema.StepTime(900, 0, 1.0, data=1.0)])  # no step: as the last that had one
    assert steps.bar(view, 20) == "ffffffbbbbbboo······"
    view.spent([schema.StepTime(900, 9, 1.0, data=1.009, save=0.0)])
    assert steps.bar(view) == "dddddddddd"
    view.spent([schema.StepTime(900, 9, 1.0, data=9.0)])  # which can't be true
    assert steps.bar(view) == steps.bar(RankView(0)) == ""


def test_the_first_steps_do_not_make_a_part_unknown():
    view = RankView(0)
    view.spent([schema.StepTime(5, 5, 1.0, data=0.1, forward=0.1, backward=0.8)])
    for at in range(1, 5):
        view.spent([schema.StepTime(5 + at * 100, 100, 1.0, **HEALTHY, wait=0.05)])
    assert steps.of_run(view).steps == 400
    assert steps.of_run(view).parts["wait"] == pytest.approx(0.2)


@pytest.mark.parametrize(("least", "there"), [(0.004, True), (0.0015, False), (None, False)])
def test_exchange_is_what_the_rank_that_comes_last_waits(least, there):
    """The other one waits for that rank, too."""
    parts = {"forward": 0.1, "backward": 0.1, "wait": 0.45}
    found = codes(rank(0, exchange=least, **parts), rank(1, exchange=0.005, **parts))
    assert found == ["exchange"] * there
    same = codes(rank(0, exchange=0.005, **parts), rank(1, exchange=0.005, **parts))
    assert same == ["exchange"], "two that wait alike"


@pytest.mark.parametrize(("gc", "gcs", "there"), [(0.2, 100, True), (0.2, 50, False),
                                                  (0.01, 100, False), (None, None, False)])
def test_garbage_collection_in_each_step_is_told(gc, gcs, there):
    assert codes(rank(gc=gc, gcs=gcs)) == ["garbage"] * there


@pytest.mark.parametrize(("changed", "there"), [
    ({}, True), ({"every": None}, False), ({"stalls": None}, False), ({"stalled": 0.05}, False),
    ({"stalled_in": "wait"}, False), ({"stalled_in": "data", "every": 2, "workers": 2}, False)])
def test_a_step_in_so_many_that_takes_longer_is_told(changed, there):
    """Others wait then: the rank that does something is named, and is no straggler in each step."""
    stall = {"stalls": 2, "stalled": 0.4, "every": 50, "stalled_in": "other"} | changed
    view = RankView(0)
    for at in range(1, 9):
        view.spent([schema.StepTime(at * 100, 100, 1.0, median=0.005,
                                    **{**HEALTHY, "workers": 0, **stall})])
    found = verdicts.of([view])
    assert [v.code for v in found] == ["stalls"] * there
    if there:
        assert "every 50 steps one takes 205 ms and not 5" in found[0].text


def test_two_ranks_that_evaluate_are_not_said_to_be_one():
    train = {"data": 0.02, "forward": 0.1, "backward": 0.1, "optimizer": 0.02, "wait": 0.02}
    (found,) = verdicts.of([rank(0, eval=0.7, **train), rank(1, **train | {
        "eval": 0.35, "forward": 0.35})])
    assert "rank 0 evaluates for longer than they do, 35% of the time" in found.text


@pytest.mark.parametrize(("workers", "says"), [(1, "its only worker is"), (3, "its 3 workers are")])
def test_workers_are_counted_in_words(workers, says):
    (found,) = verdicts.of([rank(workers=workers, data=0.5, forward=0.0)])
    assert says in found.text


STALL = {"stalls": 2, "stalled": 0.25, "every": 50, "stalled_in": "other"}
EVAL = {"eval": 0.625, "forward": 0.1, "backward": 0.1, "optimizer": 0.1}


@pytest.mark.parametrize(("bound", "value", "parts", "code"), [
    ("DATA", 0.25, {"data": 0.25, "forward": 0.0}, "input-bound"),
    ("WORTH", 2**-8, {"data": 0.25, "forward": 0.0, "n": 64}, "input-bound"),
    ("STEPS", 64, {"data": 0.5, "forward": 0.0, "n": 8}, "input-bound"),
    ("SECONDS", 8.0, {"data": 0.5, "forward": 0.0}, "input-bound"),
    ("SAVING", 0.25, {"save": 0.25}, "saving"), ("TIMES", 8, {"save": 0.25}, "saving"),
    ("TIMES", 8, EVAL, "evaluation"), ("GARBAGE", 0.25, {"gc": 0.25, "gcs": 100}, "garbage"),
    ("NEARLY", 1.0, {"gc": 0.5, "gcs": 100}, "garbage"), ("STALLS", 16, STALL, "stalls"),
    ("STALLED", 0.25, STALL, "stalls"), ("ALIKE", 1.0, STALL, "stalls")])
def test_what_is_at_a_bound_counts(monkeypatch, bound, value, parts, code):
    monkeypatch.setattr(verdicts, bound, value)
    assert codes(rank(**parts)) == [code]


def test_figures_have_few_digits():
    """In goldens/."""
    for parts in ({"save": 0.2141592}, EVAL | {"eval": 0.6141592}, {"gc": 0.3141592, "gcs": 100},
                  STALL | {"stalled": 0.3141592, "stalled_in": None, "every": 0},
                  STALL | {"stalled": 0.3141592, "stalled_in": None},
                  STALL | {"every": 4, "workers": 4}, {"data": 0.3141592, "forward": 0.1}):
        verdicts.of([rank(**parts)])
        verdicts.to_dict([rank(**parts)])
    train = {"data": 0.02, "forward": 0.1, "backward": 0.1, "optimizer": 0.02, "wait": 0.02}
    verdicts.of([rank(0, eval=0.7141592, **train), rank(1, eval=0.2, **train),
                 rank(2, **train | {"wait": 0.7})])
