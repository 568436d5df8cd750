"""Which interpreter a run takes."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.interpreters import choose, inspection
from gpu_engine.interpreters.inspection import Seen
from gpu_engine.launching import launcher
from gpu_engine.launching.launcher import prepare
from gpu_engine.places.verbs import resume
from gpu_engine.queue.submit import plan as queued
from gpu_engine.runs.create import create_run
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.write import to_toml

from ..conftest import slots
from .environments import environment, torch_in

pytestmark = pytest.mark.own_torch

SLOTS = ("virtual", "conda", "work/a/.venv", "work/a/venv", "work/.venv", "work/venv", "one", "two")
"""Where environments may be, in the order in which they are to be taken."""


def made(prefix: Path, torch: bool) -> None:
    """An environment as far as it is looked for, without an interpreter that could be asked."""
    (prefix / "bin").mkdir(parents=True)
    (prefix / "pyvenv.cfg").touch()
    (prefix / "bin" / "python").touch(0o755)
    (prefix / "bin" / "python3").symlink_to("python")
    (prefix / ("with" if torch else "without")).touch()


@given(kinds=st.lists(st.sampled_from(["absent", "without", "with", "old", "no python"]),
                      min_size=len(SLOTS), max_size=len(SLOTS)), own=st.booleans())
def test_the_first_with_torch_is_taken(kinds: list[str], own: bool) -> None:
    top = Path(tempfile.mkdtemp())
    try:
        for slot, kind in zip(SLOTS, kinds, strict=True):
            if kind != "absent":
                made(top / slot, torch=kind in ("with", "old"))

        made(top / "relative", torch=True)

        def look(python: str) -> Seen:
            if not python.startswith("/"):  # it would depend on where one is
                return Seen(python, (3, 12, 1), Path("x"))
            slot = next((s for s in SLOTS if python.startswith(f"{top / s}/")), None)
            if slot is None:
                return Seen(python, (3, 12, 1), Path("x") if own else None)
            kind = kinds[SLOTS.index(slot)]
            if kind in ("no python", "absent"):
                return Seen(python, problem="there is no such interpreter")
            return Seen(python, (3, 8, 1) if kind == "old" else (3, 12, 1),
                        Path("x") if kind in ("with", "old") else None)

        environ = {"VIRTUAL_ENV": str(top / "virtual"), "CONDA_PREFIX": str(top / "conda"),
                   "PATH": f"relative/bin:{top / 'one/bin'}::{top / 'two/bin'}", "HOME": str(top)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(inspection, "inspect", look)
            patch.chdir(top)
            chosen = choose.of_ranks(None, top / "work" / "a", environ)
        want = next((top / s for s, k in zip(SLOTS, kinds, strict=True) if k == "with"), None)
        if want is not None:
            assert chosen.python is not None
            assert choose.environment_of(chosen.python) == want
            assert chosen.problem is None
        elif own:
            assert chosen.python == sys.executable
        else:
            assert chosen.python is None
            assert chosen.problem.key == "run.python"
            assert "torch" in chosen.problem.message
        for name, kind in zip(("$VIRTUAL_ENV", "$CONDA_PREFIX"), kinds, strict=False):
            if kind == "without" and chosen.python is not None and "with" not in kinds[
                    :("$VIRTUAL_ENV", "$CONDA_PREFIX").index(name)]:
                assert f"{name} (" in chosen.sentence()
    finally:
        shutil.rmtree(top)


def test_the_plan_says_which_and_why(tmp_path: Path, monkeypatch) -> None:
    """With real interpreters: an active environment without torch is passed over, one that is set
    never."""
    project = tmp_path / "project"
    environment(tmp_path / "active")
    torch_in(environment(project / ".venv"))
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "active"))
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    data = {"task": {"use": "gpu_engine.tasks.digits:Digits"}, "devices": {"ids": ["cpu:0"]}}
    plan = prepare(from_dict(data), inventory=slots(1), cwd=project).plan
    python = str(project / ".venv" / "bin" / "python")
    told = plan.interpreter
    assert (told.path, told.torch, told.cuda, told.folder) == (
        python, "2.13.0+cu130", "13.0", str(project))
    assert told.why == (f"the .venv of {project}; $VIRTUAL_ENV ({tmp_path / 'active'}) has no "
                        "torch")
    assert plan.processes[0].argv[0] == python
    assert type(plan).from_dict(plan.to_dict()) == plan
    bare = str(tmp_path / "active" / "bin" / "python")
    with pytest.raises(SpecError) as caught:
        prepare(from_dict(data | {"run": {"python": bare}}), inventory=slots(1), cwd=project)
    (problem,) = caught.value.problems
    assert (problem.key, problem.value) == ("run.python", bare)
    assert f"it has no torch: {bare} -m pip install torch" in problem.message
    near = from_dict(data | {"run": {"python": ".venv/bin/python"}})
    assert prepare(near, inventory=slots(1), cwd=project).plan.interpreter.torch == "2.13.0+cu130"


def test_a_resume_takes_the_environment_of_the_folder_that_the_run_was_submitted_in(
        home: Path, tmp_path: Path, monkeypatch):
    """Its code may be a copy, beside which there is none."""
    monkeypatch.setattr(launcher, "supervise", lambda run, lock: os.close(lock))
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    project, copy = tmp_path / "project", tmp_path / "copy"
    torch_in(environment(project / ".venv"))
    copy.mkdir()
    spec = from_dict({"task": {"use": "gpu_engine.tasks.digits:Digits"},
                      "devices": {"ids": ["cpu:0"]}})
    plan = prepare(spec, inventory=slots(1), cwd=copy, near=project).plan
    run, lock = create_run("test", to_toml(spec), replace(plan, cwd=str(copy)))
    run.write_state(replace(run.state(), state="stopped"))
    os.close(lock)
    again = resume(run).plan.interpreter
    assert again.path == str(project / ".venv/bin/python")


def test_what_is_found_nowhere_is_one_sentence_with_what_to_type(tmp_path: Path, monkeypatch):
    environment(tmp_path / "env")
    bare = Seen(sys.executable, sys.version_info[:3])
    monkeypatch.setenv("PATH", "")  # no uv
    look = inspection.inspect
    monkeypatch.setattr(inspection, "inspect", lambda p: bare if inspection.ours(p) else look(p))
    environ = {"VIRTUAL_ENV": str(tmp_path / "env"), "PATH": ""}
    python = tmp_path / "env" / "bin" / "python"
    chosen = choose.of_ranks(None, tmp_path, environ)
    for words in ("no interpreter near by has torch",
                  f"{python} -m pip install torch installs it into $VIRTUAL_ENV", "run.python=",
                  f"$VIRTUAL_ENV ({tmp_path / 'env'}) has no torch"):
        assert words in chosen.problem.message
    assert "\n" not in chosen.problem.message
    alone = choose.of_ranks(None, tmp_path, {"PATH": ""}).problem
    assert ("which ranks need. python3 -m venv .venv && .venv/bin/python -m pip install torch "
            "makes an environment here that has it; or name one") in alone.message
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "uv").write_text("#!/bin/sh\n")
    (tmp_path / "uv").chmod(0o755)
    for where, typed in (
            (environ, f"uv pip install --python {python} torch --torch-backend=auto installs it"),
            ({"PATH": ""}, "uv venv && uv pip install torch --torch-backend=auto makes")):
        told = choose.of_ranks(None, tmp_path, where).problem
        assert typed in told.message


def test_pip_is_not_named_where_it_would_refuse(tmp_path: Path, monkeypatch) -> None:
    """PEP 668: the system's Python. An environment made from it has a pip that installs."""
    marker = tmp_path / "usr" / "lib" / "python3.12" / "EXTERNALLY-MANAGED"
    marker.parent.mkdir(parents=True)
    marker.touch()
    monkeypatch.setattr(inspection, "inspect", lambda path: Seen(path, (3, 12, 1)))
    for prefix, words in ((tmp_path / "usr", "name the interpreter of an environment"),
                          (tmp_path / "env", "-m pip install torch")):
        python = prefix / "bin" / "python3"
        problem = choose.of_ranks(str(python), tmp_path).problem
        assert ("pip install" in problem.message) == ("pip install" in words)
        assert words in problem.message


