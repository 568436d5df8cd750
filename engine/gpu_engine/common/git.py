"""What git says of a folder, without a write there, a network, or a program that its configuration
names. The only place that starts git."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_ALONE = {
    "GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1",  # a missing object is not fetched
    "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}


def ask(folder: str | bytes | Path, *words: str, timeout: float
        ) -> subprocess.CompletedProcess[bytes]:
    """`git WORDS` in `folder`, ended. Raises OSError if it can't be started, and TimeoutExpired
    after `timeout` seconds."""
    return subprocess.run(["git", "-c", "core.fsmonitor=false", *words], cwd=folder,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout,
                          env=os.environ | _ALONE, check=False)


def git(folder: Path, *words: str, timeout: float) -> str | None:
    """The standard output of `git WORDS` in `folder`; None where it fails, is not installed, or
    takes longer than `timeout` seconds."""
    try:
        done = ask(folder, *words, timeout=timeout)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return os.fsdecode(done.stdout) if done.returncode == 0 else None
