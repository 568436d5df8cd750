"""`python -m gpu_engine.remote.run RUN_DIR LOCK_FD [rest]`: a run on hosts, which waits for its
devices, if it has to, and is then held together. Started by `launching.launcher`; with `rest` by
`places.hosts`, to fetch what the hosts of a run that has ended still have."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path


def main(argv: list[str]) -> int:
    from gpu_engine.queue.over_hosts import HostWaiter
    from gpu_engine.remote.reach.call import give_up_all
    from gpu_engine.remote.run import rest
    from gpu_engine.remote.run.span import Span
    from gpu_engine.runs import digest, waiting
    from gpu_engine.runs.folder import EXIT_CODES, Run
    from gpu_engine.sweep.rungs import Rungs

    run, lock = Run(Path(argv[1])), int(argv[2])
    os.set_inheritable(lock, False)  # ours alone: an ssh that kept it would look like us
    os.umask(0o077)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO,
                        stream=sys.stderr)
    try:
        if argv[3:] == ["rest"]:
            rest.fetch(run)
        elif waiting.read(run.path) is None or HostWaiter(run).take_turn() is not None:
            span = Span(run, Rungs.of(run))
            if span.state.live:
                span.hold()
        code = EXIT_CODES.get(run.state().state, 1)
        digest.make(run)
    except Exception:
        logging.exception("the process that holds the run together failed")
        code = 1
    give_up_all()
    logging.shutdown()
    os._exit(code)  # threads may still wait for a host


if __name__ == "__main__":
    sys.exit(main(sys.argv))
