"""Dataclasses out of what JSON holds, whichever version wrote it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common.records import Seconds, UnixTime, read_record, within_bounds
from gpu_engine.common.records import Whole as Count


@dataclass(frozen=True)
class Part:
    name: str
    size: int = 7


@dataclass(frozen=True)
class Whole:
    first: Part
    count: int | None = None
    parts: tuple[Part, ...] = ()
    last: Part | None = None
    words: list[str] = field(default_factory=list)


parts = st.builds(Part, st.text(max_size=5), st.integers(-9, 9))
wholes = st.builds(Whole, parts, st.none() | st.integers(), st.lists(parts, max_size=3).map(tuple),
                   st.none() | parts, st.lists(st.text(max_size=3), max_size=3))


@given(wholes)
def test_what_was_written_comes_back(whole):
    assert read_record(Whole, json.loads(json.dumps(asdict(whole)))) == whole
    assert read_record(Whole, whole) is whole


def test_what_is_missing_or_wrong_has_its_default():
    first = {"name": "a", "colour": "red"}  # a newer version may have written more
    assert read_record(Whole, {"first": first}) == Whole(Part("a"))
    assert read_record(Whole, {"first": {"name": "a", "size": "large"}, "count": [1], "words": "no",
                               "parts": "a,b", "last": 3}) == Whole(Part("a"))
    assert read_record(Whole, {"first": first, "parts": [{"size": 1}]}).parts == ()


@dataclass(frozen=True)
class Numbers:
    time: UnixTime | None = None
    length: Seconds = 0.0
    any: float = 0.0
    whole: int = 0
    several: tuple[Count, ...] = ()
    inside: tuple[Numbers, ...] = ()


@pytest.mark.parametrize(("name", "wrong"), [
    *((name, value) for name in ("time", "length", "any")
      for value in (1e301, -1e301, math.nan, math.inf, 10 ** 400, True, "1")),
    ("time", -1.0), ("time", 1e12), ("length", -1e12), ("whole", 10 ** 400), ("whole", True),
    ("several", [1, 1 << 60]), ("several", [-1])])
def test_a_number_out_of_bounds_is_as_if_it_was_not_there(name, wrong):
    assert read_record(Numbers, {name: wrong}) == Numbers()
    with pytest.raises(ValueError, match=name):
        read_record(Numbers, {name: wrong}, strict=True)
    if isinstance(wrong, float | int | list) and not isinstance(wrong, bool):
        read = Numbers(**{name: wrong})  # as by a reader that knows no bounds
        assert not within_bounds(read)
        assert not within_bounds({"a": [Numbers(inside=(read,))]})
    assert within_bounds({"a": [Numbers(1.0, -5.0, 1e300, 1 << 70, (1,), (Numbers(),))]})


def test_none_is_a_value_where_it_may_be():
    @dataclass
    class Needed:
        part: Part | None

    assert read_record(Needed, {"part": None}) == Needed(None)
    with pytest.raises(ValueError, match="a table of Part"):
        read_record(Needed, {"part": 3})


@pytest.mark.parametrize(("data", "said"), [
    ({}, "Whole has no first"), ({"first": {}}, "Part has no name"), ([], "a table of Whole"),
    (None, "a table of Whole"), ({"first": {"name": 3}}, "expected")])
def test_what_has_no_default_must_be_there(data, said):
    with pytest.raises(ValueError, match=said):
        read_record(Whole, data)
