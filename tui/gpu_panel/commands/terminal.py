"""A program that gets the terminal until it ends, such as an editor."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from typing import Any

from textual.app import App, SuspendNotSupported

from gpu_engine.common.errors import UserError


def in_terminal(app: App[Any], argv: Sequence[str]) -> int:
    """Run a program in the panel's place, which stands still meanwhile: nothing may draw. Returns
    its exit status. Raises UserError where it can't be started."""
    # ctrl+c goes to both. A handler is not inherited, as ignoring it would be.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        with app.suspend():
            return subprocess.run(argv, check=False).returncode
    except SuspendNotSupported:
        raise UserError("the panel can't give this terminal to another program") from None
    except OSError as err:
        raise UserError(f"{argv[0]} can't be started: {err.strerror}") from None
    finally:
        signal.signal(signal.SIGINT, before)
