"""`python -m gpu_engine.spanning RUN_DIR LOCK_FD`: started by `gpu_engine.launch`."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path


def main(argv: list[str]) -> int:
    from gpu_engine.runs.folder import EXIT_CODES, Run
    from gpu_engine.spanning.span import Span

    os.set_inheritable(int(argv[2]), False)  # ours alone: an ssh that kept it would look like us
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO,
                        stream=sys.stderr)
    try:
        code = EXIT_CODES[Span(Run(Path(argv[1]))).hold().state]
    except Exception:
        logging.exception("the process that holds the run together failed")
        code = 1
    logging.shutdown()
    os._exit(code)  # threads may still wait for a host


if __name__ == "__main__":
    sys.exit(main(sys.argv))
