"""Where the time of a run's steps went, rank by rank. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite

from gpu_engine.common import units
from gpu_engine.events import schema
from gpu_engine.events.rank_view import ALWAYS, COUNTS, RankView
from gpu_engine.events.schema import StepTime

REST = "rest"
NAMES = {"data": "data", "copy": "copies", "forward": "forward", "backward": "backward",
         "wait": "waiting", "optimizer": "optimizer", "save": "saving", "eval": "evaluation",
         REST: "rest"}
"""Each part as it is called on a screen."""
LETTERS = {"data": "d", "copy": "c", "forward": "f", "backward": "b", "wait": "w",
           "optimizer": "o", "save": "s", "eval": "e", REST: "·"}
"""Each part in a bar."""
LAST = 30.0
"""Seconds that "the last steps" took, at least if there are so many."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the time of some steps of one rank went into."""

    rank: int
    steps: int
    seconds: float
    parts: dict[str, float | None]
    """Seconds by part; None: not known. The rest is what the known ones leave."""
    median: float | None
    """Seconds of a step in the middle, without saving and evaluation."""
    workers: int | None
    on_device: bool
    """Whether these are seconds of the GPU and not of the process."""
    caught_up: int | None = None
    waited: int | None = None
    """Steps, as in `schema.StepTime`."""
    gc: float | None = None
    gcs: int | None = None
    stalls: int | None = None
    stalled: float | None = None
    """The same."""

    def share(self, name: str) -> float | None:
        """The share of the time that this part has, 0 to 1."""
        value = self.parts[name]
        return None if value is None or not self.seconds else value / self.seconds

    def a_step(self, name: str) -> float | None:
        value = self.parts[name]
        return None if value is None or not self.steps else value / self.steps

    @property
    def training(self) -> float:
        return self.seconds - (self.parts["save"] or 0.0) - (self.parts["eval"] or 0.0)

    def to_dict(self) -> dict[str, object]:
        """For scripts: seconds and shares."""
        return {"steps": self.steps, "seconds": round(self.seconds, 4), "median": self.median,
                "clock": "device" if self.on_device else "process",
                "caught_up": self.caught_up, "waited": self.waited, "gc": self.gc,
                "gcs": self.gcs, "stalls": self.stalls, "stalled": self.stalled,
                "parts": {name: value and round(value, 4) for name, value in self.parts.items()},
                "shares": {name: (share := self.share(name)) and round(share, 4)
                           for name in self.parts}}


def usable(view: RankView) -> list[StepTime]:
    """The spans that can be added up: with figures that can be true, and after the first ones, in
    which something is not seen yet that is seen later."""
    found = [s for s in view.spans if _true(s)]
    last = next((s for s in reversed(found) if s.n), None)
    if last is None:
        return []
    known = [name for name in ALWAYS if getattr(last, name) is not None]
    return [s for s in found if not s.n or all(getattr(s, name) is not None for name in known)]


def together(rank: int, spans: Sequence[StepTime]) -> Parts | None:
    """Spans as one; None if there is no step in them."""
    steps, seconds = sum(s.n for s in spans), sum(s.seconds for s in spans)
    if not steps or not seconds:
        return None
    parts: dict[str, float | None] = {}
    for name in schema.PARTS:
        known = [value for s in spans if (value := getattr(s, name)) is not None]
        parts[name] = sum(known) if known else None
    parts[REST] = max(seconds - sum(v for v in parts.values() if v is not None), 0.0)
    last = next(s for s in reversed(spans) if s.n)
    counts = [[n for s in spans if (n := getattr(s, name)) is not None] for name in COUNTS]
    return Parts(rank, steps, seconds, parts, median_of(spans), last.workers, bool(last.device),
                 *(sum(each) if each else None for each in counts))


def median_of(spans: Iterable[StepTime]) -> float | None:
    """The median of the spans' medians, each for as many steps as it stands for."""
    each = sorted((s.median, s.n) for s in spans if s.median is not None)
    half = sum(n for _, n in each) / 2
    for value, n in each:
        half -= n
        if half <= 0:
            return value
    return None


def of_run(view: RankView) -> Parts | None:
    """All that is known of a rank's attempt."""
    return together(view.rank, usable(view))


def of_last(view: RankView) -> Parts | None:
    """The last steps of a rank."""
    chosen: list[StepTime] = []
    for span in reversed(usable(view)):
        chosen.insert(0, span)
        if sum(s.seconds for s in chosen) >= LAST and any(s.n for s in chosen):
            break
    return together(view.rank, chosen)


def line(parts: Parts) -> str:
    """A rank's steps in a line: "13.8 ms: data 2 %, forward 11 %, …"; parts that are not known, or
    less than half a percent, are left out."""
    each = [f"{NAMES[name]} {share:.0%}" for name in parts.parts
            if (share := parts.share(name)) is not None and share >= 0.005]
    return f"{units.brief(parts.seconds / parts.steps)} a step: {', '.join(each)}"


def bar(view: RankView, cells: int = 10) -> str:
    """What was told last of a rank's steps in so many letters, "dfffbbbwwo"; "" if nothing was."""
    span = next((s for s in reversed(view.spans) if s.n), None)
    parts = together(view.rank, [span]) if span is not None and _true(span) else None
    if parts is None:
        return ""
    out, reached = "", 0.0
    for name, letter in LETTERS.items():
        reached += parts.share(name) or 0.0
        out += letter * (round(min(reached, 1.0) * cells) - len(out))
    return out


def _true(span: StepTime) -> bool:
    parts = [v for name in schema.PARTS if (v := getattr(span, name)) is not None]
    return all(isfinite(v) and v >= 0 for v in (span.seconds, span.median or 0.0, *parts)) \
        and sum(parts) <= span.seconds * 1.01 + 0.01 and span.seconds < 1e9
