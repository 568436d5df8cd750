"""Processes that outlived a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from gpu_engine.runs import leftovers

DEAF = "import signal; signal.signal(signal.SIGINT, lambda *_: print(flush=True)); " \
    "print(flush=True); [signal.pause() for _ in range(9)]"


def test_they_get_the_signal_and_the_grace_of_their_run(tmp_path, monkeypatch):
    """Not the five seconds of those that have none: a save may take longer, or is not awaited."""
    monkeypatch.setattr(leftovers, "GRACE", 3600.0)
    with subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE,
                          env={**os.environ, "GPU_PANEL_RUN": str(tmp_path)}) as process:
        assert process.stdout.readline()
        leftovers.end(tmp_path, signal.SIGINT, grace=0.5)
        assert process.stdout.readline(), "it was asked first"
    assert process.returncode == -signal.SIGKILL
