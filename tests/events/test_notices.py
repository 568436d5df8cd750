"""What is told of a run that goes on, as a person reads it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.events import notices
from gpu_engine.events.notices import Warning, apart, examples_of, no_batch, small_data, unchanged

from .. import golden

MANY = range(25)


def test_each_is_told_with_its_numbers_its_code_and_what_would_mend_it(request):
    told = [
        notices.nonfinite(1234, 1), notices.failed(1, "E: x", 1234), notices.failed(1, "E", None),
        *(notices.gone(dict.fromkeys(MANY[:number], 1234)) for number in (1, 4, 6)),
        no_batch(1000, 4096), no_batch(0, 1), small_data(1000, 4096),
        small_data(1000, 4096, first=True), notices.lowered(),
        notices.not_saved("full"), notices.not_recorded(12.6, 7),
        *(tell(["a", "b"]) for tell in (notices.not_printed, notices.not_read)),
        notices.no_limit(90.0),
        *(notices.no_best("x", [f"v{n}" for n in MANY[:many]]) for many in (0, 25)),
        apart(3, 5, group=False), apart(3, 5, group=True), apart(3, 5, group=True, numbers=1234),
        apart(3, 5, group=True, wrapped=True), notices.one_device(4),
        notices.elsewhere(["GPU 3", "GPU 4"], ["GPU 0", "GPU 1"], "3,4"),
        notices.undivided(2, 1000, "RandomSampler"), notices.same_part(4, 0, 1),
        *(unchanged(1, "SGD", 1234, no_gradient=none) for none in (True, False)),
        notices.memory_fills(3 << 30, 20.4, 5 << 30), notices.clipped_scaled(1.5, 65536.0),
        notices.rest_dropped(3, 4), notices.same_order(3, 1000)]
    codes = {one.code for one in told if isinstance(one, Warning)}
    assert codes <= set(notices.ORDER)
    golden.same(request, [one if isinstance(one, str) else (one.message, one.code, one.cure)
                          for one in told])


@given(st.integers(0, 10**16), st.booleans())
def test_the_examples_are_read_back(examples, first):
    told = small_data(examples, 8, first=first)
    assert examples_of(told) == (examples if examples < 10**15 else None)
    assert examples_of(Warning(f"{examples} and more words")) is None
