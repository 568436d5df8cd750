"""Asking other programs and small files, where an answer may not come."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

_WAIT = 3.0
"""Seconds that a program gets to answer."""


def answer(argv: Sequence[str]) -> str | None:
    """What a program prints; None where it is missing, fails or takes too long."""
    try:
        done = subprocess.run(list(argv), capture_output=True, text=True, errors="replace",
                              timeout=_WAIT, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout or done.stderr) if done.returncode == 0 else None


def text(path: Path) -> str:
    """A small file's text; "" if it can't be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def in_container(root: Path = Path("/")) -> bool:
    """Whether this is inside a container of Docker, Podman, Kubernetes or Apptainer."""
    return any((root / name).exists() for name in (".dockerenv", "run/.containerenv",
                                                   ".singularity.d"))
