"""Tasks read from source: found, refused with what there is, and never run."""

from __future__ import annotations

import os
import re
import runpy
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import get_type_hints

import pytest

from gpu_engine.common.errors import UserError
from gpu_engine.common.values import ANY, json_value, kind_of
from gpu_engine.launching.preflight import lasting
from gpu_engine.spec import catalog
from gpu_engine.spec.read import from_dict

from ..conftest import HAS_TORCH, slots

SOURCE = '''
"""A task."""
import torch_is_not_imported_for_this
raise SystemExit("nobody runs this")

class Base(Task):
    depth: int = 2
    """How deep."""

@dataclass
class Mine(Base):
    """Trains mine.

    More words.
    """
    folder: str
    """Where the data
    is."""
    lr: "float | None" = None
    names: list = field(default_factory=len)
    computed: int = len("abc")
    shared: ClassVar[int] = 3
    _hidden: int = 1

class Odd(Elsewhere, Base):
    x: int = 1

class Round(Circle):
    x: int = 1

class Circle(Round):
    y: int = 1
'''


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my_task.py"
    path.write_text(SOURCE)
    return path


def test_fields_come_with_type_default_and_help_and_nothing_runs(file):
    info = catalog.describe(f"{file}:Mine")
    got = {f.name: (f.type, f.default, f.required, f.help) for f in info.fields}
    assert got == {
        "depth": ("int", 2, False, "How deep."),
        "folder": ("str", None, True, "Where the data is."),
        "lr": ("float | None", None, False, ""), "names": ("list", None, False, ""),
        "computed": ("int", None, False, "")}
    assert info.doc.startswith("Trains mine.")
    assert info.whole
    for odd, names in (("Odd", ["depth", "x"]), ("Round", ["y", "x"])):
        found = catalog.describe(f"{file}:{odd}")
        assert ([field.name for field in found.fields], found.whole) == (names, False)


TYPED = """
import dataclasses, pathlib, typing
from dataclasses import dataclass, field
from enum import Enum, IntEnum, StrEnum
from pathlib import Path, PosixPath
from typing import *
from gpu_engine.common.values import Bounds, Existing

class Colour(Enum):
    _ignore_ = []
    RED = "red"
    BLUE = (1, 2)

class Level(IntEnum):
    LOW = 1

class Word(StrEnum):
    ONE = "one"

class Plain:
    size = 1

Alias = Literal["a", 3]

@dataclass
class T:
"""
TYPES = """int|float|bool|str|None|Path|PosixPath|list|tuple|dict|list[int]
List[str]|tuple[int, float]|Tuple[int, ...]|dict[str, int]|Dict[int, list[float]]|Mapping[str, bool]
Sequence[int]|Iterable[str]|Union[int, str, None]|Optional[float]|typing.Optional["int"]|Alias
Optional[Alias]|Literal["x"]|Annotated[int, Bounds(ge=1, le=9), "words"]|Annotated[str, "no limit"]
Annotated[float, Bounds(0.5, multiple_of="x")]|Annotated[str, Existing("file")]|"Level"|Word|Plain
list[Colour]|"list['list[int]']"|Colour|Any|Callable[[int], str]|set[int]|dict[str, Any]"""
DEFAULTS = """1|-2.5|"x"|None|True|(1, (2, "x"))|Path("data")|pathlib.Path("a/b")|Colour.RED
field(default=3)|dataclasses.field(default="x")|field(default_factory=list)|field(kw_only=True)
field(default_factory=dict)|field(default_factory=tuple)|field(default_factory=lambda: [1, 2])"""


def test_the_source_tells_the_types_and_defaults_that_python_makes(tmp_path):
    (tmp_path / "typed.py").write_text(TYPED + "\n".join([
        *(f"    a{i}: {type}" for i, type in enumerate(re.split(r"[|\n]", TYPES))),
        *(f"    b{i}: Any = {made}" for i, made in enumerate(re.split(r"[|\n]", DEFAULTS)))]))
    space = runpy.run_path(str(tmp_path / "typed.py"))
    hints = get_type_hints(space["T"], space, include_extras=True)
    made = {f.name: f for f in fields(space["T"])}
    for found in catalog.describe("typed.py:T", cwd=tmp_path).fields:
        assert repr(found.kind) == repr(kind_of(hints[found.name])), found
        own = made.pop(found.name)
        default = own.default if own.default_factory is MISSING else own.default_factory()
        assert found.required == (default is MISSING), found
        assert found.default == (None if found.required else json_value(default)), found
    assert not made


