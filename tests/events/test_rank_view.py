"""What follows from many events of a rank: its rate, and what its steps were spent on."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.events.rank_view import ALWAYS, COUNTS, SPANS, RankView
from gpu_engine.events.schema import PARTS, StepTime

times = st.lists(st.tuples(st.floats(0, 90), st.integers(0, 10**6)), max_size=30).map(
    lambda found: sorted((1.7e9 + t, step) for t, step in found))


@given(times)
def test_the_rate_is_that_of_the_last_half_minute(found):
    view = RankView(0, step_times=found)
    recent = [(t, step) for t, step in found if t >= found[-1][0] - 30]
    recent = found[-2:] if len(recent) < 2 else recent
    if len(recent) < 2 or recent[-1][0] == recent[0][0]:
        assert view.steps_per_s is None
    else:
        (t0, first), (t1, last) = recent[0], recent[-1]
        assert view.steps_per_s == (last - first) / (t1 - t0)


_maybe = st.none() | st.integers(0, 4)
_step = st.integers(0, 9)
spans = st.builds(StepTime, _step, st.integers(1, 3), st.integers(1, 9), **dict.fromkeys(
    (*PARTS, *COUNTS, "median", "exchange", "workers", "device", "every", "stalled_in"), _maybe))


@given(spans, spans)
def test_the_oldest_spans_are_told_as_one(one, other):
    """If it is not yet known of the first what it is of the second, it counts for nothing."""
    later = [StepTime(9, 1, 1.0)] * (SPANS - 1)
    view = RankView(0)
    view.spent([one, other, *later])
    whole, *rest = view.spans
    assert rest == later
    if any(getattr(one, name) is None and getattr(other, name) is not None for name in ALWAYS):
        one = StepTime(0, 0, 0)
    assert (whole.step, whole.n, whole.seconds) == (
        other.step, one.n + other.n, one.seconds + other.seconds)
    for name in (*PARTS, *COUNTS):
        known = [v for v in (getattr(one, name), getattr(other, name)) if v is not None]
        assert getattr(whole, name) == (sum(known) if known else None)
    longest = max(other, one, key=lambda span: span.n)
    stalled = max(other, one, key=lambda span: span.stalls or 0)
    assert (whole.median, whole.exchange, whole.workers, whole.device) == (
        longest.median, longest.exchange, other.workers, other.device)
    assert (whole.every, whole.stalled_in) == (stalled.every, stalled.stalled_in)
