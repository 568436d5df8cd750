"""Types of values, and how a value is checked, parsed from text and shown as text.

The form, `--set`, presets, plan.json and the ranks all use these functions. The type of a spec key
comes from its field in `spec/schema.py`; that of a task's parameter comes from the task's source
(`spec/catalog.py`) or, in a rank, from the class itself (`training/params.py`).
Standard library only: a rank imports this.
"""

from __future__ import annotations

import ast
import collections.abc
import enum
import json
import math
import os
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from gpu_engine.common.clean import escaped
from gpu_engine.common.files import expanded


@dataclass(frozen=True)
class Bounds:
    """The limits of a number, used in a type: `Annotated[int, Bounds(ge=1)]`. A number with bounds
    must also be finite."""

    ge: float | None = None
    """At least."""
    gt: float | None = None
    """Greater than."""
    le: float | None = None
    """At most."""
    multiple_of: float | str | None = None
    """A number that it must be a multiple of, or the task's parameter that is this number."""
    time: bool = False
    """Whether it is a length of time, which may be written "5m"; a number is of seconds."""

    def hold(self, value: float) -> bool:
        """Whether `value` is within the bounds."""
        return (isinstance(value, int) or math.isfinite(value)) \
            and (self.ge is None or value >= self.ge) \
            and (self.gt is None or value > self.gt) \
            and (self.le is None or value <= self.le) \
            and (not isinstance(self.multiple_of, (int, float)) or value % self.multiple_of == 0)

    def describe(self) -> str:
        """The bounds in words: "at least 0 and at most 65535"; "" if there are none."""
        limits = (("at least", self.ge), ("greater than", self.gt), ("at most", self.le),
                  ("divisible by", self.multiple_of))
        return " and ".join(f"{how} {limit}" for how, limit in limits if limit is not None)


@dataclass(frozen=True)
class Existing:
    """That a path must be there when a run starts, used in a type: `Annotated[str,
    Existing("file")]`. A relative one starts at the ranks' folder. An empty text names nothing."""

    what: str = "file or folder"
    """"file", "folder" or "file or folder"."""

    def missing(self, path: str | Path, folder: Path) -> str | None:
        """What is wrong with `path`, seen from `folder`; None if it is there."""
        full = str(folder / expanded(path))
        is_there = {"file": os.path.isfile, "folder": os.path.isdir}.get(self.what, os.path.exists)
        if is_there(full):
            return None
        return f"there is no such {self.what}" + ("" if full == str(path) else f": {full}")


@dataclass(frozen=True)
class OneOf:
    """The choices for a text that come from a registry, used in a type:
    `Annotated[str, OneOf(modes.names)]`."""

    texts: Callable[[], tuple[str, ...]]
    """Called whenever the choices are needed, as a registry may grow."""


@dataclass(frozen=True)
class Kind:
    """A type of value."""

    name: str = "any"
    """int, float, bool, str, path, none, choice (a Literal or an Enum), list, tuple, dict, union,
    or any: a type that is not known here, which accepts every value."""
    args: tuple[Kind, ...] = ()
    """The types inside a list, tuple, dict or union; for a dict those of its keys and values."""
    choices: tuple[tuple[str, Any], ...] = ()
    """Of a choice: (how it is written, its value) each. A member of an Enum is written by its
    name; its value is accepted too."""
    same: bool = False
    """Whether a tuple holds any number of values of one type (`tuple[int, ...]`)."""
    bounds: Bounds = Bounds()
    """The limits of an int or a float."""
    existing: Existing | None = None
    """What a path, or a text that is one, must be."""

    def has(self, name: str) -> bool:
        """Whether this is the type `name`, or a union that contains it."""
        return self.name == name or any(a.name == name for a in self.args if self.name == "union")

    @property
    def without_none(self) -> Kind:
        """The same type without its `| None`."""
        rest = tuple(a for a in self.args if a.name != "none")
        return rest[0] if self.name == "union" and len(rest) == 1 else self


ANY = Kind()
_NAMES = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text",
          "path": "a path", "list": "a list", "tuple": "a list", "dict": "a table",
          "none": "nothing", "any": "anything"}
