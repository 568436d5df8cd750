"""`python -m gpu_engine.notify RUN_DIR`: started by `gpu_engine.launching.notifier`."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path


def main(argv: list[str]) -> int:
    """Tell of the run in the folder `argv[1]`, with low priority; what it writes is private."""
    from gpu_engine.notify.process import follow
    from gpu_engine.runs.folder import Run

    run = Run(Path(argv[1]))

    @functools.cache
    def still_on():
        from gpu_engine.launching.reattach import StillOn  # late: few runs are on hosts

        return StillOn(run)

    os.umask(0o077)
    os.nice(10)
    follow(run, lambda state: still_on()(state))
    sys.stderr.flush()
    os._exit(0)  # a thread may still wait for an endpoint


if __name__ == "__main__":
    sys.exit(main(sys.argv))
