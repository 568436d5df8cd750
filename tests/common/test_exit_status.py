"""A process's exit status in words."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpu_engine.common.procs import describe_exit as describe


@pytest.mark.parametrize(("code", "said"), [
    ("raise SystemExit(3)", "exited with 3"), ("pass", "exited with 0"),
    ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 2)", "killed by signal 36")])
def test_how_a_process_ended(code: str, said: str) -> None:
    assert describe(subprocess.run([sys.executable, "-S", "-c", code], check=False).returncode) \
        == said
