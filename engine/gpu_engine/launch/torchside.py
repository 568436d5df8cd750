"""Asking what only torch's side can answer, from a process that has no torch.

The question goes to a short-lived process in the ranks' own interpreter.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from gpu_engine.common.errors import UserError
from gpu_engine.plan.records import WORKER


def ask(question: str, *args: str, python: str | None = None, cwd: str | None = None,
        timeout: float = 300.0) -> Any:
    """The JSON that the rank's program prints for `--ask QUESTION ARGS…`. Raises UserError with
    its words.

    python: the interpreter to ask in; None: this one.
    """
    try:
        done = subprocess.run([python or sys.executable, WORKER, "--ask", question, *args],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", cwd=cwd, timeout=timeout, check=False)
    except OSError as err:
        raise UserError(f"{python}: can't be started: {err.strerror}") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"no answer from {python or sys.executable} in {timeout:.0f} s") from None
    if done.returncode != 0:
        raise UserError(done.stderr.strip() or f"{question} ended with {done.returncode}")
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        said = done.stdout[-500:] + done.stderr[-500:]
        raise UserError(f"{question}: no answer: {said}") from None
