"""`python -m gpu_engine.queue FOLDER`: start waiting runs until none is left (`waiter.ensure`)."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import socket
import sys
from pathlib import Path

from gpu_engine.common.files import take_lock
from gpu_engine.queue.waiter import Waiter
from gpu_engine.runs import waiting


def main(argv: list[str]) -> int:
    """Wait in the folder `argv[1]`. Returns 0 at once if another one does."""
    folder = Path(argv[1])
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO,
                        stream=sys.stderr)
    os.umask(0o077)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.environ["GPU_PANEL_HOME"] = str(folder.parent)
    fd = os.open(waiting.lock_path(folder, socket.gethostname()),
                 os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    while True:
        if not take_lock(fd):
            return 0
        try:
            Waiter(folder).run()
        except Exception:
            logging.exception("the queue failed")
            return 1
        fcntl.flock(fd, fcntl.LOCK_UN)
        # A run that came before the lock was free has found it held, and started nobody.
        if not waiting.any_here(folder):
            return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