_EXACT = 1 << 53
"""The largest float of which all smaller whole numbers are floats too."""
YEAR = 366 * 86400.0
"""Seconds of the longest time that a person gives: a longer one is a slip."""
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_HELP = {"list": "written [1, 2]", "tuple": "written [1, 2]", "dict": "written {a = 1, b = 2}"}


def convert(value: Any, kind: Kind) -> object:
    """Convert `value`, from TOML, JSON or `parse`, to this type. Raises ValueError, which says what
    was expected."""
    if kind.name == "any":
        return value
    if kind.name == "union":
        return _of_union(value, kind)
    if kind.name == "choice":
        return _of_choices(value, kind)
    if kind.name in ("list", "tuple"):
        return _sequence(value, kind)
    if kind.name == "dict":
        return _table(value, kind)
    if kind.name == "path" and isinstance(value, (str, Path)):
        return expanded(value)
    if kind.bounds.time and isinstance(value, str):
        value = seconds(value)
    number = _is_number(value) and (
        kind.bounds == Bounds() or kind.bounds.hold(value))
    if kind.name == "float" and number:
        try:
            return float(value)
        except OverflowError:  # a whole number of 400 digits
            number = False
    if kind.name == "int" and number and isinstance(value, float) and value.is_integer() \
            and abs(value) <= _EXACT:
        return int(value)  # 1e6 is a million
    fits = {"int": number and isinstance(value, int), "bool": isinstance(value, bool),
            "str": isinstance(value, str), "none": value is None}
    if not fits.get(kind.name, False):
        raise ValueError("expected " + describe(kind))
    return value


def amiss(values: Mapping[str, object], kinds: Mapping[str, Kind], folder: Path | None
          ) -> dict[str, str]:
    """What is wrong with a task's parameters, each of which is of its type, seen together and from
    the ranks' `folder` (None: files are not looked for): the parameter's name, and what was
    expected."""
    found = {}
    for name, kind in kinds.items():
        value: Any = values.get(name)
        plain = kind.without_none
        of = plain.bounds.multiple_of
        by: Any = values.get(of) if isinstance(of, str) else None
        if _is_number(value) and _is_number(by) and by and value % by:
            found[name] = f"expected a multiple of {of}, which is {show(by)}"
        elif plain.existing and folder and isinstance(value, (str, Path)) and str(value):
            why = plain.existing.missing(value, folder)
            if why is not None:
                found[name] = why
    return found


def describe(kind: Kind) -> str:
    """The type in words: "a whole number at least 1", "one of a, b"."""
    if kind.name == "choice":
        return "one of " + ", ".join(text for text, _ in kind.choices)
    if kind.name == "union":
        return " or ".join(describe(a) for a in kind.args if a.name != "none")
    if kind.name == "tuple" and kind.args and not kind.same:
        inner = [describe(a) for a in kind.args]
        if len(set(inner)) == 1:
            return f"a list of {len(inner)} " + _plural(inner[0], len(inner))
        return "a list of " + ", ".join(inner[:-1]) + " and " + inner[-1]
    if kind.name in ("list", "tuple") and kind.args and kind.args[-1] != ANY:
        return "a list of " + _plural(describe(kind.args[0]), 2)
    if kind.name == "dict" and kind.args and kind.args[-1] != ANY:
        return "a table of " + _plural(describe(kind.args[1]), 2)
    limits = kind.bounds.describe()
    if kind.bounds.time:
        most = "" if kind.bounds.le is None else f" and at most {kind.bounds.le / 86400:g}d"
        return f"a time, as 90s, 5m or 1h30m, at least {kind.bounds.ge} s{most}"
    return f"{_NAMES[kind.name]} {limits}" if limits else _NAMES[kind.name]


def parse(text: str, kind: Kind) -> object:
    """Parse the text of a form field or of `--set key=…` into a value as a preset would hold it.
    Text that does not parse is returned unchanged, and `convert` then says what is wrong with it.
    If the type is not known, it is read as a TOML value if it is one, else kept as text."""
    plain = kind.without_none
    if plain.name == "any":
        return _toml_or_text(text)
    if plain.has("str") or plain.has("path"):
        return text
    if plain.name == "choice":
        # A member of an Enum is stored by its name, a value of a Literal as it is.
        return next((value for said, value in plain.choices
                     if said == text.strip() == show(value)
                     and isinstance(value, (bool, int, str))), text.strip())
    if plain.name == "list" and not text.strip():
        return []
    if plain.name in ("list", "tuple", "dict"):
        try:
            return json_value(_written(text.strip(), table=plain.name == "dict",
                                          texts=_of_texts(plain)))
        except ValueError:
            return text
    return json_value(_literal(text.strip()))


