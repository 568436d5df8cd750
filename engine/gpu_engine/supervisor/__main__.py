"""`python -m gpu_engine.supervisor RUN_DIR LOCK_FD`: started by `gpu_engine.launching.launcher`.

The supervisor runs below a guard, which ends what is left of the run if the supervisor is killed.
Ranks carry a parent-death signal, but processes that a launcher or a person's own script has
started do not, and would train on as orphans. The guard only waits. It is a subreaper: such orphans
become its children, and as long as it has not reaped them their pids can't be reused.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

from gpu_engine.supervisor.children import become_subreaper, kill_tree

_DEAF = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1,
         signal.SIGUSR2)


def main(folder: Path, lock: int) -> int:
    """Supervise the run in `folder`, whose lock is held by the descriptor `lock`. Returns the exit
    status of the run, or 0 in the guard. This process has one thread and does nothing else."""
    os.set_inheritable(lock, False)  # a rank that kept the lock would look like a supervisor
    if not _guarded(lock):
        return 0
    # Only the supervisor needs these, and not its guard.
    from gpu_engine.runs import waiting
    from gpu_engine.runs.folder import EXIT_CODES, Run
    from gpu_engine.supervisor.supervise import Supervisor
    from gpu_engine.sweep.rungs import Rungs

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO,
                        stream=sys.stderr, force=True)
    umask = os.umask(0o077)  # for our files; the ranks get that of whoever launched
    run, leases = Run(folder), None
    try:
        if waiting.read(folder) is not None:
            from gpu_engine.queue.wait import Waiter

            if (leases := Waiter(run).take_turn()) is None:
                return EXIT_CODES[run.state().state]
        return EXIT_CODES[Supervisor(run, umask, Rungs.of(run)).supervise(leases).state]
    except Exception:
        logging.exception("the supervisor itself failed")
        return 1


def _guarded(lock: int) -> bool:
    """Fork, before any thread is started. Returns True in the child, which is the supervisor and
    alone keeps the lock, and False in the parent, the guard, once the supervisor and everything
    below it have ended. If fork fails, returns True without a guard."""
    try:
        pid = os.fork()
    except OSError:
        return True
    if pid == 0:
        os.setsid()
        return True
    os.close(lock)  # if the guard held it too, a dead run would look alive
    become_subreaper()
    for number in _DEAF:
        signal.signal(number, signal.SIG_IGN)
    try:
        while os.waitpid(-1, 0)[0] != pid:
            pass
        kill_tree(())
    except ChildProcessError:
        pass
    return False


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
