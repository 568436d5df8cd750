"""Our own processes import nothing that lies in the folder which a person is in."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpu_engine
import gpu_panel
from gpu_engine.devices.probe import Discover, Probe
from gpu_engine.queue import serve
from gpu_engine.remote.reach import setup
from gpu_engine.remote.reach.call import Call
from gpu_engine.remote.reach.hosts import LOCAL, Host
from gpu_engine.runs import folder as runs
from gpu_panel import exporting

from .conftest import patience, wait_for
from .panel.test_main import Terminal
from .queue.kit import queue, state

BIN = Path(sys.executable).parent
ROOTS = (Path(gpu_engine.__file__).parent, Path(gpu_panel.__file__).parent)
STARTED = {"common/programs.py"}
"""Where `sys.executable` is started: by the one function."""
DECOYS = ("gpu_engine", "gpu_panel", "textual", "msgspec", "click", "getpass", "json", "torch",
          "psutil", "encodings", "sitecustomize", "pynvml")


def test_this_interpreter_is_started_by_one_function():
    """Elsewhere `sys.executable` is a word that is told, never the head of an argument list."""
    heads = {}
    for root in ROOTS:
        for file in root.rglob("*.py"):
            found = [node.lineno for node in ast.walk(ast.parse(file.read_text()))
                     for head in _heads(node) if ast.unparse(head) == "sys.executable"]
            if found:
                heads[str(file.relative_to(root))] = found
    assert heads.keys() == STARTED, heads


def _heads(node: ast.AST) -> list[ast.expr]:
    """The expression that may be the program of an argument list."""
    if isinstance(node, ast.List | ast.Tuple):
        return node.elts[:1]
    if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("os.exec", "os.posix_sp",
                                                                         "os.spawn")):
        return node.args
    return []


def test_what_is_sent_to_a_host_is_started_outside_of_the_persons_folder():
    assert Path(setup.__file__).read_text().count("cd /") == 2


@pytest.fixture
def marker(home, tmp_path, monkeypatch):
    """A file that each of the modules in the current folder writes."""
    path, folder = tmp_path / "marker", tmp_path / "work"
    for name in DECOYS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(
            f"import os\nos.close(os.open({str(path)!r}, os.O_CREAT))\n")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return path


def test_the_decoys_would_be_imported(marker):
    subprocess.run([sys.executable, "-c", "import click"], check=True)
    assert marker.exists()


COMMANDS = ("--version", "hosts check local", "runs", "show last", "devices", "plan --set "
            "task.use=gpu_engine.tasks.digits:Digits", "queue", "doctor",
            "export last --to csv --out x.csv", "resume last", "run --devices cpu:0 -- true",
            "run --queue --devices cpu:0 -- true",
            "run --set devices.hosts=local:cpu:0 -- true")


@pytest.mark.timeout(300)
def test_no_command_imports_it(marker):
    run = queue("true", begin=False)
    assert serve.ensure()
    wait_for(lambda: state(run) == "completed" and not run.supervised())
    for words in COMMANDS:
        done = subprocess.run([BIN / "gpu-engine", *words.split()], capture_output=True, text=True)
        assert "Traceback" not in done.stderr
        wait_for(lambda: not any(r.state().live or r.supervised() for r in runs.all_runs()))
        assert not marker.exists(), done


def test_the_panel(marker):
    terminal = Terminal(program=(str(BIN / "gpu-panel"),))
    terminal.until(b"Devices")
    os.close(terminal.fd)
    os.waitpid(terminal.pid, 0)
    assert not marker.exists()


def test_what_a_process_starts_for_which_pythonpath_names_the_folder_by_an_empty_entry(
        marker, monkeypatch):
    """Its own path is Python's to decide, but not that of what it starts."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep)
    probe = Probe()
    probe.send(Discover("nvml", {}, 5.0))
    assert probe.receive(patience()) is not None
    probe.close()
    with Call(Host(LOCAL), "devices", "--json", "--watch", "1"):
        pass
    run = queue("true", begin=False)
    assert serve.ensure()
    wait_for(lambda: state(run) == "completed" and not run.supervised())
    assert exporting._run(["report", run.id, "--out", "r.html"]) == "r.html"
    assert not marker.exists()
