"""`@frozen`: what `@dataclass(frozen=True)` makes, in a third of its time.

dataclass writes and compiles six methods for every class, which before Python 3.13 takes half a
millisecond: a third of all time from a command to its ranks, as that takes a hundred of them. Here
only `__init__` is compiled; the other methods are the same functions for all classes.

Fields, `replace`, `asdict`, `fields`, pickling and copying are those of dataclasses. Not for
`kw_only`, `order` and `__post_init__`. Standard library and Python 3.9 only: a rank imports this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, overload

_T = TypeVar("_T")

if TYPE_CHECKING:
    from typing import dataclass_transform
else:
    def dataclass_transform(**_):
        return lambda function: function


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[_T]) -> type[_T]: ...
@overload
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(*, slots: bool) -> Callable[[type[_T]], type[_T]]: ...
def frozen(cls: type[Any] | None = None, *, slots: bool = False) -> Any:
    """Decorator: make a class a dataclass whose instances don't change. With `slots`, they have
    no attributes but its fields, and take less memory."""
    if cls is None:
        return lambda cls: _made(cls, slots)
    return _made(cls, slots)


def _made(cls: type[Any], slots: bool) -> type[Any]:
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # dataclass would ask `inspect` for its parameters instead
    options = {"slots": True} if slots else {}  # not known to Python 3.9
    made = dataclass(init=False, repr=False, eq=False, **options)(cls)
    made.__init__ = _init_of(made)
    made._compared = _getter([each.name for each in fields(made) if each.compare])
    for name, method in _SHARED.items():
        if vars(made).get(name) is None:
            setattr(made, name, method)
    if slots:
        made.__getstate__, made.__setstate__ = _getstate, _setstate
    return made


def _init_of(cls: type[Any]) -> Callable[..., None]:
    """`__init__`, compiled for the fields of `cls`, as they can't be set in another way."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_none": MISSING}
    given, lines = ["self"], []
    for each in fields(cls):
        name, default = each.name, _default(each, known)
        if each.init:
            given.append(name + (f"={default}" if default else ""))
        value = name if each.init else default
        if each.default_factory is not MISSING:
            made = f"_d_{name}()"
            value = f"{made} if {name} is _none else {name}" if each.init else made
        lines.append(f"    _set(self, {name!r}, {value})")
    text = f"def __init__({', '.join(given)}):\n" + ("\n".join(lines) or "    pass")
    exec(text, known)
    made = known["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _default(each: Field[Any], known: dict[str, Any]) -> str:
    """The name of the default in the text of `__init__`; "" if there is none."""
    if each.default is not MISSING:
        known[f"_d_{each.name}"] = each.default
        return f"_d_{each.name}"
    if each.default_factory is not MISSING:
        known[f"_d_{each.name}"] = each.default_factory
        return "_none"
    return ""


def _getter(names: Sequence[str]) -> Callable[[Any], object]:
    """A function that returns an object's values by which it is compared, as fast as if it were
    compiled."""
    return attrgetter(*names) if names else staticmethod(lambda one: ())


def _eq(self: Any, other: object) -> bool:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self._compared(self) == self._compared(other)


def _hash(self: Any) -> int:
    return hash(self._compared(self))


def _repr(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _setattr(self: Any, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


_SHARED: dict[str, Callable[..., Any]] = {
    "__eq__": _eq, "__hash__": _hash, "__repr__": _repr, "__setattr__": _setattr,
    "__delattr__": _delattr}


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for each, value in zip(fields(self), state):
        object.__setattr__(self, each.name, value)
