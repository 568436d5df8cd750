"""What of a person's own command is refused before it runs, by what it is."""

from __future__ import annotations

import json
import shlex
import sys

import pytest

from gpu_engine.runs import folder as runs

from ..command_line import called

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with some scripts, in which the commands are given."""
    there = tmp_path / "project"
    there.mkdir()
    monkeypatch.chdir(there)
    (there / "train.py").write_text("import sys; print(sys.argv[1:])")
    (there / "x.py").write_text("print(1)")
    (there / "x.py").chmod(0o755)
    (there / "run.sh").write_text("#!/bin/sh\n")
    return there


@pytest.mark.parametrize(("command", "says"), [
    ("python nosuch.py", "there is no file {here}/nosuch.py"),
    ("python -u -X dev nosuch.py --x", "there is no file {here}/nosuch.py"),
    ("env A=1 python a/nosuch.py", "there is no file {here}/a/nosuch.py"),
    ("nohup python nosuch.py", "there is no file {here}/nosuch.py"),
    ("bash nosuch.sh", "there is no file {here}/nosuch.sh"),
    ("./nosuch.py", "there is no file {here}/nosuch.py"),
    ("./train.py --lr 1", "not executable: write python ./train.py --lr 1, or chmod +x ./train.py"),
    ("./run.sh", "write sh ./run.sh, or chmod +x"),
    ("train.py", "is run as python train.py"),
    ("./x.py", "does not begin with #!"),
    ("LR=1 python train.py", "write env LR=1 python train.py"),
    ("'~/bin/python' train.py", "write "),
    ("'python train.py | tee log'", "sh -c 'python train.py | tee log'"),
    ("no-such-program", "no such program on the PATH"),
])
def test_it_is_said_what_would_do(folder, command, says):
    done = called("run", "--devices", "cpu:0", "--", *shlex.split(command))
    assert done.returncode == 2
    assert says.format(here=folder) in done.stderr
    assert not runs.all_runs()


def test_a_relative_program_is_looked_for_where_the_run_is(folder, monkeypatch):
    """A resume may be typed elsewhere, and a sweep's process is in no folder of anybody's."""
    (folder / "go.sh").write_text("#!/bin/sh\nexit 3\n")
    (folder / "go.sh").chmod(0o700)
    assert "exited with 3" in called("run", "--devices", "cpu:0", "--", "./go.sh").stderr
    monkeypatch.chdir("/")
    assert "exited with 3" in called("resume", "last").stderr


@pytest.mark.parametrize("command", [
    "python train.py", "python -u train.py", "python -c 1", "python -m nosuch", "python - x",
    "python .", "env -C / python nosuch.py", "uv run --directory / python nosuch.py",
    "bash -c 'echo {{x}}'", "sh run.sh", "python {{x}}.py", "torchrun nosuch.py"])
def test_what_may_be_there_is_not_refused(command, monkeypatch, tmp_path):
    for name in ("uv", "torchrun", "python"):  # whether these are installed is another matter
        (tmp_path / name).symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    done = called("plan", "--devices", "cpu:0", "--", *shlex.split(command))
    assert "there is no file" not in done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize(("words", "name"), [
    (("ddp",), "train"), (("ddp", "--set", "name=mine"), "mine"), ((), "train")])
def test_its_run_is_called_as_the_command_and_not_as_the_preset(words, name):
    done = called("plan", "--json", *words, "--devices", "cpu:0", "--", "python", "train.py")
    assert json.loads(done.stdout)["name"] == name


def test_twelve_kilobytes_arrive_whole():
    words = ["x" * 100 for _ in range(120)]
    done = called("run", "--devices", "cpu:0", "--", sys.executable, "train.py", *words)
    assert done.returncode == 0, done.stderr
    assert str(words) in runs.all_runs()[0].log(0).read_text()
