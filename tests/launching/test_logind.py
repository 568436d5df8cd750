"""Whether logout would end a run: the decision, and the asking, with stand-in programs on PATH."""

from __future__ import annotations

import os

import pytest

from gpu_engine.launching import logind

SESSION = "0::/user.slice/user-1000.slice/session-3.scope\n"
SERVICE = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/tmux.scope\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """`machine(cgroup, busctl=…, …)`: programs that print one line and exit with 0, or fail."""
    def made(cgroup: str, **programs: str | None):
        (tmp_path / "proc" / "self").mkdir(parents=True)
        (tmp_path / "proc" / "self" / "cgroup").write_text(cgroup)
        folder = tmp_path / "bin"
        folder.mkdir()
        for name, answer in programs.items():
            path = folder / name.replace("_", "-")
            say = "exit 1" if answer is None else f"echo '{answer}'"
            path.write_text(f"#!/bin/sh\necho \"$0 $*\" >> '{tmp_path}/asked'\n{say}\n")
            path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}")
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        return logind.examine(root=tmp_path)

    made.root = tmp_path
    made.asked = lambda: (tmp_path / "asked").read_text() if (tmp_path / "asked").exists() else ""
    return made


def test_killing_gives_a_warning(machine):
    assert "enable-linger" in machine(SESSION, busctl="b true")
    assert "org.freedesktop.login1.Manager KillUserProcesses" in machine.asked()


@pytest.mark.parametrize(("cgroup", "programs"), [
    (SESSION, {"busctl": "b false"}), (SESSION, {"busctl": None}), (SESSION, {}),
    (SERVICE, {"busctl": "b true"}), ("0::/\n", {"busctl": "b true"})])
def test_otherwise_nothing_is_said(machine, cgroup, programs):
    assert machine(cgroup, **programs) is None


def test_the_processes_of_root_are_spared(machine, monkeypatch):
    machine(SESSION, busctl="b true")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert logind.examine(machine.root) is None
