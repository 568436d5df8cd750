"""What is kept of the environment that a run is started in."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_engine import __version__
from gpu_engine.code import snapshot
from gpu_engine.launching.environment import git_state
from gpu_engine.places.verbs import launch
from gpu_engine.runs import environment
from gpu_engine.runs.environment import Environment
from gpu_engine.spec.read import from_dict

from ..conftest import over, slots, torch_version


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(["git", "-C", folder, *who, *words], check=True, capture_output=True,
                          text=True).stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A git repository with two files, one of which was changed, and one that git is not told
    of."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    for name in ("a.py", "b.py"):
        (folder / name).write_text("1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    (folder / "a.py").write_text("2\n")
    (folder / "notes").write_text("3\n")
    return folder


def test_the_commit_and_what_differs_from_it(project: Path, tmp_path: Path) -> None:
    assert git_state(project) == (git(project, "rev-parse", "HEAD").strip(), 1)
    assert git_state(tmp_path) == (None, None)
    assert git_state(tmp_path / "gone") == (None, None)


@pytest.mark.own_torch
def test_a_launch_keeps_it(home: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    run = launch(from_dict({"task": {"command": [sys.executable, "-c", "pass"]},
                            "devices": {"ids": ["cpu:1"]}}), inventory=slots(2))
    assert environment.read(run.path) == Environment(
        __version__, sys.executable, torch_version(), None, socket.gethostname(), "1 × CPU slot",
        str(project), git(project, "rev-parse", "HEAD").strip(), 1,
        snapshot.take(project).name, str(project))
    over(run)


def test_a_command_that_is_no_python_is_started_once(home: Path, project: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """Its interpreter is not known, and asking it would be another start."""
    monkeypatch.chdir(project)
    script = project / "go.sh"
    script.write_text("#!/bin/sh\necho started >> calls\n")
    script.chmod(0o755)
    run = launch(from_dict({"task": {"command": ["./go.sh"]}, "devices": {"ids": ["cpu:1"]}}),
                 inventory=slots(2))
    over(run)
    found = environment.read(run.path)
    assert (found.python, found.torch) == (None, None)
    assert found.commit is not None
    assert (project / "calls").read_text() == "started\n"


def test_what_is_no_environment_is_none(tmp_path: Path) -> None:
    assert environment.read(tmp_path) == Environment()
    (tmp_path / environment.FILE).write_text('["a"]')
    assert environment.read(tmp_path) == Environment()
    (tmp_path / environment.FILE).write_text('{"torch": 3, "commit": "ab", "other": 1}')
    assert environment.read(tmp_path) == Environment(commit="ab")
