"""Making a task from its name and parameters, with errors that say what would be right."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest

from gpu_engine import Bounds, Existing
from gpu_engine.training.params import TaskError, build, load
from gpu_engine.training.task import Task


@dataclass
class Sample(Task):
    width: int = 64
    "Units."
    rate: float = 0.5
    name: str = ""
    deep: bool = False
    kind: Literal["a", "b"] = "a"
    limit: int | None = None
    sizes: list[int] = field(default_factory=list)
    folder: Path = Path("x")


@dataclass
class Needy(Task):
    text: str
    "What to read."

    def __post_init__(self):
        if not self.text:
            raise ValueError("text is empty")


@dataclass
class Checked(Task):
    width: Annotated[int, Bounds(ge=1, multiple_of="heads")] = 64
    heads: Annotated[int, Bounds(ge=1)] = 4
    side: Annotated[int, Bounds(multiple_of=32)] = 32
    text: Annotated[str, Existing("file")] = ""
    deep: bool = False

    def check(self):
        if self.width > 64 and not self.deep:
            yield "width", "more than 64 needs deep = true"
        if self.side == 96:
            raise ValueError("side 96 is not known")


def test_values_arrive_as_their_types():
    task = build(Sample, {"width": 8, "rate": 1, "deep": True, "kind": "b", "limit": 3,
                          "sizes": [1, 2], "folder": "/tmp"})
    assert (task.width, task.rate, task.deep, task.kind, task.limit, task.sizes, task.folder) == (
        8, 1.0, True, "b", 3, [1, 2], Path("/tmp"))
    assert type(task.rate) is float


@pytest.mark.parametrize(("given", "said"), [
    ({"width": "wide"}, "task.params.width = 'wide': expected a whole number"),
    ({"width": 1.5}, "task.params.width = 1.5: expected a whole number"),
    ({"width": True}, "task.params.width = True: expected a whole number"),
    ({"rate": "x"}, "task.params.rate = 'x': expected a number"),
    ({"deep": 1}, "task.params.deep = 1: expected true or false"),
    ({"kind": "c"}, "task.params.kind = 'c': expected one of a, b"),
    ({"limit": "x"}, "task.params.limit = 'x': expected a whole number"),
    ({"sizes": 3}, "task.params.sizes = 3: expected a list of whole numbers"),
    ({"wdith": 3}, "task.params.wdith: Sample has no such parameter; did you mean width?"),
    ({"zzz": 3}, "it has width, rate, name, deep, kind, limit, sizes, folder"),
])
def test_wrong_values_say_what_was_expected(given, said):
    with pytest.raises(TaskError) as caught:
        build(Sample, given)
    assert said in str(caught.value)


def test_all_mistakes_are_listed_at_once():
    with pytest.raises(TaskError) as caught:
        build(Sample, {"width": "x", "rate": "y", "nope": 1})
    assert len(str(caught.value).splitlines()) == 3


def test_what_is_missing_or_refused():
    with pytest.raises(TaskError, match="text: Needy needs it"):
        build(Needy, {})
    with pytest.raises(TaskError, match="refuses them: text is empty"):
        build(Needy, {"text": ""})


@pytest.mark.parametrize(("given", "said"), [
    ({"width": 0}, "width = 0: expected a whole number at least 1 and divisible by heads"),
    ({"width": 6}, "width = 6: expected a multiple of heads, which is 4"),
    ({"heads": 5}, "width = 64: expected a multiple of heads, which is 5"),
    ({"side": 48}, "side = 48: expected a whole number divisible by 32"),
    ({"text": "/nonexist"}, "text = '/nonexist': there is no such file"),
    ({"text": "gone"}, "text = 'gone': there is no such file: /"),
    ({"text": "/"}, "text = '/': there is no such file"),
    ({"width": 128}, "width = 128: more than 64 needs deep = true"),
    ({"side": 96}, "task.params: Checked refuses them: side 96 is not known"),
])
def test_a_task_says_which_values_it_takes(given, said):
    with pytest.raises(TaskError) as caught:
        build(Checked, given)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_what_a_task_takes_it_gets():
    task = build(Checked, {"width": 128, "deep": True, "side": 64, "text": __file__})
    assert (task.width, task.text) == (128, __file__)


def test_load_says_where_it_looked_and_why_it_failed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def said(ref: str) -> str:
        with pytest.raises(TaskError) as caught:
            load(ref)
        return str(caught.value)

    assert "expected module:Class" in said("nothing")
    assert f"no file {tmp_path / 'gone.py'}" in said("gone.py:Task")
    assert "no module 'no_such_module'" in said("no_such_module:X")
    assert "did you mean Digits?" in said("gpu_engine.tasks.digits:Digit")
    assert "not a subclass of gpu_engine.Task" in said("gpu_engine.tasks.digits:Path")
    (tmp_path / "broken.py").write_text("x = 1\ny = (\n")
    assert "line 2" in said("broken.py:X")
    (tmp_path / "fails.py").write_text("import os\n\nos.no_such_name\n")
    assert "fails.py, line 3: AttributeError" in said("fails.py:X")
    (tmp_path / "lacks.py").write_text("import no_such_package\n")
    assert "lacks.py, line 1: ModuleNotFoundError" in said("lacks.py:X")
    (tmp_path / "neighbour.py").write_text("WIDTH = 7\n")
    (tmp_path / "good.py").write_text(
        "from dataclasses import dataclass\nfrom gpu_engine import Task\nimport neighbour\n"
        "@dataclass\nclass Good(Task):\n    width: int = neighbour.WIDTH\n")
    assert build(load("good.py:Good"), {}).width == 7
