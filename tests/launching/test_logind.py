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


def test_killing_and_lingering_gives_a_scope(machine):
    assert machine(SESSION, busctl="b true", loginctl="yes", systemd_run="") \
        == logind.Decision(scope=True)
    assert "org.freedesktop.login1.Manager KillUserProcesses" in machine.asked()
    assert "systemd-run --user --scope --collect --quiet -- true" in machine.asked()


def test_killing_without_lingering_gives_a_warning(machine):
    found = machine(SESSION, busctl="b true", loginctl="no", systemd_run="")
    assert not found.scope
    assert "enable-linger" in found.warning
    assert "systemd-run" not in machine.asked()


def test_a_scope_that_does_not_work_is_not_relied_on(machine):
    found = machine(SESSION, busctl="b true", loginctl="yes", systemd_run=None)
    assert not found.scope
    assert "does not work here" in found.warning


@pytest.mark.parametrize(("cgroup", "programs"), [
    (SESSION, {"busctl": "b false"}), (SESSION, {"busctl": None}), (SESSION, {}),
    (SERVICE, {"busctl": "b true", "loginctl": "no"}), ("0::/\n", {"busctl": "b true"})])
def test_otherwise_nothing_is_done(machine, cgroup, programs):
    assert machine(cgroup, **programs) == logind.Decision()


def test_the_processes_of_root_are_spared(machine, monkeypatch):
    machine(SESSION, busctl="b true", loginctl="no")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert logind.examine(machine.root) == logind.Decision()


def test_a_supervisor_in_a_scope_is_the_same_supervisor():
    argv = logind.wrapped(["python", "-m", "x"], "3f2a")
    assert argv[:2] == ["systemd-run", "--user"]
    assert "--unit=gpu-panel-3f2a" in argv
    assert argv[-4:] == ["--", "python", "-m", "x"]
