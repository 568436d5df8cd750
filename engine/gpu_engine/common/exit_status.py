"""A process's exit status in words. Pure."""

from __future__ import annotations

import signal


def describe(status: int) -> str:
    """The status, negative if a signal ended the process: "exited with 3", "killed by SIGKILL"."""
    return f"exited with {status}" if status >= 0 else f"killed by {signal_name(-status)}"


def signal_name(number: int) -> str:
    """The signal's name, "SIGKILL", or "signal 77" if this machine has no name for it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
