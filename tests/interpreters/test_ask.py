"""What an interpreter says that it has. The interpreters are real; their torch has two files and
fails if somebody imports it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from gpu_engine.interpreters import ask
from gpu_engine.interpreters.ask import Build

from .environments import environment, torch_in

pytestmark = pytest.mark.own_torch


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_torch_where_only_the_interpreter_finds_it(tmp_path: Path, monkeypatch) -> None:
    """Named by a .pth file, offered by the finder of an editable installation, in the packages of
    the user for an environment that sees them; not in the folder that it is asked in."""
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "user"))
    monkeypatch.delenv("PYTHONNOUSERSITE", raising=False)
    monkeypatch.chdir(tmp_path)
    torch_in(tmp_path)
    named = environment(tmp_path / "named")
    (named / "more.pth").write_text(f"{tmp_path / 'elsewhere'}\n")
    torch_in(tmp_path / "elsewhere", "2.12.0")
    editable = environment(tmp_path / "editable")
    (editable / "_finder.py").write_text(
        "import sys\nfrom importlib.util import spec_from_file_location as of\n"
        "class Finder:\n def find_spec(self, name, path=None, target=None):\n"
        f"  return of(name, {str(torch_in(tmp_path / 'checkout', '2.14.0a0') / '__init__.py')!r}) "
        "if name == 'torch' else None\nsys.meta_path.append(Finder())\n")
    (editable / "editable.pth").write_text("import _finder\n")
    user = tmp_path / "user" / named.relative_to(tmp_path / "named")
    torch_in(user, "2.11.0")
    environment(tmp_path / "sees", system=True)
    environment(tmp_path / "alone")
    found = {name: ask.inspect(str(tmp_path / name / "bin" / "python"))
             for name in ("named", "editable", "sees", "alone")}
    assert {name: seen.build and seen.build.version for name, seen in found.items()} == {
        "named": "2.12.0", "editable": "2.14.0a0", "sees": "2.11.0", "alone": None}
    assert {seen.version for seen in found.values()} == {sys.version_info[:3]}
    assert not found["alone"].has_torch


def test_an_answer_is_good_for_some_seconds(tmp_path: Path, monkeypatch) -> None:
    site = environment(tmp_path / "env")
    python = str(tmp_path / "env" / "bin" / "python")
    assert not ask.inspect(python).has_torch
    torch = torch_in(site, "2.13.0+cpu", None)
    assert not ask.inspect(python).has_torch
    monkeypatch.setattr(ask, "_GOOD", -1.0)
    assert ask.inspect(python).build == Build("2.13.0+cpu", None, None)
    torch_in(site, "2.13.0+rocm7.0", None, "7.0")
    assert ask.inspect(python).sentence().endswith("torch 2.13.0+rocm7.0 for ROCm 7.0")
    (torch / "version.py").write_text("nothing of use")
    unreadable = ask.inspect(python)
    assert (unreadable.has_torch, unreadable.build) == (True, None)
    shutil.rmtree(torch)
    torch.mkdir()  # what an uninstallation leaves
    assert not ask.inspect(python).has_torch


@pytest.mark.parametrize(("text", "words"), [
    ("echo oops >&2; exit 3", "does not answer as a Python does: oops"),
    ("echo '[1, 2]'", "does not answer as a Python does"),
    ("echo '[[3,\"x\",1],null]'", "does not answer as a Python does"),
    ("echo greeting; echo '[[3,8,1],null]'", "Python 3.8.1, no torch")])
def test_what_is_no_python_says_so(tmp_path: Path, text: str, words: str) -> None:
    assert ask.inspect(script(tmp_path / "python", text)).sentence() == words


def test_what_is_not_there_or_does_not_end(tmp_path: Path, monkeypatch) -> None:
    assert ask.inspect(str(tmp_path / "none")).problem == "there is no such interpreter"
    (tmp_path / "file").touch()
    assert ask.inspect(str(tmp_path / "file")).problem == "can't be executed"
    assert ask.inspect("a\0b").problem == "there is no such interpreter"
    monkeypatch.setattr(ask, "_TIMEOUT", 0.2)
    hangs = ask.inspect(script(tmp_path / "hangs", "exec sleep 60"))
    assert hangs.slow
    assert "did not answer" in hangs.sentence()
    monkeypatch.setattr(ask, "_ask", None)  # it is not asked again at once
    assert ask.inspect(str(tmp_path / "hangs")) == hangs
