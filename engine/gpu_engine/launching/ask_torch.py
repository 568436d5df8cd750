"""Asking what only torch's side can answer, from a process that has no torch.

The question goes to a short-lived process in the ranks' own interpreter.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from gpu_engine.common.errors import UserError
from gpu_engine.interpreters import choose
from gpu_engine.plan.records import WORKER
from gpu_engine.runs.checkpoints import EXPORTED, listed

_TIMEOUT = 300.0
"""Seconds for an answer."""


class NoTorch(UserError):
    """No interpreter with torch was found."""


def exporter(out: Path, python: str | None) -> str:
    """The interpreter that can write weights to `out`: `python`, or the one that a run in this
    folder would take. Raises NoTorch, and UserError if the name of `out` says no format."""
    if out.suffix not in EXPORTED:
        raise UserError(f"{out}: the end of its name says what it becomes: {', '.join(EXPORTED)}")
    if python is None:
        taken = choose.current()
        python = taken.python
        if python is None:
            raise NoTorch(taken.problem.message if taken.problem else "no torch")
    return python


def export(checkpoints: Path, out: Path, name: str | None, *, python: str) -> dict[str, Any]:
    """Write the weights of a checkpoint, of the one called `name` or of the newest, to `out`, in
    the interpreter `python`. Returns step, tensors, bytes, warnings, and the checkpoint's path.
    Raises UserError, before a process is started if there is no checkpoint at all."""
    if not listed(checkpoints):
        raise UserError(f"{checkpoints}: there is no checkpoint that can be loaded")
    try:
        done = subprocess.run([python, WORKER, "--export", str(checkpoints), str(out),
                               *([name] if name else [])], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, errors="replace", timeout=_TIMEOUT,
                              check=False)
    except OSError as err:
        raise UserError(f"{python}: can't be started: {err.strerror}") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"no answer from {python} in {_TIMEOUT:.0f} s") from None
    if done.returncode != 0:
        raise UserError(done.stderr.strip() or f"export ended with {done.returncode}")
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        said = done.stdout[-500:] + done.stderr[-500:]
        raise UserError(f"export: no answer: {said}") from None
