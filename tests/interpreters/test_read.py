"""An environment that lies near by is read, and only a launch starts it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_engine.interpreters import ask
from gpu_engine.interpreters.ask import Build
from gpu_engine.runs import folder as runs

from ..conftest import wait_for
from ..panel.test_main import Terminal
from .environments import environment, torch_in

pytestmark = pytest.mark.own_torch
BIN = Path(sys.executable).parent


def test_its_files_say_what_the_interpreter_would(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "user"))
    monkeypatch.delenv("PYTHONNOUSERSITE", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    torch_in(environment(tmp_path / "plain"), "2.13.0+rocm7.0", None, "7.0")
    named = environment(tmp_path / "named")
    (named / "more.pth").write_text(f"# a comment\nimport sys\n{tmp_path / 'elsewhere'}\n")
    torch_in(tmp_path / "elsewhere", "2.12.0")
    torch_in(tmp_path / "user" / named.relative_to(tmp_path / "named"), "2.11.0")
    environment(tmp_path / "sees", system=True)
    torch_in(environment(tmp_path / "own first", system=True), "2.10.0")
    environment(tmp_path / "alone")
    (environment(tmp_path / "removed") / "torch").mkdir()  # what an uninstallation may leave
    for prefix in tmp_path.glob("*/pyvenv.cfg"):
        with prefix.open("a") as file:
            file.write("version = {}.{}.{}\n".format(*sys.version_info))
        python = str(prefix.parent / "bin" / "python")
        told = ask.environment(python)
        assert told == ask.inspect(python), prefix
    assert told.version == sys.version_info[:3]
    assert ask.environment(str(tmp_path / "plain/bin/python")).build \
        == Build("2.13.0+rocm7.0", None, "7.0")
    monkeypatch.setenv("PYTHONPATH", f":relative:{tmp_path / 'elsewhere'}")
    told = ask.environment(str(tmp_path / "alone/bin/python"))
    assert told.build.version == "2.12.0"


def test_what_can_not_be_read_is_unknown(tmp_path: Path) -> None:
    python = str(tmp_path / "env" / "bin" / "python")
    assert ask.environment(python).problem == "there is no such interpreter"
    site = environment(tmp_path / "env")
    (tmp_path / "env" / "pyvenv.cfg").unlink()
    os.mkfifo(tmp_path / "env" / "pyvenv.cfg")
    os.mkfifo(site / "waits.pth")
    assert ask.environment(python) == ask.Seen(python)
    (site / "torch-2.13.0.dist-info").mkdir()
    assert "editable installation" in ask.environment(python).sentence()
    (torch_in(site) / "version.py").write_bytes(b"\xff\0")
    told = ask.environment(python)
    assert (told.has_torch, told.build) == (True, None)


@pytest.fixture
def marker(home, tmp_path, monkeypatch) -> Path:
    """A file that the interpreter of the .venv in the current folder adds to when it is started."""
    prefix, path = tmp_path / "work" / ".venv", tmp_path / "marker"
    torch_in(environment(prefix))
    (prefix / "bin" / "python").unlink()
    (prefix / "bin" / "python").write_text(
        f'#!/bin/sh\necho "$*" >> {shlex.quote(str(path))}\nexit 3\n')
    (prefix / "bin" / "python").chmod(0o755)
    monkeypatch.chdir(tmp_path / "work")
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    return path


DIGITS = "--set task.use=gpu_engine.tasks.digits:Digits --devices cpu:0"


@pytest.mark.parametrize("words", [f"plan {DIGITS}", "doctor", "devices", "runs",
                                   "hosts check local"])
def test_a_command_that_looks_starts_nothing_of_the_folder(words: str, marker: Path) -> None:
    done = subprocess.run([BIN / "gpu-engine", *words.split()], capture_output=True, text=True)
    assert not marker.exists(), done
    if words == "doctor" or words.startswith("plan"):
        assert ".venv" in done.stdout, "it was considered"


def test_nor_does_the_panel(marker: Path) -> None:
    terminal = Terminal(program=(str(BIN / "gpu-panel"),))
    terminal.until(b"32 global")
    os.close(terminal.fd)
    os.waitpid(terminal.pid, 0)
    assert not marker.exists()


def test_a_launch_starts_it(marker: Path) -> None:
    subprocess.run([BIN / "gpu-engine", "run", "--detach", *DIGITS.split()], check=False,
                   capture_output=True)
    run = runs.all_runs()[0]
    wait_for(lambda: not run.state().live and not run.supervised())
    assert "--run" in marker.read_text()
