"""What is measured, in words, and how its values are written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """One measure of a group. In all of them less is better."""

    title: str
    unit: str
    """ms, s, % (of a core) or kB/s; values are in seconds, shares of a core and bytes a second."""

    def text(self, value: float) -> str:
        """A value with its unit."""
        if self.unit == "ms":
            return f"{_short(value * 1e3)} ms"
        if self.unit == "%":
            return f"{_short(value * 100)} %"
        if self.unit == "kB/s":
            return f"{_short(value / 1e3)} kB/s"
        return f"{_short(value)} s"


MEASURES: dict[tuple[str, str], Measure] = {
    **dict.fromkeys([("train1", "step"), ("train2", "step")],
                    Measure("a training step", "ms")),
    **dict.fromkeys([("train1", "cpu"), ("train2", "cpu")],
                    Measure("processor time of a step", "ms")),
    **dict.fromkeys([("train1", "start"), ("train2", "start")],
                    Measure("from the command to the end of the first step", "s")),
    ("stop", "stop"): Measure("from the request to the end of the last process", "s"),
    ("gpus", "first frame"): Measure("from the command to the first GPU on the screen", "s"),
    ("gpus", "watching"): Measure("share of a core while it watches", "%"),
    ("observe", "step"): Measure("a step of 10 ms that is looked into", "ms"),
    ("observe", "cpu"): Measure("processor time of such a step of 10 ms", "ms"),
    ("log", "step"): Measure("a step whose loss and learning rate are recorded", "ms"),
    ("log", "cpu"): Measure("processor time of such a step, in the process that trains", "ms"),
    ("open", "opened"): Measure("from the command to the whole curve", "s"),
    ("open", "screen"): Measure("from the command to the run's screen", "s"),
    ("points", "screen"): Measure("from the command to the run's screen", "s"),
    ("points", "opened"): Measure("from the command to the whole curve", "s"),
    ("runs", "listed"): Measure("`gpu-engine runs --json`", "s"),
    ("runs", "best"): Measure("`runs --best loss` after that, processor time", "s"),
    ("runs", "panel lists"): Measure("from the command to the panel's list, with all figures", "s"),
    ("runs", "panel"): Measure("the panel's processor time for it", "s"),
    ("ranks", "following"): Measure("the panel's share of a core on the run's screen", "%"),
    ("ranks", "key"): Measure("a key to its effect, median", "ms"),
    ("ranks", "slowest key"): Measure("a key to its effect, slowest", "ms"),
    ("ranks", "to the terminal"): Measure("the panel to its terminal", "kB/s"),
    ("ranks", "recorded"): Measure("events of all ranks", "kB/s"),
}
BESIDE = ("train1", "train2", "stop", "gpus", "observe", "log", "open")
"""Groups in which gpu-panel stands beside others. What begins with "gpu-panel" is ours."""
GROWTH = ("points", "runs", "ranks")
"""Groups of gpu-panel alone."""


def _short(value: float) -> str:
    """Three digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"
