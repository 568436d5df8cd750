"""`python -m gpu_engine.notify RUN_DIR`: started by `gpu_engine.launching.notifier`."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_engine.runs.state import State


def main(argv: list[str]) -> int:
    """Tell of the run in the folder `argv[1]`."""
    from gpu_engine.notify.process import begin
    from gpu_engine.runs.folder import Run

    run = Run(Path(argv[1]))

    @functools.cache
    def still_on() -> Callable[[State], bool]:
        from gpu_engine.launching.reattach import StillOn  # late: few runs are on hosts

        return StillOn(run)

    begin(run, lambda state: still_on()(state))
    sys.stderr.flush()
    os._exit(0)  # a thread may still wait for an endpoint


if __name__ == "__main__":
    sys.exit(main(sys.argv))
