"""A second pair of eyes: ends what is left of a run whose supervisor was killed.

Ranks carry a parent-death signal, but what a launcher or a person's own script started below
them does not, and would train on as orphans. So the supervisor runs as the child of a process
that does nothing but wait: a subreaper, to which such orphans fall, by pid and unreaped, so that
no pid can be another's.
"""

from __future__ import annotations

import os
import signal

from gpu_engine.supervisor import children as ch

_DEAF = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1,
         signal.SIGUSR2)


def guarded(lock: int) -> bool:
    """Split in two: False in the guard, once the supervisor and all below it are gone; True in
    the child, which goes on as the supervisor and alone keeps the lock.

    Before any thread is started. Where there can't be another process, True without a guard.
    """
    try:
        pid = os.fork()
    except OSError:
        return True
    if pid == 0:
        os.setsid()
        return True
    os.close(lock)  # a lock that we held too would make a dead run look alive
    ch.become_subreaper()
    for number in _DEAF:
        signal.signal(number, signal.SIG_IGN)
    while True:
        try:
            ended, _ = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        if ended == pid:
            ch.kill_tree(())
            break
    return False
