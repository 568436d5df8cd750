"""What a process's exit status says, in words. Pure."""

from __future__ import annotations

import signal


def in_words(status: int) -> str:
    """ "exited with 3", "killed by SIGKILL". `status`: as subprocess has it, minus the signal's
    number where one ended the process."""
    return f"exited with {status}" if status >= 0 else f"killed by {signal_name(-status)}"


def signal_name(number: int) -> str:
    """ "SIGKILL", or "signal 77" where this machine has no name for it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
