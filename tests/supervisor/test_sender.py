"""Who asked for a stop, by the pid that a signal came from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_engine.supervisor.stopping import sender


@pytest.fixture
def process(tmp_path: Path):
    """`process(pid, name, *argv)`: a /proc with that process."""
    def made(pid: int, name: str, *argv: str) -> Path:
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "comm").write_text(name + "\n")
        (folder / "cmdline").write_bytes(b"".join(a.encode() + b"\0" for a in argv))
        return tmp_path

    return made


@pytest.mark.parametrize(("pid", "name", "argv", "words"), [
    (1, "systemd", ["/sbin/init"], "by systemd: a logout or a shutdown"),
    (812, "systemd", ["/lib/systemd/systemd", "--user"], "by systemd: a logout or a shutdown"),
    (1, "tini", ["tini", "--", "bash"], "by tini: a logout or a shutdown"),
    (1, "", ["/init"], "by pid 1: a logout or a shutdown"),
    (4711, "slurmstepd", ["slurmstepd: [12.0]"], "by a signal from slurmstepd (pid 4711)"),
    (99, "gpu-engine", ["/x/python", "/x/bin/gpu-engine", "stop", "last"], None),
    (99, "python3", ["python3", "-m", "gpu_engine", "stop", "last"], None),
    (99, "python3", ["python3", "my_script.py"], None),  # run.stop() from somebody's script
])
def test_the_sender_in_words(process, pid, name, argv, words):
    assert sender(pid, process(pid, name, *argv)) == words


def test_senders_that_cannot_be_seen(tmp_path):
    assert sender(0, tmp_path) == "by a process outside this container"
    other = os.getpid() + 1
    assert sender(other, tmp_path) == f"by a signal, from a process that is gone (pid {other})"
    assert sender(os.getpid()) is None
