"""`python -m gpu_engine.supervisor RUN_DIR LOCK_FD`: started by `gpu_engine.launch.detached`."""

from __future__ import annotations

import sys
from pathlib import Path

from gpu_engine.supervisor.program import run

if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), int(sys.argv[2])))
