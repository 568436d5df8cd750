"""The diagnosis of a run for the command line, reports and scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from gpu_engine.common import units
from gpu_engine.diagnose import steps, verdicts
from gpu_engine.diagnose.device_times import DeviceTimes
from gpu_engine.diagnose.steps import NAMES, Parts
from gpu_engine.events.rank_view import RankView


def line(parts: Parts) -> str:
    """A rank's steps in a line: "13.8 ms: data 2 %, forward 11 %, …"; parts that are not known, or
    less than half a percent, are left out."""
    each = [f"{NAMES[name]} {share:.0%}" for name in parts.parts
            if (share := parts.share(name)) is not None and share >= 0.005]
    return f"{units.brief(parts.seconds / parts.steps)} a step: {', '.join(each)}"


def unknown(parts: Parts) -> str:
    """The parts that are not known, in words; "" if all are."""
    return ", ".join(NAMES[name] for name, value in parts.parts.items() if value is None)


def to_dict(views: Iterable[RankView], devices: Sequence[DeviceTimes] = ()) -> dict[str, object]:
    """For scripts: the verdicts, and each rank's last steps and all of its attempt's."""
    each: Sequence[RankView] = list(views)
    ranks = []
    for view in each:
        last, run = steps.of_last(view), steps.of_run(view)
        if last is not None and run is not None:
            ranks.append({"rank": view.rank, "last": last.to_dict(), "run": run.to_dict()})
    return {"verdicts": [asdict(v) for v in verdicts.of(each, devices)], "ranks": ranks}
