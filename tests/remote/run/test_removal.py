"""Removing a run removes it on its hosts; what stays there is said, and the run with it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_engine.cli import cli
from gpu_engine.common.errors import UserError
from gpu_engine.launching.launcher import launch, resume
from gpu_engine.remote.run import removal
from gpu_engine.runs.folder import Run
from gpu_engine.spec.read import from_dict

from .kit import DIGITS, ended, losses, make_hosts, there


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
    assert ended(run).state == "completed", run.state()
    return run


def remove(*words: str) -> int:
    try:
        cli.main(["runs", "rm", *words], standalone_mode=False)
    except SystemExit as err:
        return int(err.code or 0)
    return 0


def test_a_run_goes_from_its_hosts_with_its_code(project, home, tmp_path, capsys):
    """As far as they can be reached, and as nobody else uses the code."""
    make_hosts(home, "a", "b", script='[ -e "$GPU_PANEL_HOME.cut" ] && exit 255; exec "$@"')
    other, run = started("a"), started("a", "b")
    copy = Run(run.path.with_name("c0c0"))
    shutil.copytree(run.path, copy.path)
    on_a, on_b = there(run, "a"), there(run, "b")
    code_a, code_b = (next(p for p in (tmp_path / host / "code").iterdir() if p.is_dir())
                      for host in "ab")
    (tmp_path / "b.cut").touch()
    assert removal.what_goes([run, other]).endswith(
        " here; their parts on a, b go too. Nothing brings them back.")
    assert "; its parts on a, b stay. " in removal.what_goes([run], only_here=True)
    assert remove("--yes", run.id) == 1
    said = capsys.readouterr()
    assert said.out.startswith(f"{run.id} on a: {on_a} removed, ")
    assert said.out.endswith(f" freed; its code stays in {code_a}: run {there(other, 'a').name} "
                             "uses it\n")
    assert said.err.startswith(f"{run.id} on b: {on_b} stays there: ")
    assert f"{run.id} stays here" in said.err
    assert (on_a.exists(), on_b.exists(), run.path.exists()) == (False, True, True)

    assert remove("--yes", "--here", copy.id) == 0  # no host is asked
    assert f"{copy.id} on a: {on_a}, with the checkpoints, stays there\n" in capsys.readouterr().err
    assert (on_b.exists(), copy.path.exists()) == (True, False)

    (tmp_path / "b.cut").unlink()
    (code_b / "result.txt").write_text("mine")
    assert remove("--yes", run.id, other.id) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{run.id} on a: nothing of it was there"
    assert said[1].endswith(f"; its code stays in {code_b}: there are files in it that were not "
                            "sent")
    assert said[3].endswith(f"; its code too, {code_a}")
    assert not any(path.exists() for path in (on_b, run.path, other.path, code_a))
    assert not code_a.with_name(f"{code_a.name}.list").exists()
    assert (code_b / "result.txt").read_text() == "mine"


def test_a_run_of_which_a_part_was_removed_goes_on_while_its_checkpoints_are_there(
        home, tmp_path, capsys):
    make_hosts(home, "a", "b", script='[ -e "$GPU_PANEL_HOME.cut" ] && exit 255; exec "$@"')
    run = launch(from_dict(DIGITS | {"devices": {"hosts": ["a:cpu:0", "b:cpu:1"]}}))
    assert ended(run).state == "completed", run.state()
    for cut, more in (("a", 9), ("b", 12)):
        (tmp_path / f"{cut}.cut").touch()
        assert remove("--yes", run.id) == 1
        (tmp_path / f"{cut}.cut").unlink()
        if cut == "a":
            resume(run, [f"train.steps={more}"])
            assert ended(run).state == "completed", run.state()
            assert [len(losses(run.path, rank)) for rank in (0, 1)] == [9, 9]
        else:
            with pytest.raises(UserError, match="its checkpoints were removed from a"):
                resume(run, [f"train.steps={more}"])
    assert remove("--yes", run.id) == 0
