"""`python -m gpu_engine.notify RUN_DIR`: started by `gpu_engine.launch.notifier`."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(argv: list[str]) -> int:
    """Tell of the run in the folder `argv[1]`."""
    from gpu_engine.notify.process import begin
    from gpu_engine.runs.folder import Run

    begin(Run(Path(argv[1])))
    sys.stderr.flush()
    os._exit(0)  # a thread may still wait for an endpoint


if __name__ == "__main__":
    sys.exit(main(sys.argv))
