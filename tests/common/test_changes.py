"""A wait that ends when a file is replaced, and otherwise with its time."""

from __future__ import annotations

import ctypes

import pytest

from gpu_engine.common import changes, procs
from gpu_engine.common.changes import Changes
from gpu_engine.common.files import write_atomic

LONG = 3000.0
"""Seconds: whoever waits for so long fails by pytest's limit."""


@pytest.mark.skipif(not procs.LINUX, reason="no inotify")
def test_it_ends_at_once_when_a_file_has_been_replaced(tmp_path):
    watched = Changes(tmp_path)
    for text in "ab":
        write_atomic(tmp_path / "state.json", text)
        watched.wait(LONG)
    watched.wait(0.0)  # nothing is new
    watched.close()


@pytest.mark.skipif(not procs.LINUX, reason="no inotify")
@pytest.mark.parametrize("lacks", ["folder", "room", "inotify"])
def test_where_nothing_can_be_watched_it_lasts_its_time(tmp_path, monkeypatch, lacks):
    slept = []
    monkeypatch.setattr(changes.time, "sleep", slept.append)
    if lacks == "room":
        monkeypatch.setattr(ctypes, "CDLL", lambda name: type("libc", (), {
            "inotify_init1": staticmethod(lambda flags: -1)}))
    elif lacks == "inotify":
        monkeypatch.setattr(procs, "LINUX", False)
    watched = Changes(tmp_path / ("gone" if lacks == "folder" else ""))
    watched.wait(5.0)
    watched.close()
    assert slept == [5.0]
