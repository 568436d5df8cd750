"""How long one frame of the loss chart takes: python bench/curves.py

Draws the noisy losses of 8 ranks at 160×48 and 80×24, as the run screen does. Prints the median and
the worst time of a frame in milliseconds, the time to add one value, and the bytes kept.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from math import exp

from textual.app import ComposeResult

from gpu_panel.charts.curves import Curve, CurveView
from gpu_panel.charts.series import RankSeries
from gpu_panel.themed import ThemedApp

RANKS, FRAMES = 8, 30


class Chart(ThemedApp):
    def compose(self) -> ComposeResult:
        yield CurveView()


def written(steps: int, ranks: int) -> tuple[RankSeries, float]:
    """(the series, seconds to add one value)."""
    rng = random.Random(0)
    values = [1.7 + 3.8 * exp(-6 * s / steps) + rng.gauss(0, 0.05) for s in range(steps)]
    series = RankSeries()
    began = time.perf_counter()
    for first in range(0, steps, 20):
        for rank in range(ranks):
            part = values[first:first + 20]
            series.extend(rank, range(first, first + len(part)), part)
    return series, (time.perf_counter() - began) / (steps * ranks)


def kept(series: RankSeries) -> int:
    return sum(sys.getsizeof(column) for s in (*series.ranks.values(), series.all)
               for column in (s.lo, s.hi, s.total, s.count, s.bad))


async def measure(size: tuple[int, int], steps: int, ranks: int, smooth: float) -> str:
    series, a_value = written(steps, ranks)
    async with Chart().run_test(size=size) as pilot:
        view = pilot.app.query_one(CurveView)
        view.smooth = smooth
        view.show([Curve(i, f"rank {i}", s) for i, s in series.ranks.items()], series.all)
        await pilot.pause()
        took = []
        for _ in range(FRAMES):
            began = time.perf_counter()
            view.frame(*size)
            took.append((time.perf_counter() - began) * 1e3)
    return (f"{size[0]:>3}×{size[1]:<3} {ranks:>3} × {steps:>7,}  smooth {smooth}   "
            f"median {statistics.median(took):6.1f} ms   worst {max(took):6.1f} ms   "
            f"a value {a_value * 1e6:4.2f} µs   {kept(series) / 1024:6.0f} KiB")


async def measure_all() -> None:
    for size in ((160, 48), (80, 24)):
        for steps in (500, 10_000, 100_000):
            sys.stdout.write(await measure(size, steps, RANKS, 0.0) + "\n")
        sys.stdout.write(await measure(size, 10_000, RANKS, 0.6) + "\n")
    sys.stdout.write(await measure((160, 48), 10_000, 64, 0.0) + "\n")


def main() -> None:
    asyncio.run(measure_all())


if __name__ == "__main__":
    main()
