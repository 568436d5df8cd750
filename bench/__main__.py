"""`make bench`: every figure that the README and the documents quote, measured anew.

Ratios within one run, as machines differ and drift; `python -m bench NAME` runs one.
"""

from __future__ import annotations

import importlib
import sys

NAMES = ("start", "step", "observe", "curves", "monitor", "save")


def main() -> None:
    for name in sys.argv[1:] or NAMES:
        sys.stdout.write(f"== {name}\n")
        sys.stdout.flush()
        importlib.import_module(f"bench.{name}").main()


if __name__ == "__main__":
    main()
