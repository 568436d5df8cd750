"""What must be known of a run before anything else: why it failed, what it waits for, who stands
still.

Pure: a store and a clock in, lines of text out. Everything from files goes through `clean`.
"""

from __future__ import annotations

from gpu_engine.common.clean import clean
from gpu_engine.events import hang
from gpu_engine.events.rank_view import RankView
from gpu_engine.runs.state import State
from gpu_panel.common import units
from gpu_panel.run.store import RunStore
from gpu_panel.run.text.headline import DOT
from gpu_panel.run.text.ranks import missing, name_ranks, standing_still
from gpu_panel.run.text.states import WARNING, glyph

SHOWN_FOR = 120.0
"""Seconds of an attempt in which the launch's warnings stand at the top; i has them after that."""


def banner(store: RunStore, now: float) -> tuple[list[str], str]:
    """(lines, tone) that must be known first; no lines where there is nothing to say. Tone is
    "error", "warning", "success" or "plain". now: unix seconds."""
    state = store.state
    if state is None or (not store.caught_up and store.read_share < 1.0 and store.ranks):
        share = "" if state is None else f" {units.share(store.read_share)}"
        return [f"reading what the ranks wrote…{share}"], "plain"
    sign = glyph(state.state)
    if state.state == "failed":
        return _failed(store, state), "error"
    if state.state == "unreadable":
        return [f"{sign} {clean(state.reason or 'it is not known how it is', 200)}"], "warning"
    if state.state == "lost":
        return _lost(store, state, now), "error"
    if state.state == "completed":
        return _completed(store, state), "success"
    if state.state == "stopped":
        return [f"{sign} stopped · {_last_known(store, now)}"], "plain"
    if state.state == "stopping":
        # A reason is there once it takes longer than run.grace.
        why = clean(state.reason.partition(";")[0], 300) if state.reason \
            else "the ranks finish their step and save"
        return [f"{sign} stopping… {why}; s again ends them now"], "warning"
    if state.again is not None and state.attempts:
        last = state.attempts[-1]
        left = max(round(state.again - now), 0)
        return [f"{glyph('failed')} attempt {last.number} failed: "
                f"{clean(last.reason or 'no reason', 300)}",
                f"  again in {left} s, from the last checkpoint; s stops it"], "error"
    return _with_attempts_before(store, state, *_going_on(store, state, now))


def _with_attempts_before(store: RunStore, state: State, lines: list[str], tone: str,
                          ) -> tuple[list[str], str]:
    """`lines`, and how the attempt before ended where it failed."""
    before = store.failed_before()
    if not before:
        return lines, tone
    last = before[-1]
    reason = clean((last.reason or "no reason").partition("; last ")[0], 120)
    all_of_them = f" (i: all {len(state.attempts)})" if len(before) > 1 else ""
    more = f"↻ attempt {state.attempt}; attempt {last.number} {last.outcome}: {reason}{all_of_them}"
    return [*lines, more], tone if lines else "plain"


def _going_on(store: RunStore, state: State, now: float) -> tuple[list[str], str]:
    """What is to be said of a run that goes on."""
    lines: list[str] = []
    failing = store.first_error()
    if failing is not None:
        lines.append(f"{glyph('failed')} {_failed_first(failing)}")
    if store.bad_step is not None:
        step, rank = store.bad_step
        lines.append(f"× the loss of rank {rank} was not finite at step {step:,}")
    if lines:
        return lines, "error"
    begun = state.attempts[-1].started if state.attempts else state.started
    told = [f"{WARNING} {clean(w, 300)}" for w in store.forewarned()] \
        if begun is None or now - begun < SHOWN_FOR else []
    waited_for = missing(store.ranks)
    if waited_for or not store.ranks:
        whom = name_ranks(waited_for) if waited_for else "the ranks"
        since = units.clock(now - (begun or state.created))
        return [f"waiting for {whom} · {since} since "
                + ("it started" if begun else "it was asked for"), *told], \
            "warning" if told else "plain"
    still = standing_still(store, now)
    if still:
        stopped = next(iter(store.suspended.items()), None)
        if stopped is None and store.unheard and still[0].is_silent:
            return [f"{WARNING} {clean(store.unheard, 300)}", *told], "warning"
        told.insert(0, "  d shows where" if stopped is None else
                    f"  rank {stopped[0]} was stopped by a signal: kill -CONT {stopped[1]} lets "
                    "it go on")
        return [f"{WARNING} {clean(hang.describe(still), 300)}", *told], "warning"
    told += [f"{WARNING} {clean(w, 300)}" for w in store.warnings()[-1:]]
    return told, "warning" if told else "plain"


def _failed(store: RunStore, state: State) -> list[str]:
    cause, first, sign = state.cause, store.first_error(), glyph("failed")
    if cause is not None and cause.rank is not None:
        kind = f"{clean(cause.type, 60)}: " if cause.type else ""
        lead = f"{sign} rank {cause.rank} failed first: {kind}{clean(cause.message, 300)}"
    elif first is not None:
        lead = f"{sign} {_failed_first(first)}"
    else:
        told = (cause and cause.message) or state.reason or "no reason"
        lead = f"{sign} failed: {clean(told, 300)}"
    lines = [lead]
    # The reason of a failed rank is its cause once more.
    if state.reason and (cause is None or cause.message.splitlines()[:1] != [
            state.reason.partition(": ")[2]]) and clean(state.reason, 300) not in lead:
        lines.append(f"  {clean(state.reason, 300)}")
    return lines


def _failed_first(view: RankView) -> str:
    error = view.error
    at = "" if view.step is None else f" at step {view.step:,}"
    kind = clean((error and error.type) or "error", 60)
    message = clean(error.message if error is not None else "", 300)
    return f"rank {view.rank} failed first{at}: {kind}: {message}"


def _lost(store: RunStore, state: State, now: float) -> list[str]:
    # What it did last is in the reason too; it is said in the next line.
    why = (state.reason or "its supervisor is gone").partition("; last ")[0]
    lines = [f"{glyph('lost')} lost: {clean(why, 200)}",
             f"{_last_known(store, now)} · u resumes it"]
    if store.left:
        pids = ", ".join(map(str, store.left[:8])) + (", …" if len(store.left) > 8 else "")
        lines.append(f"still running of it: pid {pids}; s ends that")
    return lines


def _completed(store: RunStore, state: State) -> list[str]:
    done = store.progress()
    words = [f"{glyph('completed')} completed"]
    if done.step is not None:
        words.append(f"{done.step:,} steps")
    if state.started and state.ended:
        words.append(f"in {units.clock(state.ended - state.started)}")
    line = " ".join(words)
    if done.loss is not None:
        line += f"{DOT}loss {units.loss(done.loss)}"
    if store.saved is not None and store.saved.path:
        line += f"{DOT}{clean(store.saved.path, 80)}"
    return [line]


def _last_known(store: RunStore, now: float) -> str:
    step = store.progress().step
    words = [f"last step {step:,}" if step is not None else "no step was finished"]
    if store.saved is not None:
        at = f"step {store.saved.step:,}, " if store.saved.step is not None else ""
        words.append(f"last checkpoint {at}{units.ago(max(now - store.saved.at, 0))}")
    else:
        words.append("no checkpoint")
    return DOT.join(words)