def test_a_task_that_a_package_re_exports_is_found(tmp_path, file):
    package = tmp_path / "pkg"
    (package / "deep").mkdir(parents=True)
    file.rename(package / "tasks.py")
    (package / "__init__.py").write_text("from .deep import Mine\nfrom .round import Gone\n"
                                         "from ........far import Far\n")
    (package / "deep" / "__init__.py").write_text("from ..tasks import Mine\n"
                                                  "from pkg.tasks import Odd\n")
    (package / "round.py").write_text("from . import Gone\nfrom .round import Gone\n")
    (tmp_path / "over.py").write_text("from pkg import Mine\n"
                                      "class More(Mine):\n    more: int = 1\n")
    whole = catalog.describe("pkg.tasks:Mine", cwd=tmp_path)
    assert whole.file == package / "tasks.py"
    for use in ("pkg:Mine", "pkg.deep:Mine"):
        found = catalog.describe(use, cwd=tmp_path)
        assert (found.use, found.file, found.fields) == (use, whole.file, whole.fields)
    more = catalog.describe("over:More", cwd=tmp_path)
    assert more.whole
    assert more.fields[:-1] == whole.fields
    assert catalog.describe("pkg.deep:Odd", cwd=tmp_path).fields
    for use in ("pkg:Gone", "pkg:Far", "pkg:Mime"):
        with pytest.raises(UserError, match=f"there is no class {use[4:]} in pkg"):
            catalog.describe(use, cwd=tmp_path)


def test_built_in_tasks_are_found_without_importing_them():
    before = set(sys.modules)
    found = {i.use for i in catalog.builtin()}
    assert {"gpu_engine.tasks.bytes_gpt:BytesGPT", "gpu_engine.tasks.digits:Digits",
            "gpu_engine.tasks.mnist:Mnist"} <= found
    new = set(sys.modules) - before
    assert not [m for m in new if m.startswith(("torch", "gpu_engine.tasks."))]
    for info in catalog.builtin():
        assert info.doc, info.use
        assert all(f.help for f in info.fields), info.use
        assert catalog.describe(info.use).fields == info.fields


@pytest.mark.parametrize(("use", "says"), [
    ("nothing", "module:Class"), ("a:b c", "module:Class"), ("no_such_module:X", "no module"),
    ("gpu_engine.tasks.nope:X", "gpu_engine.tasks.nope"), ("absent.py:X", "no file absent.py"),
    ("gpu_engine.tasks.digits:Digitz", "did you mean Digits"), ("./x/y.py:T", "no file"),
    ("sys:X", "no module sys"), ("/x/y.py:T", "no file /x/y.py$"),
    ("space:X", "module space has no Python source")])
def test_what_cannot_be_found_is_said(use, says, tmp_path):
    (tmp_path / "space").mkdir()
    with pytest.raises(UserError, match=says):
        catalog.describe(use, cwd=tmp_path)


