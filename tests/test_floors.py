"""The oldest Python and torch of a rank. Whether it runs there is what `make matrix` finds out."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gpu_engine.common import floors

from .matrix import combinations, table
from .test_walls import ENGINE, TORCH, imported_modules, our_modules

NOT_THE_RANKS = ("gpu_engine.worker.without_supervisor", "gpu_engine.worker.restarts")
"""Of a rank that reads a preset itself, for which all of gpu-panel is installed beside it."""


def rank_modules() -> dict[str, Path]:
    """Every module that a rank, an observed script or a question to the ranks' interpreter loads,
    by late imports too."""
    known = our_modules()
    ahead = [name for name in known if name.split(".")[1:2] and name.split(".")[1] in TORCH
             and name not in NOT_THE_RANKS]
    found: dict[str, Path] = {"gpu_engine": known["gpu_engine"]}
    while ahead:
        name = ahead.pop()
        found[name] = known[name]
        ahead += [m for m in imported_modules(name, known[name], known)
                  if m not in found and m not in NOT_THE_RANKS]
    return found


def test_what_a_rank_imports_is_python_3_10():
    """In its syntax, and of the standard library without what we would miss most."""
    found = rank_modules()
    assert len(found) > 70
    newer = {}
    for name, file in found.items():
        text = file.read_text()
        ast.parse(text, feature_version=(3, 10))
        if hits := re.findall(r"\b(?:tomllib|datetime import UTC|StrEnum|ExceptionGroup|TaskGroup"
                              r"|add_note|LiteralString|assert_never|file_digest|Self)\b", text):
            newer[name] = hits
    # `read_toml` is called where presets are read, never by a rank with a plan; `values` does
    # without it.
    assert newer.keys() == {"gpu_engine.spec.read", "gpu_engine.common.values"}
    assert {name for names in newer.values() for name in names} == {"tomllib"}


def test_the_rank_says_that_its_python_is_too_old():
    """Its file can be read by any Python, here one that says that it is 3.9."""
    file = ENGINE / "worker" / "__main__.py"
    code = textwrap.dedent(f"""
        import sys
        sys.version_info = (3, 9, 18)
        exec(compile(open({str(file)!r}).read(), "rank", "exec"))""")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          timeout=600)
    assert done.returncode == 2
    assert done.stderr == (f"{sys.executable} is Python 3.9.18, and ranks need Python 3.10 or "
                           "newer\n")
    text = file.read_text()
    assert text.isascii()
    assert not [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.JoinedStr)
                or (isinstance(n, ast.ImportFrom) and n.module == "__future__")]


def test_both_floors_are_the_same():
    assert f"sys.version_info < {floors.PYTHON}" in (ENGINE / "worker" / "__main__.py").read_text()


@pytest.mark.parametrize(("version", "said"), [
    ("2.3.1+cu121", "torch 2.3.1+cu121 is too old: ranks need torch 2.4 or newer"),
    ("1.13.1", "torch 1.13.1 is too old: ranks need torch 2.4 or newer"),
    ("2.4.0", None), ("2.13.0+cpu", None), ("3.0.0a0+git1", None), ("unknown", None)])
def test_a_torch_that_is_too_old(version, said):
    assert floors.torch_too_old(version) == said


@pytest.mark.parametrize(("version", "said"), [
    ((3, 9, 18), "is Python 3.9.18, and ranks need Python 3.10 or newer"), ((3, 10, 0), None),
    ((4, 0, 0), None)])
def test_a_python_that_is_too_old(version, said):
    assert floors.python_too_old(version) == said


def test_the_workflow_and_the_page_have_every_combination():
    root = Path(__file__).parents[1]
    workflow = (root / ".github" / "workflows" / "matrix.yml").read_text()
    wanted = [*(f"ranks --only {python}x{torch}" for python, torch in combinations.RANKS),
              *(f"panel --only {python}" for python in combinations.PANEL)]
    assert re.findall(r'"((?:ranks|panel) --only [^"]+)"', workflow) == wanted
    page = table.DOC.read_text()
    assert page.partition(table.BEGIN)[2].partition(table.END)[0] == table.rendered(table.read())
