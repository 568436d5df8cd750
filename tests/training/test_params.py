"""Making a task from its name and parameters, with errors that say what would be right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest

from gpu_engine import Bounds, Existing
from gpu_engine.training.params import TaskError, build, load
from gpu_engine.training.task import Task


@dataclass
class Sample(Task):
    width: int = 64
    "Units."
    rate: float = 0.5


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


@pytest.mark.parametrize(("given", "said"), [
    ({"width": "wide"}, "task.params.width = 'wide': expected a whole number"),
    ({"wdith": 3}, "task.params.wdith: Sample has no such parameter; did you mean width?"),
    ({"zzz": 3}, "it has width, rate"),
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
    ({"width": 6}, "width = 6: expected a multiple of heads, which is 4"),
    ({"text": "gone"}, "text = 'gone': there is no such file: /"),
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
