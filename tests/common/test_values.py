"""Parameters of any type: typed as they are shown, checked before the launch, built by the rank."""

import subprocess
import sys
import textwrap
from enum import Enum
from pathlib import Path
from typing import List, Literal  # noqa: UP035  as tasks annotate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpu_engine.common.values import convert, json_value, kind_of, parse, show
from gpu_engine.launching.preflight import lasting
from gpu_engine.spec import catalog
from gpu_engine.spec.read import apply_sets, from_dict
from gpu_engine.spec.write import to_toml
from gpu_engine.training import params

from ..conftest import slots

SOURCE = '''
from __future__ import annotations
import typing as t
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Dict, List, Literal, Optional, Union
from gpu_engine import Task
from other import Far

class Opt(Enum):
    ADAM = "adam"
    SGD = "sgd"

class Level(IntEnum):
    LOW = 1
    HIGH = 2

Size = Literal["small", "large"]

@dataclass
class Mine(Task):
    size: Size = "small"
    kind: t.Literal["a", "b"] | None = None
    depth: Literal[18, 50] = 50
    opt: Opt = Opt.ADAM
    level: "Level" = Level.HIGH
    far: Far = Far.ONE
    shape: tuple[int, int] = (3, 4)
    many: tuple[float, ...] = (0.5,)
    sizes: List[int] = field(default_factory=lambda: [1, 2])
    words: list[str] = field(default_factory=list)
    weights: dict[str, float] = field(default_factory=dict)
    by_depth: Dict[int, float] = field(default_factory=dict)
    folder: Path = Path("data")
    cache: Optional[Path] = None
    either: Union[int, str] = 3
    rate: Annotated[float, "per second"] = 0.1
    flag: Optional[bool] = None
    free: "NoSuchThing" = None
'''
OTHER = "from enum import Enum\nclass Far(Enum):\n    ONE = (1, 2)\n    TWO = (3, 4)\n"


@pytest.fixture
def use(tmp_path, monkeypatch):
    (tmp_path / "other.py").write_text(OTHER)
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("other", None)
    return f"{tmp_path / 'mine.py'}:Mine"


GOOD = [  # typed, and what the task gets
    ("size", "large", "large"), ("kind", "b", "b"), ("depth", "18", 18), ("opt", "SGD", "SGD"),
    ("opt", "sgd", "SGD"), ("level", "LOW", "LOW"), ("far", "TWO", "TWO"),
    ("shape", "[5, 6]", (5, 6)), ("shape", "(5, 6)", (5, 6)), ("shape", "5, 6", (5, 6)),
    ("many", "[]", ()), ("many", "1, 2.5, 3e-4", (1.0, 2.5, 3e-4)), ("sizes", "7", [7]),
    ("sizes", "[1,2,3]", [1, 2, 3]), ("words", "adam, 3", ["adam", "3"]),
    ("words", "['a b', \"c\"]", ["a b", "c"]), ("weights", "{a = 1, b = 2.5}", {"a": 1., "b": 2.5}),
    ("weights", "{'a': 1}", {"a": 1.0}), ("by_depth", "{18 = 0.5}", {18: 0.5}),
    ("by_depth", "{18: 0.5}", {18: 0.5}), ("folder", "x/y z", Path("x/y z")),
    ("cache", "123", Path("123")), ("either", "text", "text"), ("rate", "1", 1.0),
    ("flag", "true", True), ("free", "[1, 'x']", [1, "x"])]
BAD = [
    ("size", "huge", "expected one of small, large"), ("depth", "34", "expected one of 18, 50"),
    ("opt", "RMS", "expected one of ADAM, SGD"), ("far", "THREE", "expected one of ONE, TWO"),
    ("shape", "[1]", "expected a list of 2 whole numbers, not 1"),
    ("shape", "(1, x)", "expected a list of 2 whole numbers, written [1, 2]"),
    ("shape", "[1, 2.5]", "expected a whole number"),
    ("sizes", "1, two", "expected a list of whole numbers; two does not fit"),
    ("weights", "a", "expected a table of numbers, written {a = 1, b = 2}"),
    ("weights", "{a = 'x'}", "expected a table of numbers; x does not fit"),
    ("by_depth", "{x = 1}", "expected a whole number"), ("flag", "perhaps", "true or false")]


