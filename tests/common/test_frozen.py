"""`frozen` makes what dataclasses makes of the same class."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import time
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any, ClassVar

import pytest

from gpu_engine.common.frozen import frozen


class Fields:
    """A point."""

    kinds: ClassVar[int] = 3
    x: int
    y: float = 1.5
    names: list[str] = field(default_factory=list, compare=False)
    secret: str = field(default="", repr=False)
    made: float = field(init=False, default_factory=lambda: 7.0)

    @property
    def double(self) -> int:
        return 2 * self.x


def of(decorator: Any, bases: tuple[type, ...] = (object,)) -> Any:
    """`Fields` as `decorator` makes it."""
    namespace = {k: v for k, v in vars(Fields).items() if k not in ("__dict__", "__weakref__")}
    return decorator(type("Point", bases, namespace))


KINDS = {"plain": (of(frozen), of(dataclass(frozen=True))),
         "slots": (of(frozen(slots=True)), of(dataclass(frozen=True, slots=True)))}
Point, Slotted = KINDS["plain"][0], KINDS["slots"][0]
Point.__qualname__, Slotted.__qualname__ = "Point", "Slotted"


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_as_if_dataclasses_had_made_it(kind):
    ours, theirs = KINDS[kind]
    for args, more in (((1,), {}), ((1, 2.0, ["a"]), {"secret": "s"}), ((), {"x": 3, "y": 4.0})):
        one, other = ours(*args, **more), theirs(*args, **more)
        assert dataclasses.asdict(one) == dataclasses.asdict(other)
        assert repr(one).partition("(")[2] == repr(other).partition("(")[2]
        assert dataclasses.replace(one, x=9) == ours(9, one.y, one.names, one.secret)
        assert hasattr(one, "__dict__") == hasattr(other, "__dict__")
    assert [f.name for f in dataclasses.fields(ours)] == \
        [f.name for f in dataclasses.fields(theirs)]
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
    assert ours.__match_args__ == theirs.__match_args__
    assert ours.__doc__ == "A point."


@pytest.mark.parametrize("kind", KINDS)
def test_equal_are_those_of_one_class_with_the_same_values(kind):
    ours, theirs = KINDS[kind]
    one = ours(1, names=["a"])
    assert (one == ours(1), hash(one) == hash(ours(1))) == (True, True), "names are not compared"
    for other in (ours(2), ours(1, secret="s"), theirs(1), None, (1, 1.5, "", 7.0)):
        assert one != other
    assert {one: "found"}[ours(1)] == "found"
    nan = float("nan")
    assert ours(nan) == ours(nan), "as tuples compare it"


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_can_be_changed(kind):
    one = KINDS[kind][0](1)
    for change in (lambda: setattr(one, "x", 2), lambda: setattr(one, "new", 2),
                   lambda: delattr(one, "x")):
        with pytest.raises(FrozenInstanceError, match=r"x|new"):
            change()
    assert (one.x, one.double) == (1, 2)


def test_each_has_lists_of_its_own():
    one, other = Point(1), Point(1)
    one.names.append("a")
    assert (one.names, other.names) == (["a"], [])


@pytest.mark.parametrize("made", [Point, Slotted])
def test_it_is_copied_and_pickled(made, monkeypatch):
    monkeypatch.setitem(globals(), made.__qualname__, made)
    made.__module__, made.__name__ = __name__, made.__qualname__
    one = made(1, 2.0, ["a"], "s")
    for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert dataclasses.asdict(other) == dataclasses.asdict(one)
    assert copy.deepcopy(one).names is not one.names


def test_a_missing_argument_is_named():
    with pytest.raises(TypeError, match=r"Point\.__init__\(\) missing 1 required .*'x'"):
        Point()


def test_own_methods_stay_and_fields_are_inherited():
    @frozen
    class Base:
        kind = ""
        t: float = field(init=False, default_factory=time.time)

    @frozen
    class Named(Base):
        kind = "named"
        name: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named) and self.name.lower() == other.name.lower()

        def __repr__(self) -> str:
            return "named"

    @frozen(slots=True)
    class Empty:
        pass

    one = Named("A")
    assert (one == Named("a"), repr(one), one.kind) == (True, "named", "named")
    assert [f.name for f in dataclasses.fields(one)] == ["t", "name"]
    assert Empty() == Empty()
    assert len({Empty(), Empty()}) == 1
    assert Empty.__doc__ == "Empty"
