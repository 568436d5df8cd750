"""`python -m gpu_engine.supervisor RUN_DIR LOCK_FD`: started by `gpu_engine.launch.launcher`."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path


def main(argv: list[str]) -> int:
    """Supervise the run in `argv[1]`, whose lock is held by the descriptor `argv[2]`. Returns the
    exit code of the run, or 0 in the guard."""
    from gpu_engine.supervisor.guard import guarded

    lock = int(argv[2])
    os.set_inheritable(lock, False)  # a rank that kept the lock would look like a supervisor
    if not guarded(lock):
        return 0
    from gpu_engine.runs.folder import EXIT_CODES, Run
    from gpu_engine.supervisor.supervise import Supervisor

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO,
                        stream=sys.stderr)
    run = Run(Path(argv[1]))
    os.umask(0o077)
    try:
        return EXIT_CODES.get(Supervisor(run).supervise().state, 0)  # 0: it waits again
    except Exception:
        logging.exception("the supervisor itself failed")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
