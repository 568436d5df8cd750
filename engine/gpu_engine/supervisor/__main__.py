"""`python -m gpu_engine.supervisor RUN_DIR LOCK_FD`: started by `gpu_engine.launching.launcher`."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from gpu_engine.supervisor.guard import guarded


def main(folder: Path, lock: int) -> int:
    """Supervise the run in `folder`, whose lock is held by the descriptor `lock`. Returns the exit
    status of the run, or 0 in the guard. This process has one thread and does nothing else."""
    os.set_inheritable(lock, False)  # a rank that kept the lock would look like a supervisor
    if not guarded(lock):
        return 0
    # Only the supervisor needs these, and not its guard.
    from gpu_engine.runs import waiting
    from gpu_engine.runs.folder import EXIT_CODES, Run
    from gpu_engine.supervisor.supervise import Supervisor, TakenMeanwhile

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO,
                        stream=sys.stderr, force=True)
    umask = os.umask(0o077)  # for our files; the ranks get that of whoever launched
    run, waiter, leases = Run(folder), None, None
    try:
        if waiting.read(folder) is not None:
            from gpu_engine.queue.wait import Waiter

            waiter = Waiter(run)
        while True:
            if waiter is not None and (leases := waiter.take_turn()) is None:
                return EXIT_CODES[run.state().state]
            try:
                return EXIT_CODES[Supervisor(run, umask).supervise(leases).state]
            except TakenMeanwhile as err:
                assert waiter is not None
                waiter.again(str(err))
    except Exception:
        logging.exception("the supervisor itself failed")
        return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