def test_an_environment_of_another_user_is_not_started(tmp_path: Path, monkeypatch) -> None:
    """Above a folder such as /tmp/mine anybody may put a .venv."""
    torch_in(environment(tmp_path / ".venv"))
    folder = tmp_path / "mine"
    folder.mkdir()
    environ = {"PATH": ""}
    assert choose.environment_of(choose.of_ranks(None, folder, environ).python or "") \
        == tmp_path / ".venv"
    if os.geteuid() == 0:
        os.chown(tmp_path / ".venv", 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    chosen = choose.of_ranks(None, folder, environ)
    assert chosen.python == sys.executable
    assert f"the .venv of {tmp_path} belongs to another user" in chosen.sentence()


def test_a_torch_that_is_too_old_is_passed_over_and_refused_where_it_is_set(tmp_path: Path):
    torch_in(environment(tmp_path / ".venv"), "2.1.2+cu121", "12.1")
    torch_in(environment(tmp_path / "venv"), "2.4.0+cu121", "12.1")
    chosen = choose.of_ranks(None, tmp_path, {"PATH": ""})
    assert chosen.python == str(tmp_path / "venv" / "bin" / "python")
    assert [p.why for p in chosen.passed] == [
        "has an older torch: torch 2.1.2+cu121 is too old: ranks need torch 2.4 or newer"]
    named = choose.of_ranks(str(tmp_path / ".venv" / "bin" / "python"), tmp_path, {})
    assert named.problem is not None
    assert "torch 2.1.2+cu121 is too old: ranks need torch 2.4 or newer" in str(named.problem)


def test_what_may_have_torch_is_taken_where_nothing_is_known_to(tmp_path: Path, monkeypatch):
    """A script that enters a container, or pyenv's: nothing says what is behind it."""
    script = tmp_path / "bin" / "python3"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\nexit 3\n")
    script.chmod(0o755)
    environ = {"PATH": str(script.parent)}
    look, bare = inspection.inspect, Seen(sys.executable, sys.version_info[:3])
    monkeypatch.setattr(inspection, "inspect", lambda p: bare if inspection.ours(p) else look(p))
    for chosen in (choose.of_ranks(None, tmp_path, environ),
                   choose.of_ranks(str(script), tmp_path, environ)):
        assert (chosen.python, chosen.problem) == (str(script), None)
        assert chosen.doubt == (f"{script}: its files do not tell what it has: whether it has "
                                "torch shows when a run starts it")
    torch_in(environment(tmp_path / ".venv"))
    chosen = choose.of_ranks(None, tmp_path, environ)
    assert (chosen.python, chosen.doubt) == (str(tmp_path / ".venv/bin/python"), None)


@pytest.mark.parametrize(("file", "origin", "line"), [
    ("pipx_metadata.json", None, "pipx inject gpu-panel 'mcp>=2'"),
    ("uv-receipt.toml", {"url": "file:///srv/gpu%20panel", "dir_info": {"editable": True}},
     "uv tool install --force --with 'mcp>=2' --editable '/srv/gpu panel'"),
    ("uv-receipt.toml", {"url": "https://x/y.git", "vcs_info": {"vcs": "git"}},
     "uv tool install --force --with 'mcp>=2' git+https://x/y.git"),
    ("uv-receipt.toml", None, "uv tool install --force --with 'mcp>=2' gpu-panel"),
    ("pyvenv.cfg", None, "{here}/bin/python -m pip install 'mcp>=2'")])
def test_an_extra_is_installed_as_gpu_panel_was(tmp_path, monkeypatch, file, origin, line):
    (tmp_path / file).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", f"{tmp_path}/bin/python")

    class Installed:
        def read_text(self, name):
            assert name == "direct_url.json"
            return json.dumps(origin) if origin else None

    monkeypatch.setattr(choose.metadata, "distribution", lambda name: Installed())
    assert choose.extra("mcp>=2") == line.format(here=tmp_path)


def test_a_command_whose_python_has_no_torch_is_told_which_has(tmp_path, monkeypatch):
    torch_in(environment(tmp_path / "project" / ".venv"), "2.13.0+cpu", None)
    environment(tmp_path / "other")
    project, python = tmp_path / "project", tmp_path / "other" / "bin" / "python"
    monkeypatch.setenv("PATH", f"{python.parent}:/usr/bin:/bin")
    monkeypatch.chdir(project)
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    (project / "train.py").touch()

    def warned(*command):
        return prepare(from_dict({"devices": {"ids": ["cpu:0"]}, "task": {
            "command": list(command)}}), inventory=slots(1)).plan.warnings

    (said,) = warned("python", "train.py", "--lr", "1")
    assert said == (f"{python} has no torch, and the .venv of {project} has it: if the command "
                    "needs it, type .venv/bin/python train.py --lr 1")
    (said,) = warned("env", "A=1", "timeout", "9", "python", "train.py")
    assert said.endswith("type env A=1 timeout 9 .venv/bin/python train.py")
    (said,) = warned("nohup", "sh", "-c", "A=1 python train.py | tee x", "-")
    assert said.endswith("type nohup sh -c 'A=1 .venv/bin/python train.py | tee x' -")
    assert not warned("sh", "-c", ". .venv/bin/activate; python train.py")
    (project / "go.py").write_text("#!/usr/bin/env python\n")
    (project / "go.py").chmod(0o755)
    (said,) = warned("./go.py", "--lr", "1")
    assert said.endswith("type .venv/bin/python ./go.py --lr 1")
    waits = from_dict({"devices": {"pick": 1}, "task": {"command": ["python", "train.py"]}})
    assert any("has no torch" in told for told in queued(waits, slots(1)).warnings)
    assert not warned(".venv/bin/python", "train.py")
    assert not warned("true")
    shims = tmp_path / "shims"  # as of pyenv
    shims.mkdir()
    (shims / "python").write_text('#!/usr/bin/env bash\nexec pyenv exec python "$@"\n')
    (shims / "python").chmod(0o755)
    monkeypatch.setenv("PATH", f"{shims}:/usr/bin:/bin")
    (said,) = warned("python", "train.py")
    assert said.startswith(f"{shims}/python does not say whether it has torch, and the .venv of ")
    assert said.endswith("type .venv/bin/python train.py")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match=r"on the PATH: type \.venv/bin/python train\.py"):
        warned("python", "train.py")
    with pytest.raises(UserError, match=r"on the PATH$"):
        warned("nosuchprogram", "train.py")
    monkeypatch.setenv("PATH", f"{python.parent}:/usr/bin:/bin")
    shutil.rmtree(project / ".venv")
    assert not warned("python", "train.py")
