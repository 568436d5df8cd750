"""The rate of steps over the last half minute, or of the last two where steps are slower."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.events.rank_view import RankView

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
