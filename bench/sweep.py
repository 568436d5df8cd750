"""How long the table of a sweep of a hundred runs takes: python -m bench sweep

Makes finished runs of two ranks each, 25 combinations with four seeds. Prints the time until their
states are counted, until the table is made from all of their events, and until it is made again.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import runs as made

RUNS, STEPS = 100, 1500


def make(home: Path, count: int = RUNS, steps: int = STEPS) -> None:
    """A sweep of `count` runs in the folder `home`, which GPU_PANEL_HOME names."""
    from gpu_engine.runs import sweep
    from gpu_engine.runs.folder import all_runs

    made.make(home, count, steps)
    begun = time.time()
    for at, run in enumerate(reversed(all_runs())):
        lr, size = f"{10.0 ** -(at // 20):g}", str(16 << at // 4 % 5)
        sweep.write(run.path, sweep.Member("s0000", "digits", at + 1, count, begun,
                                           {"train.lr": lr, "batch.size": size}, at % 4 + 1))


def measure() -> str:
    from gpu_engine.sweep import group
    from gpu_engine.sweep.table import By, points

    took: list[str] = []

    def timed(work: Callable[[], object]) -> object:
        began, busy = time.perf_counter(), time.process_time()
        found = work()
        took.append(f"{time.perf_counter() - began:.3f} s ({time.process_time() - busy:.3f} s of a "
                    "processor)")
        return found

    found = group.all_groups()[0]
    timed(lambda: group.without_figures(group.all_groups()[0]))
    timed(lambda: points(group.read(found), By()))
    timed(lambda: points(group.read(found), By()))
    return (f"{RUNS} runs of {STEPS:,} steps on two ranks\n  states {took[0]}\n  table {took[1]}\n"
            f"  again {took[2]}")


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        os.environ["GPU_PANEL_HOME"] = home
        make(Path(home))
        sys.stdout.write(measure() + "\n")


if __name__ == "__main__":
    main()
