"""What git says of a folder, without a write there and without a program that its configuration
names."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def git(folder: Path, *words: str, timeout: float) -> str | None:
    """The standard output of `git WORDS` in `folder`; None where it fails, is not installed, or
    takes longer than `timeout` seconds."""
    try:
        done = subprocess.run(["git", "--no-optional-locks", "-c", "core.fsmonitor=false",
                               "-C", folder, *words],
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout,
                              check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return os.fsdecode(done.stdout) if done.returncode == 0 else None
