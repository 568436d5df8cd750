"""The list of mutations fits the code: each text occurs once, and the named tests exist."""

from __future__ import annotations

import ast

import pytest

from .listed import ROOT, Mutation, Stale, read

ROOMS = {"plan/batch.py", "plan/build.py", "plan/check.py", "spec/modes.py",
         *(f"training/{name}.py" for name in (
             "checkpoint", "data", "evaluate", "loop", "precision", "rng", "session", "step_loss",
             "strategies/base", "strategies/data_parallel", "strategies/distributed"))}


def test_every_mutation_fits_the_code() -> None:
    listed = read()
    assert len(listed) >= 80
    assert {m.file for m in listed} >= ROOMS
    assert len({(m.file, m.before, m.after) for m in listed}) == len(listed)
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


@pytest.mark.parametrize(("file", "before", "words"), [
    ("plan/build.py", "no such text", "occurs 0 times"), ("plan/build.py", "def ", "expected once"),
    ("gone.py", "x", "no engine/gpu_engine/gone.py any more")])
def test_a_mutation_that_no_longer_fits_is_an_error(file: str, before: str, words: str) -> None:
    with pytest.raises(Stale, match=words) as raised:
        Mutation(file, "clip is ignored", before, "pass", ("x",)).apply(ROOT)
    assert "clip is ignored" in str(raised.value)
