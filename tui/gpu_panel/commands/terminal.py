"""A program that gets the terminal until it ends, such as an editor."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from textual.app import App, SuspendNotSupported

from gpu_engine.common.errors import UserError


def in_terminal(app: App[Any], argv: Sequence[str], given: Iterable[str] = (), *,
                environment: Mapping[str, str] | None = None) -> int:
    """Run a program in the panel's place, which stands still meanwhile: nothing may draw. Returns
    its exit status. `given`: what it gets as its input, as far as it reads, such as a pager; none:
    the terminal. `environment`: None is the panel's. Raises UserError where it can't be started."""
    # ctrl+c goes to both. A handler is not inherited, as ignoring it would be.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        with app.suspend():
            if not given:
                return subprocess.run(argv, check=False, env=environment).returncode
            with subprocess.Popen(argv, stdin=subprocess.PIPE, encoding="utf-8") as program:
                assert program.stdin is not None
                with suppress(BrokenPipeError), program.stdin as file:
                    file.writelines(given)
            return program.returncode
    except SuspendNotSupported:
        raise UserError("the panel can't give this terminal to another program") from None
    except OSError as err:
        raise UserError(f"{argv[0]} can't be started: {err.strerror}") from None
    finally:
        signal.signal(signal.SIGINT, before)
