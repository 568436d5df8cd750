"""`make bench`: measures every figure that the README and the documents quote.

Figures are ratios within one run where possible, as machines differ and drift. `python -m bench
NAME` runs a single benchmark.
"""

from __future__ import annotations

import importlib
import os
import sys

NAMES = ("start", "launch", "step", "observe", "big", "monitor", "save", "runs", "line", "panel",
         "night")


def main() -> None:
    # Said by the environment, as the benches' terminals don't answer when they are asked for it.
    os.environ.setdefault("COLORFGBG", "15;0")
    for name in sys.argv[1:] or NAMES:
        sys.stdout.write(f"== {name}\n")
        sys.stdout.flush()
        importlib.import_module(f"bench.{name}").main()


if __name__ == "__main__":
    main()
