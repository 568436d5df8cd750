"""A line of waiting runs."""

from __future__ import annotations

import signal

import pytest

from gpu_engine.queue import serve


@pytest.fixture
def line(home, tmp_path, monkeypatch):
    """An empty folder to submit from. What waits in the end is stopped."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield folder
    for one in serve.line():
        one.run.stop()


@pytest.fixture
def here(line):
    """Has this process be a supervisor: what that does to its signals is undone."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    hup, child = signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGCHLD)
    yield line
    signal.signal(signal.SIGHUP, hup)
    signal.signal(signal.SIGCHLD, child)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
