"""Answers a question that needs torch, as one line of JSON:

    worker/__main__.py --ask export CHECKPOINTS OUT.safetensors [step-00000500]

Exit code 2, with a message on stderr, if it is a mistake that the person can correct.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

from gpu_engine.common.errors import UserError


def export(folder: str, out: str, name: str | None = None) -> dict[str, Any]:
    """Write the weights of a checkpoint to `out`: of the one called `name`, or the newest.
    Raises UserError, OSError."""
    from gpu_engine.training.export import export as write

    return write(Path(folder), Path(out), name)


def main(argv: list[str]) -> int:
    """Answer the question `argv[0]`, with the rest as its arguments. Returns the exit code."""
    gc.disable()  # the process is short-lived: collecting garbage would only slow it down
    try:
        answer = {"export": export}[argv[0]](*argv[1:])
    except UserError as err:
        sys.stderr.write(f"{err}\n")
        return 2
    except OSError as err:
        sys.stderr.write(f"{err.filename}: {err.strerror}\n")
        return 2
    sys.stdout.write("\n" + json.dumps(answer, default=str) + "\n")
    return 0
