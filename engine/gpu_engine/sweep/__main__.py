"""`python -m gpu_engine.sweep QUEUE SWEEP LOCK_FD`: start the supervisors of a sweep's members.

A sweep may have a thousand members, and a supervisor is a process. So only the next few members
have one while they wait; when one of them has got its devices or has been stopped, the next gets
its own. This process ends with the last member that has none; with run.halving it stays, to have
the best go on, and in a search, to ask for the next values. Killed, it leaves its lock file, by
which it is started again (`queue/serve.py`). Its environment is that of the submission, and theirs
is its own.
"""

from __future__ import annotations

import fcntl
import logging
import os
import random
import signal
import socket
import sys
import time
from collections import Counter
from pathlib import Path

from gpu_engine.common import paths
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import take_lock
from gpu_engine.devices import probe
from gpu_engine.places.verbs import Followed
from gpu_engine.queue import serve
from gpu_engine.runs import waiting
from gpu_engine.runs.folder import Run
from gpu_engine.supervisor.children import reap
from gpu_engine.sweep import group
from gpu_engine.sweep.search import Asker

AHEAD = 4
"""How many members wait with a supervisor: so many may start while the next is being started."""
_INTERVAL = 0.7
_MOST_STARTS = 3
"""How often one member is given a supervisor, each of which has died while it waited."""

log = logging.getLogger(__name__)


def main(folder: Path, sweep: str, fd: int) -> int:
    """Start supervisors until no member is left without one. `fd`: the descriptor that holds the
    sweep's lock. Returns 0."""
    os.set_inheritable(fd, False)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO,
                        stream=sys.stderr)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if paths.home() != folder.parent:  # set, it is also where hosts.toml and the like are
        os.environ["GPU_PANEL_HOME"] = str(folder.parent)
    starts, host, unable = Counter[str](), socket.gethostname(), set[str]()
    still, asker = dict[str, Followed](), Asker(folder, sweep)

    found: group.Group | None = None

    def waits() -> list[Run]:
        line = waiting.line(folder)
        for name in starts.keys() - line.keys():  # it has begun, and may wait again
            del starts[name]
        every = [Run(folder.parent / "runs" / name) for name, entry in line.items()
                 if (entry.sweep, entry.host) == (sweep, host)]
        return [run for run in every if starts[run.id] < _MOST_STARTS or run.supervised()]

    def goes_on(waiting_ones: set[str], ready: bool) -> bool:
        nonlocal found
        if not os.fstat(fd).st_size:  # `sweep stop`
            return False
        try:
            asks = waiting.search_file(folder, sweep).exists()
            # It may be submitted just now, or one was asked for.
            if found is None or (ready and not asks and len(found.members) < found.of) \
                    or (asks and waiting_ones - {run.id for run, _ in found.members}):
                found = group.find(sweep)
            more = group.go_on(found, unable, still, whole=ready and not asks)
            asker(room=ready and not waits())  # whoever goes on comes first
            more = more or (asks and not asker.gave_up)
            if not os.fstat(fd).st_size:  # meanwhile
                group.stop(group.find(sweep))
            return more
        except UserError as err:
            log.error("%s", err)
            return False
        finally:
            probe.drop()

    while take_lock(fd):
        members = waits()
        for run in members[:AHEAD]:
            try:
                if not run.supervised() and serve.start(run):
                    starts[run.id] += 1
                    log.info("run %s waits with a supervisor", run.id)
            except UserError as err:
                starts[run.id] += 1
                log.error("%s", err)
        ready = all(run.supervised() for run in members)
        if not goes_on({run.id for run in members}, ready) and ready:
            fcntl.flock(fd, fcntl.LOCK_UN)
            # A member that came before the lock was free has found it held, and started nobody.
            if asker.gave_up:  # `gpu-engine queue` has it go on
                return 0
            if all(run.supervised() for run in waits()):
                lock = waiting.sweep_lock(folder, sweep)
                for file in (lock, lock.with_suffix(".log"), waiting.search_file(folder, sweep)):
                    file.unlink(missing_ok=True)
                return 0
        time.sleep(_INTERVAL * (1 + random.random() / 2))
        reap(())  # guards that have ended
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