def show(value: object) -> str:
    """A value as the text of a form field: "[3, 4]", "{a = 1}", "true", "ADAM"."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(in_toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {in_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, float):
        return f"{value:g}" if value == float(f"{value:g}") else repr(value)
    return "" if value is None else str(value)


def quote(text: str) -> str:
    """`text` as a quoted TOML string. JSON's escapes are the same."""
    return escaped(json.dumps(text, ensure_ascii=False))


def json_value(value: object) -> object:
    """`value` as JSON can hold it: a tuple as a list, a path as text, an Enum's member by name."""
    if isinstance(value, (list, tuple)):
        return [json_value(v) for v in value]
    if isinstance(value, dict):
        return {str(show(k)): json_value(v) for k, v in value.items()}
    if isinstance(value, enum.Enum):
        return value.name
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def kind_of(hint: Any) -> Kind:
    """The `Kind` of a type annotation, given as a real type (not as text)."""
    simple = {int: "int", float: "float", bool: "bool", str: "str", list: "list", tuple: "tuple",
              dict: "dict", type(None): "none", None: "none"}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return Kind("choice", choices=tuple((m.name, m) for m in hint))
    if isinstance(hint, type) and issubclass(hint, Path):
        return Kind("path")
    try:
        if hint in simple:
            return Kind(simple[hint])
    except TypeError:  # the hint can't be hashed, such as an Annotated with a list in it
        pass
    origin, args = get_origin(hint), get_args(hint)
    if hasattr(hint, "__metadata__"):  # Annotated
        registry = next((m for m in hint.__metadata__ if isinstance(m, OneOf)), None)
        if registry is not None:
            return Kind("choice", choices=tuple((text, text) for text in registry.texts()))
        kind = kind_of(hint.__origin__)
        bounds = next((m for m in hint.__metadata__ if isinstance(m, Bounds)), kind.bounds)
        existing = next((m for m in hint.__metadata__ if isinstance(m, Existing)), kind.existing)
        return replace(kind, bounds=bounds, existing=existing)
    if origin is Literal:
        return Kind("choice", choices=tuple((show(a), a) for a in args))
    if origin is Union or origin is getattr(types, "UnionType", Union):
        kinds = tuple(map(kind_of, args))
        return ANY if ANY in kinds else Kind("union", kinds)
    if origin in (list, collections.abc.Sequence, collections.abc.Iterable):
        return Kind("list", tuple(map(kind_of, args)))  # of a bare List there are none
    if origin is tuple:
        same = len(args) == 2 and args[1] is Ellipsis
        return Kind("tuple", (kind_of(args[0]),) if same else tuple(map(kind_of, args)), same=same)
    if origin in (dict, collections.abc.Mapping):
        return Kind("dict", tuple(map(kind_of, args)))
    return ANY


def seconds(text: str) -> float | None:
    """The seconds of a length of time as a person writes it: "90s", "5m", "1h30m", "1.5 h", "2d",
    "90". None if it is none."""
    parts = re.findall(r"([\d.]+)\s*(s|min|m|h|d|$)\s*", text.strip())
    whole = "".join(number + unit for number, unit in parts) == "".join(text.split())
    if not whole or not parts or (len(parts) > 1 and not parts[-1][1]):
        return None
    try:
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    except ValueError:  # 1.2.3
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# --- values ------------------------------------------------------------------------------------

def _of_union(value: Any, kind: Kind) -> Any:
    # If the union takes texts, a text stays one; only then the other types are tried.
    first = ("str", "path") if isinstance(value, str) else ()
    for arg in sorted(kind.args, key=lambda a: a.name not in first):
        try:
            return convert(value, arg)
        except ValueError:
            continue
    raise ValueError("expected " + describe(kind))


