"""`python -m gpu_engine.supervisor RUN_DIR LOCK_FD`: started by `gpu_engine.launching.launcher`.

The supervisor runs below a guard, which ends what is left of the run if the supervisor is killed.
Ranks carry a parent-death signal, but processes that a launcher or a person's own script has
started do not, and would train on as orphans. The guard only waits. It is a subreaper: such orphans
become its children, and as long as it has not reaped them their pids can't be reused.

In the foreground, as a task of Slurm (`on_node`), the guard hands on the signals: Slurm
warns only the process that it has started itself.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_engine.supervisor.children import STOPS, become_subreaper, end_with, kill_tree

if TYPE_CHECKING:
    from gpu_engine.runs.folder import Run
    from gpu_engine.supervisor.supervise import Beside

_DEAF = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1,
         signal.SIGUSR2)


def main(folder: Path, lock: int) -> int:
    """Supervise the run in `folder`, whose lock is held by the descriptor `lock`. Returns the exit
    status of the run, or 0 in the guard. This process has one thread and does nothing else."""
    if not _guarded(lock):
        return 0
    from gpu_engine.runs import digest
    from gpu_engine.runs.folder import Run

    status = _supervise(folder, lock)
    digest.make(Run(folder))  # what lists tell of it; a job of Slurm gets it by the first look
    return status


def in_foreground(run: Run, lock: int, beside: Beside | None) -> bool:
    """The same, and return in the guard alone, once all has ended: whether a signal had asked it to
    end. How the run ended is in its folder. `beside`: as for `Supervisor`. Raises nothing."""
    handed_on = list[int]()
    if _guarded(lock, handed_on):
        # Not back into the frames of who called: those are the guard's.
        os._exit(_supervise(run.path, lock, run.node, beside))
    return bool(handed_on)


def _supervise(folder: Path, lock: int, node: int = 0, beside: Beside | None = None) -> int:
    os.set_inheritable(lock, False)  # a rank that kept the lock would look like a supervisor
    # Only the supervisor needs these, and not its guard.
    from gpu_engine.runs import waiting
    from gpu_engine.runs.folder import EXIT_CODES, Run
    from gpu_engine.supervisor.supervise import Supervisor
    from gpu_engine.sweep.rungs import Rungs

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO,
                        stream=sys.stderr, force=True)
    umask = os.umask(0o077)  # for our files; the ranks get that of whoever launched
    run = Run(folder, node)
    try:
        while True:  # a run that makes room waits again
            leases = room = None
            if waiting.read(folder) is not None:
                from gpu_engine.queue.wait import Waiter

                if (leases := Waiter(run).take_turn()) is None:
                    return EXIT_CODES[run.state().state]
            if waiting.read(folder, waiting.PLACE) is not None:
                from gpu_engine.queue.give_way import Room

                room = Room.of(run)
            ended = Supervisor(run, umask, None if node else Rungs.of(run), beside, room
                               ).supervise(leases).state
            if ended != "queued":
                return EXIT_CODES[ended]
    except Exception:
        logging.exception("the supervisor itself failed")
        return 1


def _guarded(lock: int, handed_on: list[int] | None = None) -> bool:
    """Fork, before any thread is started. Returns True in the child, which is the supervisor and
    alone keeps the lock, and False in the parent, the guard, once the supervisor and everything
    below it have ended. If fork fails, returns True without a guard. `handed_on`: signals that
    ask a run to end reach the supervisor through the guard, which notes them there."""
    # One that comes while we fork would end us before anybody could hear it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    guard = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        pid = None
    if not pid:
        if pid == 0:
            os.setsid()
            if handed_on is not None:
                # For Slurm our step ends with the guard, and where it follows processes by their
                # parents, it would never find this one: it would train beside the next attempt.
                end_with(guard, signal.SIGTERM)
        if handed_on is None:  # else they wait until the supervisor takes them up
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return True
    os.close(lock)  # if the guard held it too, a dead run would look alive
    become_subreaper()

    def hand_on(number: int, _: object) -> None:
        if handed_on is not None:
            handed_on.append(number)
        os.kill(pid, number)

    for number in _DEAF:
        signal.signal(number, hand_on if handed_on is not None and number in STOPS
                      else signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        while os.waitpid(-1, 0)[0] != pid:
            pass
    except ChildProcessError:
        pass
    for number in STOPS:  # its pid may be another's from now on
        signal.signal(number, signal.SIG_IGN)
    kill_tree(())
    return False


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
