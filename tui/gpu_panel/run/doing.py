"""What a rank is doing, in words: from its own report, its heartbeat and the other ranks. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.diagnose import hangs
from gpu_engine.diagnose.hangs import is_silent
from gpu_engine.events.rank_view import RankView
from gpu_panel.run.states import GLYPHS
from gpu_panel.run.store import RunStore

MEETING = 5.0
"""Seconds in a phase in which ranks wait for each other, after which one of them must be late."""
_MEETS = frozenset({"init", "backward", "eval", "checkpoint"})
"""Phases in which ranks wait for each other."""


@dataclass(frozen=True, slots=True)
class Peers:
    """What the ranks of a run have in common, worked out once for all of them."""

    ranks: Mapping[int, RankView]
    furthest: int
    stepped: int
    slowest: float | None
    usual: float
    """The least and the median rate, in samples per second; None: fewer than two are known."""

    @classmethod
    def of(cls, ranks: Mapping[int, RankView]) -> Peers:
        steps = [v.step for v in ranks.values() if v.step is not None]
        rates = [v.samples_per_s for v in ranks.values() if v.samples_per_s]
        return cls(ranks, max(steps, default=0), len(steps), min(rates) if len(rates) > 1 else None,
                   median(rates) if rates else 0.0)


def doing(view: RankView, peers: Peers, now: float, *, live: bool,
          unheard: Collection[int] = ()) -> tuple[str, str]:
    """What a rank is doing, and the style for that: one of `rows.STYLES` or "". `now`: unix
    seconds. `unheard`: see `State.unheard`."""
    if view.error is not None:
        return f"{GLYPHS['failed']} {clean(view.error.type or 'failed', 40)}", "bad"
    if view.outcome is not None:
        mark = GLYPHS.get(view.outcome, "")
        return f"{mark} {clean(view.outcome, 20)}".lstrip(), \
            "bad" if view.outcome == "failed" else "dim"
    if view.beat is None:
        return ("not started yet", "dim") if live else ("has recorded nothing", "warn")
    phase = clean(view.phase or "starting", 20)
    if not live:
        return f"ended in {phase}", "warn"
    if view.rank in unheard:
        return f"not heard of · {phase}", "warn"
    if is_silent(view, now):
        return f"silent · {phase}", "bad"
    if view.detail or view.written is not None:
        return clean(view.busy, 100), ""
    late = waited_for(view, peers.ranks, now)
    if late:
        return "waiting for " + name_ranks(late), "warn"
    if view.stands is not None and view.stands.phase == view.phase:
        return clean(hangs.does(view, now).removesuffix(","), 60), \
            "" if view.stands.works else "warn"
    word = lagging(view, peers)
    return (f"{phase} · {word}", "warn") if word else (phase, "")


def waited_for(view: RankView, ranks: Mapping[int, RankView], now: float) -> list[int]:
    others = [v for v in ranks.values() if v.rank != view.rank]
    if view.phase == "init":
        return [v.rank for v in others if v.beat is None]
    if view.phase not in _MEETS or now - (view.phase_since or now) < MEETING:
        return []
    silent = [v.rank for v in others
              if is_silent(v, now) or (v.outcome is None and v.beat is None)]
    elsewhere = [v.rank for v in others if v.outcome is None and v.phase != view.phase]
    return silent or elsewhere


def lagging(view: RankView, peers: Peers) -> str:
    """ "12 behind" or "slowest" for a rank well below the others, else ""."""
    if view.step is None or peers.stepped < 2:
        return ""
    behind = peers.furthest - view.step
    # Ranks report only a few times a second, which makes some look behind when they are not.
    if behind > 2 and behind > 2.0 * (view.steps_per_s or 0.0):
        return f"{behind:,} behind"
    mine = view.samples_per_s
    if mine and mine == peers.slowest and mine < 0.8 * peers.usual:
        return "slowest"
    return ""


def standing_still(store: RunStore, now: float) -> list[hangs.Standstill]:
    """The ranks that make no step in a running run, whether they work or not. While there are any,
    the last rate is out of date and the time left is unknown."""
    state = store.state
    if state is None or state.state != "running" or store.behind:
        return []
    return hangs.stalled([v for r, v in store.ranks.items() if r not in state.unheard], now)


def why_still(store: RunStore, now: float) -> hangs.Hang | None:
    """Why the ranks of a running run make no step; None while they do. An alarm where it does not
    `works`."""
    state = store.state
    if state is None or state.state != "running" or store.behind:
        return None
    return hangs.find_hang(store.ranks.values(), now, unheard=state.unheard)


def missing(store: RunStore) -> list[int]:
    """The ranks that are still to begin; none that only an attempt before had, on more devices."""
    named = {r.rank for r in store.plan.ranks} if store.plan is not None else set[int]()
    return [v.rank for v in store.ranks.values()
            if v.beat is None and (not named or v.rank in named)]


def name_ranks(ranks: Iterable[int]) -> str:
    """ "rank 1", "ranks 1, 2", "ranks 1, 2 and 5 more"."""
    found = list(ranks)
    if len(found) == 1:
        return f"rank {found[0]}"
    first = ", ".join(map(str, found[:3]))
    return f"ranks {first}" + (f" and {len(found) - 3} more" if len(found) > 3 else "")


def since_heard(view: RankView, now: float) -> str:
    """The time since its last sign of life: "0.3 s", "04:12"."""
    if view.beat is None:
        return units.UNKNOWN
    age = max(now - view.beat, 0.0)
    return f"{age:.1f} s" if age < 60 else units.clock(age)
