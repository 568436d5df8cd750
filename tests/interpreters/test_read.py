"""An environment that lies near by is read, and only a launch starts it."""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_engine.cli import mcp
from gpu_engine.interpreters import inspection
from gpu_engine.interpreters.inspection import Build, Seen
from gpu_engine.places.verbs import prepare
from gpu_engine.runs import folder as runs
from gpu_engine.spec.read import from_dict

from ..command_line import called
from ..conftest import gpus, over
from ..panel.test_main import Terminal
from ..trust.watching import limits
from .environments import environment, torch_in

pytestmark = pytest.mark.own_torch
BIN = Path(sys.executable).parent


ASK = """
import sys
sys.path[:] = [p for p in sys.path if p]
from importlib.util import find_spec
found = find_spec("torch")
print([list(sys.version_info[:2]), found and found.origin])
"""
"""What the interpreter itself would say."""


def told(python: Path) -> list[object]:
    return ast.literal_eval(subprocess.check_output([python, "-c", ASK], text=True))


def read(seen: inspection.Seen) -> list[object]:
    return [list(seen.version or ())[:2],
            str(seen.torch.with_name("__init__.py")) if seen.torch is not None else None]


def test_its_files_say_what_the_interpreter_would(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "user"))
    for name in ("PYTHONNOUSERSITE", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    torch_in(tmp_path)  # not in the folder that one is in
    torch_in(environment(tmp_path / "plain"), "2.13.0+rocm7.0", None, "7.0")
    named = environment(tmp_path / "named")
    (named / "more.pth").write_text(f"# a comment\nimport sys\n{tmp_path / 'elsewhere'}\n"
                                    f"{'x' * 5000}\n")
    torch_in(tmp_path / "elsewhere", "2.12.0")
    environment(tmp_path / "sees", system=True)
    torch_in(environment(tmp_path / "own first", system=True), "2.10.0")
    environment(tmp_path / "alone")
    (environment(tmp_path / "removed") / "torch").mkdir()  # what an uninstallation may leave
    base = Path(sys._base_executable)  # pyright: ignore[reportAttributeAccessIssue]
    (tmp_path / "link").symlink_to(base)
    pythons = [base, tmp_path / "link", *(p.parent / "bin" / "python"
                                          for p in sorted(tmp_path.glob("*/pyvenv.cfg")))]
    assert len(pythons) == 8
    assert [read(inspection.inspect(str(p))) for p in pythons] == [told(p) for p in pythons]
    torch_in(tmp_path / "user" / named.relative_to(tmp_path / "named"), "2.11.0")
    assert [read(inspection.inspect(str(p))) for p in pythons] == [told(p) for p in pythons]
    assert inspection.inspect(str(tmp_path / "plain/bin/python")).build \
        == Build("2.13.0+rocm7.0", None, "7.0")
    monkeypatch.setenv("PYTHONPATH", f":relative:{tmp_path / 'elsewhere'}")
    assert inspection.inspect(str(tmp_path / "alone/bin/python")).build.version == "2.12.0"


def test_what_can_not_be_read_is_unknown(tmp_path: Path) -> None:
    python = str(tmp_path / "env" / "bin" / "python")
    for nothing in (python, "a\0b"):
        assert inspection.inspect(nothing).problem == "there is no such interpreter"
    site = environment(tmp_path / "env")
    (tmp_path / "env" / "pyvenv.cfg").write_text("home = /nowhere\nversion = 3.12.4\n")
    site = site.parent.rename(site.parents[1] / "python3.12") / "site-packages"
    os.mkfifo(site / "waits.pth")
    assert inspection.inspect(python) == Seen(python, (3, 12, 4))
    (site / "torch-2.13.0.dist-info").mkdir()  # an editable installation
    assert inspection.inspect(python).sentence() == "Python 3.12.4, a torch of unknown version"
    for nested in (b"\xff\0", b"-" * 60000 + b"1"):
        (torch_in(site) / "version.py").write_bytes(nested)
        seen = inspection.inspect(python)
        assert (seen.has_torch, seen.build) == (True, None)
    for name, make in (("pipe", os.mkfifo), ("folder", os.mkdir), ("file", Path.touch)):
        make(path := tmp_path / name)
        assert inspection.inspect(str(path)).problem == "can't be executed"
        path.chmod(0o755)
        assert inspection.inspect(str(path)).unread is (name == "file")


def test_what_is_read_is_bounded(tmp_path: Path) -> None:
    python, site = str(tmp_path / "env" / "bin" / "python"), environment(tmp_path / "env")
    (tmp_path / "env" / "pyvenv.cfg").write_text(
        f"home = {'/x' * 9000}/{'y' * 300}/bin\ninclude-system-site-packages = true\n")
    for number in range(100):
        (site / f"{number:03d}.pth").write_text("/nowhere\n" * 7000)
    with limits():
        assert not inspection.inspect(python).has_torch
    torch = torch_in(site)
    (torch / "version.py").write_text(f"cuda = '\\x1b[2J13'\n__version__ = '{'9' * 30000}'\n")
    build = inspection.inspect(python).build
    assert (build.cuda, len(build.version)) == ("13", 60)


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
LOOKS = (f"plan {DIGITS}", "plan ./a.toml", "plan ./a.toml --json", "plan ./a.toml --grid lr=1,2",
         "plan ./a.toml --set run.python=.venv/bin/python", "plan ./own.toml",
         "plan ./hosts.toml", "slurm ./a.toml",
         "doctor", "devices", "presets", "runs", "hosts check local",
         "run --queue --begin +90m ./a.toml", "queue", "queue --json", "show last",
         "show last --json", "report last -o r.html", "export last --to csv -o a.csv", "stop last")
"""What is written in the folder by somebody else: a preset that names the interpreter of the ranks,
one with a command, and an environment."""


@pytest.fixture
def presets(marker: Path) -> None:
    python = Path(".venv/bin/python").absolute()
    where, there = '[devices]\nids = ["cpu:0"]\n', '[devices]\nhosts = ["local:cpu:0"]\n'
    task = f'[task]\nuse = "gpu_engine.tasks.digits:Digits"\n[run]\npython = "{python}"\n'
    for name, text in (("a", where + task), ("hosts", there + task),
                       ("own", f'{where}[task]\ncommand = ["{python}", "train.py"]\n')):
        Path(f"{name}.toml").write_text(text)
    Path("train.py").touch()


@pytest.mark.usefixtures("presets")
def test_what_looks_or_waits_starts_nothing_of_the_folder(marker: Path) -> None:
    for words in LOOKS:
        done = called(*words.split())
        assert not marker.exists(), done
        assert "Traceback" not in done.stderr
        assert done.returncode == 0 or words == "doctor", done
        if words == "doctor" or (words.startswith("plan") and "--grid" not in words):
            assert ".venv" in done.stdout, "it was considered"
    mine = from_dict({"task": {"command": [".venv/bin/python", "train.py"]},
                      "devices": {"ids": ["0"]}})
    prepare(mine, inventory=gpus(1))  # whose torch is to fit the GPUs
    for may in ({"run"}, set[str]()):
        rights = mcp.Rights("agent:a", frozenset(may))
        told, wrong = mcp.call("plan", {"preset": "./a.toml"}, rights)
        assert wrong is not bool(may), told
    assert not marker.exists()


@pytest.mark.usefixtures("presets")
def test_nor_does_the_panel(marker: Path) -> None:
    terminal = Terminal(program=(str(BIN / "gpu-panel"), "./a.toml"))
    terminal.until(b"64 global")
    os.close(terminal.fd)
    os.waitpid(terminal.pid, 0)
    assert not marker.exists()


@pytest.mark.parametrize("words", [DIGITS, "./a.toml"])
@pytest.mark.usefixtures("presets")
def test_a_launch_starts_it(words: str, marker: Path) -> None:
    called("run", "--detach", *words.split())
    run = runs.all_runs()[0]
    over(run)
    assert "--run" in marker.read_text()
