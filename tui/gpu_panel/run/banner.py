"""The banner of a run: what it waits for, why it fails or stands still, what it leaves, each with
what to do. Everything from files goes through `clean`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from rich.cells import cell_len
from textual.content import Content
from textual.widgets import Static

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import with_type
from gpu_engine.events import notices
from gpu_engine.events.rank_view import RankView
from gpu_engine.plan.own_command import on_stop
from gpu_engine.runs.state import Notice, State
from gpu_panel.common.painting import put
from gpu_panel.run.doing import missing, name_ranks, why_still
from gpu_panel.run.headline import DOT
from gpu_panel.run.states import WARNING, glyph
from gpu_panel.run.store import RunStore

SHOWN_FOR = 120.0
"""Seconds after an attempt's start in which the banner shows the launch's warnings; later they are
only in the sheet (i)."""


def banner(store: RunStore, now: float) -> tuple[list[str], str]:
    """Its lines, if any, and its tone: "error", "warning", "success" or "plain". `now`: Unix."""
    state = store.state
    if state is None or (not store.caught_up and store.read_share < 1.0 and store.ranks):
        share = "" if state is None else f" {units.share(store.read_share)}"
        return [f"reading events…{share}"], "plain"
    mark = glyph(state.state)
    if state.state == "failed":
        return [*_failed(store, state), *_notices(store), f"  {_goes_on(store, now)}"], "error"
    if state.state == "unreadable":
        return [f"{mark} {clean(state.reason or 'state unknown', 200)}"], "warning"
    if state.state == "lost":
        return _lost(store, state, now), "error"
    if state.state == "completed":
        return _notices(store), "warning"  # heading and figures say the rest
    if state.state == "stopped":
        untrained = state.reason if store.view.progress().step is None else None
        told = _notices(store)
        # Some reasons begin with the word: "stopped while waiting after attempt 1 failed".
        why = clean(untrained or "", 300).removeprefix("stopped ")
        return [f"{mark} stopped" + ("" if untrained is None else f": {why}")
                + (f" · {_last_known(store, now)}" if untrained is None else ""), *told], \
            "warning" if told else "plain"
    if state.state == "stopping":
        # There is a reason once stopping takes longer than run.grace.
        why = clean(state.reason.partition(";")[0], 300) if state.reason \
            else on_stop(store.plan and store.plan.spec)
        return [f"{mark} stopping… {why}; s again ends the run now"], "warning"
    if state.again is not None and state.attempts:
        last = state.attempts[-1]
        left = max(round(state.again - now), 0)
        return [f"{glyph('failed')} attempt {last.number} failed: "
                f"{clean(last.reason or 'for an unknown reason', 300)}",
                f"  restarts in {left} s from the last checkpoint; s stops it"], "error"
    if store.turn is not None:
        place, of, entry = store.turn
        since = entry.submitted
        parts = [f"  place {place:,} of {of:,} in the queue",
                 f"since {units.time_of_day(since, now)}, {units.ago(now - since)}"]
        if entry.priority:
            parts.append(f"priority {entry.priority}")
        return [f"{mark} {clean(state.reason or 'waits', 300)}", DOT.join(parts)], "plain"
    if state.state in ("queued", "starting") and state.reason:
        return [f"{mark} {clean(state.reason, 300)}"], "plain"
    lines, tone = _of_live_run(store, state, now)
    before = [a for a in state.attempts
              if a.outcome in ("failed", "lost") and a.number < state.attempt]
    room = state.made_room(now)
    if room is None and before:  # an attempt that goes on hides why the one before has failed
        last = before[-1]
        reason = clean((last.reason or "for an unknown reason").partition("; last ")[0], 120)
        all_of_them = f" (i: all {len(state.attempts)})" if len(before) > 1 else ""
        tone = tone if lines else "plain"
        lines = [*lines, f"↻ attempt {state.attempt}; attempt {last.number} {last.outcome}: "
                 f"{reason}{all_of_them}"]
    elif room is not None:
        tone = tone if lines else "plain"
        lines = [*lines, f"↻ {clean(room, 300)}"]
    return lines, tone


def _of_live_run(store: RunStore, state: State, now: float) -> tuple[list[str], str]:
    still = why_still(store, now)
    if (failing := store.view.first_error()) is not None:
        return [f"{glyph('failed')} {_failed_first(failing)}"], "error"
    lines = _notices(store)
    if state.unheard:
        lines.insert(0, f"{WARNING} {clean(state.reason or 'nothing is heard of its ranks', 300)}")
    begun = state.attempts[-1].started if state.attempts else state.started
    notes = [f"{WARNING} {clean(w, 300)}" for w in store.launch_warnings()] \
        if begun is None or now - begun < SHOWN_FOR else []
    waited_for = missing(store)
    # Before "stands still": until the last has come, all others wait, and that is no trouble.
    if waited_for or not store.ranks:
        whom = name_ranks(waited_for) if waited_for else "the ranks"
        since = units.clock(now - (begun or state.created))
        return [f"waiting for {whom} · {since} since "
                + ("it started" if begun else "the launch"), *lines, *notes], \
            "warning" if lines or notes else "plain"
    if still is not None:
        stopped = next(iter(store.suspended.items()), None)
        if stopped is None and store.unheard and still.silent:
            return [f"{WARNING} {clean(store.unheard, 300)}", *lines, *notes], "warning"
        notes.insert(0, "  d shows where" if stopped is None else
                     f"  rank {stopped[0]} was stopped by a signal: kill -CONT {stopped[1]} "
                     "continues it")
        mark = "" if still.works else f"{WARNING} "
        return [f"{mark}{clean(still.text, 500)}", *notes, *lines], \
            "plain" if still.works and not lines else "warning"
    notes = [*lines, *notes, *(f"{WARNING} {v.code}: {v.text}" for v in store.verdicts(now)[:1])]
    # The newest alone: `i` lists them, and the banner has few lines.
    notes += [f"{WARNING} {clean(w, 300)}" for w in store.view.warnings()[-1:]]
    return notes, "warning" if notes else "plain"


def _failed(store: RunStore, state: State) -> list[str]:
    cause, first, mark = state.cause, store.view.first_error(), glyph("failed")
    if cause is not None and cause.who is not None:
        what = with_type(cause.type and clean(cause.type, 60), clean(cause.message, 300))
        lead = f"{mark} {clean(cause.who, 80)} failed first: {what}"
    elif first is not None:
        lead = f"{mark} {_failed_first(first)}"
    else:
        reason = (cause and cause.message) or state.reason or "for an unknown reason"
        lead = f"{mark} failed: {clean(reason, 300)}"
    lines = [lead]
    # If a rank failed, the run's reason repeats its cause.
    said = None if cause is None else cause.message.partition("\n")[0].removesuffix(".")
    if state.reason and not (said and state.reason.endswith(said)) \
            and clean(state.reason, 300) not in lead:
        lines.append(f"  {clean(state.reason, 300)}")
    return lines + _places((failure(store) or (None, ""))[1])


def failure(store: RunStore) -> tuple[int | None, str] | None:
    """The rank that failed first, and its traceback."""
    cause = store.state.cause if store.state is not None else None
    if cause is not None and cause.traceback:
        return cause.rank, cause.traceback
    first = store.view.first_error()
    error = first.error if first is not None else None
    if first is None or error is None \
            or (cause is not None and cause.rank not in (None, first.rank)):
        return None
    if error.traceback and error.traceback.strip():
        return first.rank, error.traceback
    return first.rank, f"{clean(error.type)}: {clean(error.message)}"


_FRAME = re.compile(r'^ *File "([^"\n]+)", line (\d+), in (.+)\n +(\S.*)', re.MULTILINE)
_NOT_OURS = re.compile(r"/(?:site|dist)-packages/|/gpu_engine/|/lib/python\d|^<")


def _places(traceback: str) -> list[str]:
    """The last lines of the person's own files in a traceback: of the libraries below them, and of
    what called them, the log has the rest."""
    own = [frame.groups() for frame in _FRAME.finditer(traceback) if not _NOT_OURS.search(frame[1])]
    return [clean(f"  {PurePath(file).name}:{line} in {function}: {source}", 200)
            for file, line, function, source in own[-2:]]


def _failed_first(view: RankView) -> str:
    error = view.error
    at = "" if view.step is None else f" at step {view.step:,}"
    kind = clean((error and error.type) or "error", 60)
    message = clean(error.message if error is not None else "", 300)
    return f"rank {view.rank} failed first{at}: {with_type(kind, message)}"


def _lost(store: RunStore, state: State, now: float) -> list[str]:
    # The reason also names the last step, which the next line shows.
    why = (state.reason or "its supervisor is gone").partition("; last ")[0]
    lines = [f"{glyph('lost')} lost: {clean(why, 200)}", _goes_on(store, now)]
    if store.left:
        pids = ", ".join(map(str, store.left[:8])) + (", …" if len(store.left) > 8 else "")
        them = "it" if len(store.left) == 1 else "them"
        lines.append(f"still running: pid {pids}; s ends {them}")
    return lines


def _notices(store: RunStore) -> list[str]:
    """What is told of a run though it goes on or completes, each with the lines that mend it."""
    told = list(store.state.warnings) if store.state is not None else []
    if store.view.bad_step is not None and all(one.code != notices.NONFINITE for one in told):
        told.insert(0, Notice(notices.NONFINITE, notices.nonfinite(*store.view.bad_step)))
    return [text for one in told for text in
            (f"{WARNING} {clean(one.message, 300)}", *(f"  {clean(c, 200)}" for c in one.cure))]


def _last_known(store: RunStore, now: float) -> str:
    step = store.view.progress().step
    parts = [f"last step {step:,}" if step is not None else "no step was finished"]
    if store.view.saved is not None:
        at = f"step {store.view.saved.step:,}, " if store.view.saved.step is not None else ""
        parts.append(f"last checkpoint {at}{units.ago(max(now - store.view.saved.at, 0))}")
    else:
        parts.append("no checkpoint")
    return DOT.join(parts)


def _goes_on(store: RunStore, now: float) -> str:
    """What is left of a run, and what can be done with it."""
    command = store.plan is not None and store.plan.spec.task.command is not None
    cure = "u resumes it" if store.view.saved is not None else "u runs it again" if command \
        else "e loads its settings into the form"
    return f"{_last_known(store, now)}{DOT}{cure}"


class Banner(Static):
    """What `text.banner` says, on a ground of its tone."""

    DEFAULT_CSS = """
    Banner {
        height: auto;
        padding: 0 1;
        &.-error { background: $error-muted; color: $text-error; }
        &.-warning { background: $warning-muted; color: $text-warning; }
        &.-plain { background: $boost; }
    }
    """

    def show(self, lines: Sequence[str], tone: str) -> None:
        if not self.has_class(f"-{tone}"):
            self.set_classes(f"-{tone}")
        width, height = self.content_size
        as_high = len(lines) == height and all(cell_len(line) <= width for line in lines)
        put(self, Content("\n".join(lines)), layout=not as_high)
