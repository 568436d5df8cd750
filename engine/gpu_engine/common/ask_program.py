"""Asking a program of the system, where an answer may not come."""

from __future__ import annotations

from collections.abc import Sequence


def answer(argv: Sequence[str], seconds: float = 3.0) -> str | None:
    """What a program prints; None where it is missing, fails or takes longer than `seconds`."""
    import subprocess  # late: most commands that can ask do not

    try:
        done = subprocess.run(list(argv), capture_output=True, text=True, errors="replace",
                              timeout=seconds, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout or done.stderr) if done.returncode == 0 else None