def test_source_that_does_not_parse_is_named_with_its_line(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text("x = 1\nclass (:\n")
    with pytest.raises(UserError, match="line 2"):
        catalog.describe(f"{path}:X")
    path.write_bytes(b"\0\0")
    with pytest.raises(UserError):
        catalog.describe(f"{path}:X")


def test_source_that_is_no_task_s_is_refused_and_not_waited_for(tmp_path):
    for text, says in (("x = " + "-" * 60000 + "1", "nested too deeply"), (None, "larger than 16")):
        (tmp_path / "a.py").write_text(text or "")
        if text is None:
            os.truncate(tmp_path / "a.py", 1 << 40)
        with pytest.raises(UserError, match=says):
            catalog.describe("a.py:T", cwd=tmp_path)
    hint = "-" * 60000 + "1"
    (tmp_path / "a.py").write_text(f"Left = Left | int\nRight = int | Right\nIn = list[In]\n"
                                   f"Self = Self\nclass T:\n    a: '{hint}' = 1\n    b: Left\n"
                                   f"    c: Right\n    d: In\n    e: Self\n"
                                   f"    f: Mapping[int]\n")
    fields = catalog.describe("a.py:T", cwd=tmp_path).fields
    assert [(f.name, f.kind == ANY) for f in fields] == [(name, name != "d") for name in "abcdef"]


def test_params_are_held_against_the_source(file):
    def found(params):
        spec = from_dict({"task": {"use": f"{file}:Mine", "params": params}})
        return {p.key: p.message for p in lasting(spec, slots(1))}

    assert "did you mean depth" in found({"folder": "x", "dept": 3})["task.params.dept"]
    assert "Where the data is" in found({})["task.params.folder"]
    assert found({"folder": "x", "depth": 3}) == {}
    for wrong in ("3", 1.5, True, [3]):
        assert found({"folder": "x", "depth": wrong}) == {
            "task.params.depth": "expected a whole number"}
    assert found({"folder": "x", "lr": "fast"}) == {"task.params.lr": "expected a number"}
    assert found({"folder": "x", "lr": 1}) == {}
    assert found({"folder": "x", "names": 7}) == {"task.params.names": "expected a list"}


LIMITS = '''
from typing import Annotated
from gpu_engine import Bounds, Existing, Task

Positive = Annotated[int, Bounds(ge=1)]

class Limited(Task):
    width: Annotated[int, gpu_engine.Bounds(1, multiple_of="heads")] = 64
    heads: Positive = 4
    rate: "Annotated[float, Bounds(gt=0, le=1)] | None" = None
    data: Annotated[str, Existing("folder")] = ""
    odd: Annotated[int, Bounds(ge="a"), Bounds(multiple_of=0), Bounds(nope=1), Elsewhere(3), 7] = 1
    computed: Annotated[int, Bounds(ge=len("abc"))] = 1
'''


def test_limits_are_read_from_the_source_too(tmp_path):
    (tmp_path / "limited.py").write_text(LIMITS)
    (tmp_path / "there").mkdir()

    def found(**params):
        spec = from_dict({"task": {"use": "limited.py:Limited", "params": params}})
        return {p.key: p.message for p in lasting(spec, slots(1), tmp_path)}

    assert [f.type for f in catalog.describe("limited.py:Limited", cwd=tmp_path).fields] == [
        "int", "Positive", "float | None", "str", "int", "int"]
    assert found(width=128, heads=8, rate=1, data="there", odd=-9) == found() == {}
    assert found(width=0)["task.params.width"].startswith("expected a whole number at least 1")
    assert found(heads=0) == {"task.params.heads": "expected a whole number at least 1"}
    assert found(heads=3) == {"task.params.width": "expected a multiple of heads, which is 3"}
    assert found(rate=0) == {"task.params.rate":
                             "expected a number greater than 0 and at most 1"}
    assert found(data="gone") == {"task.params.data":
                                  f"there is no such folder: {tmp_path}/gone"}
    assert found(data=str(tmp_path / "limited.py")) == {
        "task.params.data": "there is no such folder"}


@pytest.mark.skipif(not HAS_TORCH, reason="imports the tasks")
def test_source_and_import_know_the_same_limits():
    from gpu_engine.training import params

    examples = Path(__file__).parents[2] / "examples"
    uses = [*catalog.BUILTIN, f"{examples}/cnn.py:Shapes", f"{examples}/own_recipe.py:Curve",
            f"{examples}/language_model.py:Words"]
    for info in map(catalog.describe, uses):
        hints = get_type_hints(params.load(info.use), include_extras=True)
        assert {f.name: f.kind for f in info.fields} == {
            f.name: kind_of(hints[f.name]) for f in info.fields}
        numbers = [f for f in info.fields if f.kind.name in ("int", "float")]
        assert all(f.kind.bounds.describe() for f in numbers), info.use


def test_a_task_that_fails_to_import_says_where_and_why(tmp_path):
    from gpu_engine.training import params

    path = tmp_path / "broken.py"
    path.write_text("import json\n\nvalue = json.loads('nothing')\n")
    with pytest.raises(UserError) as caught:
        params.load(f"{path}:X")
    assert f"{path}, line 3" in str(caught.value)
    assert "JSONDecodeError" in str(caught.value)
