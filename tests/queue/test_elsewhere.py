"""Several machines may share the folder of the queue; each starts its own runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_engine.common.paths import queue_folder
from gpu_engine.launching import logind
from gpu_engine.queue import waiter
from gpu_engine.runs import waiting

from .kit import queue


def test_nothing_is_started_here_for_runs_that_wait_on_another_machine(line, monkeypatch):
    run = queue()
    waiting.write(run.path, replace(waiting.read(run.path), host="elsewhere"))
    waiting.enter(run.path)
    monkeypatch.setattr(logind.subprocess, "Popen", lambda *_, **__: pytest.fail("started"))
    assert waiter.ensure() is False
    (run.path / waiting.FILE).write_text("{}")  # nobody's: it is removed by whoever starts runs
    waiting.enter(run.path)
    assert waiting.any_here(queue_folder())
    line.turn()
    assert not waiting.any_here(queue_folder())
