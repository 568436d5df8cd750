"""The manual pages: as the commands are, rendered without a warning, and in the wheel."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from ..man_pages import FOLDER, pages

ROOT = Path(__file__).parents[2]


def test_the_pages_are_those_of_the_commands():
    made = pages()
    assert {"gpu-engine.1", "gpu-engine-run.1", "gpu-engine-runs-rm.1", "gpu-panel.1"} <= set(made)
    there = {path.name: path.read_text() for path in FOLDER.glob("*.1")}
    assert there.keys() == made.keys(), "python -m tests.man_pages writes them"
    changed = [name for name in made if made[name] != there[name]]
    assert not changed, f"python -m tests.man_pages writes {changed}"


def test_groff_renders_them_without_a_warning():
    if shutil.which("groff") is None:
        pytest.skip("no groff here")
    out = subprocess.run(["groff", "-man", "-ww", "-Kutf8", "-Tutf8", "-P-cbou",
                          *sorted(map(str, FOLDER.glob("*.1")))], capture_output=True, text=True,
                         timeout=600, check=False)
    assert (out.returncode, out.stderr) == (0, "")
    for words in ("gpu-engine-run - start a run from PRESET", "--detach", "EXIT STATUS"):
        assert words in " ".join(out.stdout.replace("‐", "-").split())


def test_they_are_installed_where_man_looks():
    """In share/man of the environment, which man finds by the PATH (manpath(1))."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())
    data = told["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    assert data == {"docs/man": "share/man/man1"}
