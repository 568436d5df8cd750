"""Removing a run removes it on its hosts; what stays there is said, and the run with it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_engine.places.verbs import launch, what_goes
from gpu_engine.runs.folder import Run
from gpu_engine.spec.read import from_dict
from tests.command_line import called

from ...conftest import over
from .kit import CUT, make_hosts, there


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    (folder / "train.py").write_text("print('trained')\n")
    monkeypatch.chdir(folder)
    return folder


def started(*hosts: str) -> Run:
    run = launch(from_dict({"task": {"command": [sys.executable, "train.py"]},
                            "devices": {"hosts": [f"{h}:cpu:0" for h in hosts]},
                            "run": {"sync": "send"}}))
    assert over(run).state == "completed", run.state()
    return run


def remove(*words: str):
    return called("runs", "rm", "--yes", *words)


def test_a_run_goes_from_its_hosts_with_its_code(project, home, tmp_path):
    """As far as they can be reached, and as nobody else uses the code."""
    make_hosts(home, "a", "b", script=CUT)
    other, run = started("a"), started("a", "b")
    copy = Run(run.path.with_name("c0c0"))
    shutil.copytree(run.path, copy.path)
    on_a, on_b = there(run, "a"), there(run, "b")
    code_a, code_b = (next(p for p in (tmp_path / host / "code").iterdir() if p.is_dir())
                      for host in "ab")
    (tmp_path / "b.cut").touch()
    assert what_goes([run, other]).endswith(
        " here; their parts on a, b go too. Nothing brings them back.")
    assert "; its parts on a, b stay. " in what_goes([run], only_here=True)
    said = remove(run.id)
    assert said.returncode == 1
    assert said.stdout.startswith(f"{run.id} on a: {on_a} removed, ")
    assert said.stdout.endswith(f" freed; its code stays in {code_a}: run {there(other, 'a').name} "
                                "uses it\n")
    assert said.stderr.startswith(f"{run.id} on b: {on_b} stays there: ")
    assert f"{run.id} stays here" in said.stderr
    assert (on_a.exists(), on_b.exists(), run.path.exists()) == (False, True, True)

    said = remove("--here", copy.id)  # no host is asked
    assert said.returncode == 0
    assert f"{copy.id} on a: {on_a}, with the checkpoints, stays there\n" in said.stderr
    assert (on_b.exists(), copy.path.exists()) == (True, False)

    (tmp_path / "b.cut").unlink()
    (code_b / "result.txt").write_text("mine")
    said = remove(run.id, other.id)
    assert said.returncode == 0
    said = said.stdout.splitlines()
    assert said[0] == f"{run.id} on a: nothing of it was there"
    assert said[1].endswith(f"; its code stays in {code_b}: there are files in it that were not "
                            "sent")
    assert said[3].endswith(f"; its code too, {code_a}")
    assert not any(path.exists() for path in (on_b, run.path, other.path, code_a))
    assert not code_a.with_name(f"{code_a.name}.list").exists()
    assert (code_b / "result.txt").read_text() == "mine"
