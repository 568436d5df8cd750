"""What the documents say of the code is so: functions, pages and files that they name exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def exists(dotted: str) -> bool:
    """Whether `package.module.function`, or a class's method, is there, inherited ones left out."""
    parts = dotted.split(".")
    top = ROOT / ("engine" if parts[0] == "gpu_engine" else "tui")
    for cut in range(len(parts), 0, -1):
        file = top.joinpath(*parts[:cut]).with_suffix(".py")
        if not file.is_file():
            continue
        body, rest = ast.parse(file.read_text()).body, parts[cut:]
        while rest:
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            found = [n for n in body if isinstance(n, kinds) and n.name == rest[0]]
            if not found:
                return False
            body, rest = found[0].body, rest[1:]
        return True
    return top.joinpath(*parts).is_dir()


def walks() -> dict[str, list[str]]:
    """Title of each walk → the functions on its way."""
    text = (ROOT / "docs" / "walks.md").read_text()
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("**"):
            found[line.strip("*")] = []
        elif step := re.match(r"\d+\. `([\w.]+)`", line):
            found[list(found)[-1]].append(step[1])
    return found


def test_the_walks_are_short_and_true():
    assert len(walks()) == 4
    for title, steps in walks().items():
        assert 5 <= len(steps) <= 10, title
        assert [s for s in steps if not exists(s)] == [], title


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[\w-]*)?\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_are_named_are_there(page: Path):
    if page.name == "CHANGELOG.md":  # says what was
        return
    roots = [ROOT, ROOT / "engine" / "gpu_engine", ROOT / "tui" / "gpu_panel"]
    rooms = [ROOT / name for name in ("engine", "tui", "tests", "bench", "docs", "examples")]
    for name in re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|toml|md|tcss))`", page.read_text()):
        known = any((root / name).is_file() for root in roots) \
            or any(found for room in rooms for found in room.glob(f"**/{name}"))
        assert known or name.startswith(("path/to/", "presets/")), name


def test_a_function_that_is_gone_is_seen():
    assert exists("gpu_engine.spec.read.load")
    assert exists("gpu_engine.training.session.Session.run")
    assert not exists("gpu_engine.spec.read.no_such_thing")
    assert not exists("gpu_engine.training.session.Session.no_such_thing")