def found(use, value_of):
    spec = from_dict({"task": {"use": use, "params": value_of}})
    return {p.key: p.message for p in lasting(spec, slots(1)) if p.key.startswith("task.params")}


@pytest.mark.parametrize(("name", "text", "wanted"), GOOD)
def test_what_is_typed_reaches_the_task_as_its_type(use, name, text, wanted):
    field = catalog.describe(use).field(name)
    typed = parse(text, field.kind)
    spec = from_dict({"task": {"use": use, "params": {name: typed}}})
    import tomllib

    stored = tomllib.loads(to_toml(spec))["task"]["params"]
    assert found(use, stored) == {}
    cls = params.load(use)
    built = getattr(params.build(cls, stored), name)
    assert (built.name if isinstance(built, Enum) else built) == wanted
    assert type(built) is type(wanted) or isinstance(built, (Enum, Path))
    again = parse(show(json_value(built)), field.kind)
    assert getattr(params.build(cls, {name: again}), name) == built


@pytest.mark.parametrize(("name", "text", "wanted"), GOOD)
def test_so_does_what_set_is_given(use, name, text, wanted):
    data = {"task": {"use": use}}
    apply_sets(data, [f"task.params.{name}={text}"])
    value = data["task"]["params"][name]
    if (name == "sizes" and text == "7") or name == "cache":
        assert "expected" in str(found(use, data["task"]["params"]))  # a number, by its type
        return
    assert found(use, data["task"]["params"]) == {}
    built = getattr(params.build(params.load(use), {name: value}), name)
    assert (built.name if isinstance(built, Enum) else built) == wanted


@pytest.mark.parametrize(("name", "text", "says"), BAD)
def test_what_does_not_fit_is_said_alike_before_the_launch_and_by_the_rank(use, name, text, says):
    field = catalog.describe(use).field(name)
    for value in (parse(text, field.kind), text):
        assert says in found(use, {name: value})[f"task.params.{name}"]
        with pytest.raises(params.TaskError) as caught:
            params.build(params.load(use), {name: value})
        assert says in str(caught.value)


# --- properties -------------------------------------------------------------------------------

HINTS = [(int, st.integers(-10**12, 10**12)), (float, st.floats(allow_nan=False,
                                                                allow_infinity=False)),
         (bool, st.booleans()), (list[int], st.lists(st.integers(-99, 99), max_size=4)),
         (list[str], st.lists(st.text(max_size=6), max_size=4)),
         (tuple[float, bool], st.tuples(st.floats(-1e9, 1e9), st.booleans())),
         (tuple[str, ...], st.lists(st.text(max_size=5), max_size=3).map(tuple)),
         (dict[str, int], st.dictionaries(st.text(max_size=4), st.integers(-9, 9), max_size=3)),
         (dict[int, list[float]], st.dictionaries(
             st.integers(0, 99), st.lists(st.floats(-9, 9), max_size=2), max_size=3)),
         (Literal["a", "b c", 3], st.sampled_from(["a", "b c", 3])),
         (list[int] | None, st.lists(st.integers(0, 9), max_size=3)),
         (List, st.lists(st.integers(0, 9), max_size=3)),  # noqa: UP006
         (int | float, st.integers(0, 99))]


@given(st.sampled_from(range(len(HINTS))), st.data())
def test_a_value_is_read_back_as_it_is_shown(which, data):
    hint, values = HINTS[which]
    value, kind = data.draw(values), kind_of(hint)
    assert convert(parse(show(value), kind), kind) == value


@given(st.text(max_size=12), st.sampled_from([h for h, _ in HINTS] + [Path, dict, tuple, str]))
@example("~0", Path)  # no such user
def test_any_text_is_read_or_refused_in_words(text, hint):
    kind = kind_of(hint)
    said = "expected "
    try:
        convert(parse(text, kind), kind)
    except ValueError as err:
        said = str(err)
    assert said.startswith("expected ")


def test_values_without_tomllib():
    """A rank's Python may be 3.10, which has none; JSON and Python do."""
    code = textwrap.dedent("""
        import sys
        sys.modules["tomllib"] = None
        from gpu_engine.common.values import convert, kind_of
        print(convert("(3, 4)", kind_of(tuple[int, int])), convert("[true]", kind_of(list[bool])))
    """)
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "(3, 4) [True]"
