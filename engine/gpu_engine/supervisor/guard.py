"""The guard: the supervisor's parent, which ends what is left of the run if the supervisor is
killed.

Ranks carry a parent-death signal, but processes that a launcher or a person's own script has
started do not, and would train on as orphans. So the supervisor runs as the child of a process that
only waits. It is a subreaper: such orphans become its children, and as long as it has not reaped
them their pids can't be reused.
"""

from __future__ import annotations

import os
import signal

from gpu_engine.supervisor.children import become_subreaper, kill_tree

_DEAF = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1,
         signal.SIGUSR2)


def guarded(lock: int) -> bool:
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
    while True:
        try:
            ended, _ = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        if ended == pid:
            kill_tree(())
            break
    return False