def _of_choices(value: Any, kind: Kind) -> Any:
    said = show(value)
    for text, choice in kind.choices:
        if choice is value or text == said:
            return choice
    for _, choice in kind.choices:
        inner = getattr(choice, "value", choice)
        if type(inner) is type(value) and inner == value:
            return choice
    raise ValueError("expected " + describe(kind))


def _sequence(value: Any, kind: Kind) -> Any:
    if isinstance(value, str):
        value = _written(value, texts=_of_texts(kind), expected=describe(kind))
    if not isinstance(value, (list, tuple)):
        raise ValueError("expected " + describe(kind))
    made = tuple if kind.name == "tuple" else list
    if not kind.args:
        return made(value)
    if kind.name == "tuple" and not kind.same:
        if len(kind.args) != len(value):
            raise ValueError(f"expected {describe(kind)}, not {len(value)}")
        return tuple(convert(v, a) for v, a in zip(value, kind.args))
    return made(_element(v, kind.args[0], kind) for v in value)


def _of_texts(kind: Kind) -> bool:
    return bool(kind.args) and all(a.has("str") or a.has("path") for a in kind.args)


def _element(value: Any, kind: Kind, whole: Kind) -> Any:
    try:
        return convert(value, kind)
    except ValueError:
        shown = show(value) or repr(value)
        raise ValueError(f"expected {describe(whole)}; {shown} does not fit") from None


def _table(value: Any, kind: Kind) -> Any:
    if isinstance(value, str):
        value = _written(value, table=True, expected=describe(kind))
    if not isinstance(value, dict):
        raise ValueError(f"expected {describe(kind)}")
    if not kind.args:
        return value
    keys, values = kind.args
    # In TOML and JSON all keys are texts, whatever type the task wants.
    return {convert(k if keys.has("str") or not isinstance(k, str) else _literal(k), keys):
            _element(v, values, kind) for k, v in value.items()}


# --- text --------------------------------------------------------------------------------------

def _written(text: str, *, table: bool = False, texts: bool = False, expected: str = "") -> Any:
    """Parse a list or table written as TOML, JSON or Python. A list may come without brackets; its
    items are then kept as texts if `texts`."""
    bracketed = text.lstrip()[:1] in ("[", "(", "{")
    if texts and not bracketed and text.strip():
        return [part.strip() for part in text.split(",") if part.strip()]
    value = _literal(text)
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, dict if table else list):
        return value
    if table or bracketed or not text.strip():
        how = _HELP["dict" if table else "list"]
        raise ValueError(f"expected {expected or 'it'}, {how}")
    return [_literal(part.strip()) for part in text.split(",") if part.strip()]


def _literal(text: str) -> Any:
    """The value that `text` is a literal of; `text` itself if it is none."""
    for read in (_toml, json.loads, ast.literal_eval):
        try:
            value = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            continue
        if isinstance(value, (bool, int, float, str, list, tuple, dict)):
            return value
    return text


def _toml_or_text(text: str) -> Any:
    try:
        value = _toml(text)
    except (ValueError, RecursionError):
        return text
    # A date stays text: nothing that reads presets has a type for it.
    return value if isinstance(value, (bool, int, float, str, list, dict)) else text


def _toml(text: str) -> Any:
    try:
        import tomllib
    except ImportError:  # a rank may run on Python 3.10 or older: JSON and Python literals will do
        raise ValueError from None
    parsed = tomllib.loads(f"v = {text}")
    if set(parsed) != {"v"}:
        raise ValueError
    return parsed["v"]


def in_toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, enum.Enum):
        value = value.name
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, str):
        return quote(value)
    return repr(value) if isinstance(value, float) else show(value)


def _key(value: Any) -> str:
    text = show(value)
    bare = text and all(c.isascii() and (c.isalnum() or c in "-_") for c in text)
    return text if bare else quote(text)


def _plural(word: str, count: int) -> str:
    """"a whole number at least 1" → "whole numbers at least 1"."""
    if count == 1 or not word.startswith(("a ", "an ")):
        return word
    rest = word.partition(" ")[2]
    noun = next((n for n in ("number", "list", "table") if n in rest.split(" ")), rest)
    return rest.replace(noun, noun + "s", 1)
