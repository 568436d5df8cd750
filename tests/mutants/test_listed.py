"""The list of mutations fits the code: each text occurs once in its function, and the named tests
exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from .listed import ROOT, Mutation, Stale, read

ROOMS = {"plan.batch", "plan.build", "plan.check", "spec.modes", "supervisor.supervise",
         *(f"training.{name}" for name in (
             "checkpoint", "data", "evaluate", "loop", "precision", "rng", "saving", "session",
             "strategies"))}


def test_every_mutation_fits_the_code() -> None:
    listed = read()
    assert len(listed) >= 80
    assert {m.module for m in listed} >= ROOMS
    assert len({(m.at, m.before, m.after) for m in listed}) == len(listed)
    for mutation in listed:
        assert mutation.before != mutation.after, mutation.why
        ast.parse(mutation.apply(ROOT))
        assert mutation.tests, f"{mutation.why!r} names no tests, nor does its room"
        for test in mutation.tests:
            file, _, name = test.partition("::")
            path = ROOT / "tests" / file
            assert path.is_file(), f"{mutation.why!r}: there is no {path}"
            assert not name or f"def {name}(" in path.read_text(), \
                f"{mutation.why!r}: {file} has no {name}"


@pytest.mark.parametrize(("at", "before", "words"), [
    ("plan.build:plan", "no such text", "occurs 0 times"),
    ("plan.build", "def ", "expected once"), ("plan.build:gone", "x", "no gone in"),
    ("training.loop:Loop.gone", "x", "no gone in"),
    ("training.loop:Loop.train.gone", "x", "no gone"),
    ("gone", "x", "no engine/gpu_engine/gone.py any more")])
def test_a_mutation_that_no_longer_fits_is_an_error(at: str, before: str, words: str) -> None:
    with pytest.raises(Stale, match=words) as raised:
        Mutation(at, "clip is ignored", before, "pass", ("x",)).apply(ROOT)
    assert "clip is ignored" in str(raised.value)


def test_a_mutation_is_made_in_its_function_alone(tmp_path: Path) -> None:
    code = "def a():\n    return 1\n\n\nclass B:\n    def a(self):\n        return 1\n"
    folder = tmp_path / "engine" / "gpu_engine"
    folder.mkdir(parents=True)
    (folder / "m.py").write_text(code)
    head, _, tail = code.partition("class")
    assert Mutation("m:a", "", "1", "2", ()).apply(tmp_path) == (
        head.replace("1", "2") + "class" + tail)
    assert Mutation("m:B.a", "", "1", "2", ()).apply(tmp_path) == (
        head + "class" + tail.replace("1", "2"))
