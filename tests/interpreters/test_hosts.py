"""A host finds the interpreter of its ranks itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpu_engine.interpreters.inspection import Build
from gpu_engine.remote.reach.hosts import Host
from gpu_engine.remote.run.nodes import meet

from .environments import environment, torch_in

pytestmark = [pytest.mark.own_torch, pytest.mark.usefixtures("home")]


def test_by_the_same_rule_in_the_folder_of_the_run(tmp_path: Path) -> None:
    # No release: the tests may run with any.
    torch_in(environment(tmp_path / "project" / ".venv"), "2.99.0+cu999", "99.9")
    box = Host("box", via=("env", "-u", "VIRTUAL_ENV", "-u", "CONDA_PREFIX"), python=sys.executable)
    there = meet(box, (str(tmp_path / "gone"), str(tmp_path / "project"))).welcome
    elsewhere = meet(box, ("/",)).welcome
    python = str(tmp_path / "project" / ".venv" / "bin" / "python")
    assert (there.interpreter, there.torch) == (python, Build("2.99.0+cu999", "99.9", None))
    assert (there.python, there.lacking) == (sys.executable, None)
    # Our program's own environment, which is first on its PATH as it has torch.
    assert elsewhere.interpreter is not None
    assert Path(elsewhere.interpreter).parent == Path(sys.executable).parent
    assert elsewhere.torch != there.torch
