"""What is said of a run in words: its headline, its figures, and what must be known first.

Pure: a store and a clock in, styled text out. Everything from files goes through `clean`.
"""

from __future__ import annotations

from typing import Any

from textual.content import Content

from gpu_engine.common.clean import clean
from gpu_engine.events import hang
from gpu_engine.events.view import RankView
from gpu_engine.plan import modes
from gpu_engine.plan.own_command import is_told
from gpu_panel.common import units
from gpu_panel.run import rank_words
from gpu_panel.run.store import RunStore

GLYPHS = {"queued": "◌", "starting": "◌", "running": "●", "stopping": "◐", "completed": "✓",
          "stopped": "■", "failed": "✗", "lost": "?"}
STYLES = {"running": "$text-success", "completed": "$text-success", "failed": "$text-error",
          "lost": "$text-error", "stopping": "$text-warning", "stopped": "$text-warning"}
DOT = " · "
FOREWARNED = 120.0
"""Seconds of an attempt in which the launch's warnings stand at the top; i has them after that."""


def headline(store: RunStore, now: float, width: int) -> Content:
    """One line: what the run is at the left, how far at the right. now: unix seconds."""
    right = _standing(store, now)
    who = f" run {clean(store.run.id, 20)}  "
    parts = shape(store.plan) or ([clean(store.state.name, 40)] if store.state else [])
    while parts and len(who) + len(DOT.join(parts)) + right.cell_length + 3 > width:
        parts.pop()
    left = Content.assemble((who, "bold"), (parts[0] if parts else "", "bold $text-primary"),
                            "".join(DOT + p for p in parts[1:]))
    gap = max(width - left.cell_length - right.cell_length - 1, 1)
    return Content.assemble(left, " " * gap, right)


def shape(plan: dict[str, Any]) -> list[str]:
    """What is trained and how: ["bytes-gpt", "DDP×2", "256 global", "bf16"]."""
    if not plan:
        return []
    words = [clean(str(plan.get("name", "")), 40)]
    name = plan.get("mode")
    mode = modes.find(name)
    if mode is not None:
        words.append(clean(mode.shape(plan.get("replicas", "?"), plan.get("nodes", "?")), 30))
    elif name:  # of another version
        words.append(clean(str(name), 20))
    batch, spec = plan.get("batch"), plan.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    task = spec.get("task")
    command = task.get("command") if isinstance(task, dict) else None
    if isinstance(batch, dict) and isinstance(batch.get("global_size"), int) \
            and (command is None or is_told(command, "batch.meaning")):
        words.append(f"{batch['global_size']:,} global")
    amp = spec.get("amp")
    dtype = amp.get("dtype") if isinstance(amp, dict) else None
    if dtype in ("bf16", "fp16") and (command is None or is_told(command, "amp.dtype")):
        words.append(dtype)
    return words


def _standing(store: RunStore, now: float) -> Content:
    state = store.state
    if state is None:
        return Content("reading…")
    glyph, style = GLYPHS.get(state.state, "?"), STYLES.get(state.state, "")
    words = []
    if state.started is not None:
        heard = max((v.beat for v in store.ranks.values() if v.beat is not None), default=now)
        until = state.ended or (now if state.live else min(heard, now))
        words.append(units.clock(max(until - state.started, 0.0)))
    done = store.progress()
    if done.share is not None and state.state != "completed":
        words.append(units.share(done.share))
    if state.state == "running" and done.seconds_left is not None and not stalled(store, now):
        words.append(f"{units.clock(done.seconds_left)} left")
    if state.attempt > 1:
        words.append(f"attempt {state.attempt}")
    return Content.assemble((f"{glyph} {state.state}", f"bold {style}".strip()),
                            " " + DOT.join(words) if words else "", " ")


def facts(store: RunStore, now: float) -> Content:
    """One line of figures, the ones that matter most first."""
    done, some = store.progress(), next(iter(store.ranks.values()), None)
    words: list[Content | tuple[str, str] | str] = []
    if done.step is not None:
        of = f" of {done.total_steps:,}" if done.total_steps else ""
        words.append(f"step {done.step:,}{of}")
        if done.trainings > 1:
            words.append(f"{done.trainings} trainings")
    beside = sum(v.process is not None for v in store.ranks.values())
    if beside:
        words.append(f"{beside + 1} processes train as rank "
                     f"{next(v.as_rank for v in store.ranks.values() if v.process is not None)}")
    if some is not None and some.epoch is not None and some.epochs:
        words.append(f"epoch {min(some.epoch + 1, some.epochs)} of {some.epochs}")
    if stalled(store, now):
        words.append(("stands still", "$text-warning"))
    elif done.samples_per_s is not None or done.steps_per_s is not None:
        words.append(units.pace(done.samples_per_s, done.steps_per_s))
    if store.saved is not None:
        at = "" if store.saved.step is None else f" step {store.saved.step:,}"
        words.append(f"saved{at} {units.ago(max(now - store.saved.at, 0))}")
    skipped = max((v.skipped or 0 for v in store.ranks.values()), default=0)
    if skipped:
        words.append((f"{skipped:,} steps skipped", "$text-warning"))
    if many := len(store.warnings()) + len(store.forewarned()):
        words.append((f"! {many} warning{'s' * (many > 1)} (i)", "$text-warning"))
    if store.skipped_lines:
        words.append((f"{store.skipped_lines:,} damaged lines left out", "$text-warning"))
    if store.evaluations:
        step, values = store.evaluations[-1]
        named = ", ".join(f"{clean(k, 20)} {units.loss(v)}" for k, v in list(values.items())[:3])
        words.append(f"eval {named}" + (f" at {step:,}" if step is not None else ""))
    named = [(k, v) for k, v in (some.metrics if some is not None else {}).items()
             if not k.startswith(("loss[", "grad_norm"))]
    if named:
        words.append(", ".join(f"{clean(k, 20)} {units.loss(v)}" for k, v in named[-3:]))
    if some is not None and some.lr is not None:
        words.append(f"lr {some.lr:.3g}")
    out = Content(" ")
    for i, word in enumerate(words):
        piece = Content.styled(*word) if isinstance(word, tuple) else Content(str(word))
        out = out + Content(DOT if i else "") + piece
    return out


def banner(store: RunStore, now: float) -> tuple[list[str], str]:
    """(lines, tone) that must be known first; no lines where there is nothing to say. Tone is
    "error", "warning", "success" or "plain"."""
    state = store.state
    if state is None or (not store.caught_up and store.read_share < 1.0 and store.ranks):
        share = "" if state is None else f" {units.share(store.read_share)}"
        return [f"reading what the ranks wrote…{share}"], "plain"
    if state.state == "failed":
        return _failed(store), "error"
    if state.state == "unreadable":
        return [f"? {clean(state.reason or 'it is not known how it is', 200)}"], "warning"
    if state.state == "lost":
        why = (state.reason or "its supervisor is gone").partition("; last ")[0]  # said below
        lines = [f"? lost: {clean(why, 200)}",
                 f"{_last_known(store, now)} · u resumes it"]
        if store.left:
            pids = ", ".join(map(str, store.left[:8])) + (", …" if len(store.left) > 8 else "")
            lines.append(f"still running of it: pid {pids}; s ends that")
        return lines, "error"
    if state.state == "completed":
        return _completed(store), "success"
    if state.state == "stopped":
        return [f"■ stopped · {_last_known(store, now)}"], "plain"
    if state.state == "stopping" and state.reason:  # it takes longer than run.grace
        return [f"◐ stopping… {clean(state.reason.partition(';')[0], 300)}; s again ends them now"
                ], "warning"
    if state.state == "stopping":
        return ["◐ stopping… the ranks finish their step and save; s again ends them now"], \
            "warning"
    if state.again is not None and state.attempts:
        last = state.attempts[-1]
        left = max(round(state.again - now), 0)
        return [f"✗ attempt {last.number} failed: {clean(last.reason or 'no reason', 300)}",
                f"  again in {left} s, from the last checkpoint; s stops it"], "error"
    lines, tone = _now(store, now)
    before = store.failed_before()
    if before and not lines:
        tone = "plain"
    if before:
        last = before[-1]
        lines.append(f"↻ attempt {state.attempt}; attempt {last.number} {last.outcome}: "
                     f"{clean((last.reason or 'no reason').partition('; last ')[0], 120)}"
                     + (f" (i: all {len(state.attempts)})" if len(before) > 1 else ""))
    return lines, tone


def _now(store: RunStore, now: float) -> tuple[list[str], str]:
    """What is to be said of a run that goes on."""
    state = store.state
    lines: list[str] = []
    failing = store.first_error()
    if failing is not None:
        lines.append(f"✗ {_first_words(failing)}")
    if store.bad_step is not None:
        step, rank = store.bad_step
        lines.append(f"× the loss of rank {rank} was not finite at step {step:,}")
    if lines:
        return lines, "error"
    begun = state.attempts[-1].started if state.attempts else state.started
    told = [f"! {clean(w, 300)}" for w in store.forewarned()] \
        if begun is None or now - begun < FOREWARNED else []
    missing = rank_words.missing(store.ranks)
    if missing or not store.ranks:
        whom = rank_words.names(missing) if missing else "the ranks"
        since = units.clock(now - (begun or state.created))
        return [f"waiting for {whom} · {since} since "
                + ("it started" if begun else "it was asked for"), *told], \
            "warning" if told else "plain"
    standing = stalled(store, now)
    if standing:
        stopped = next(iter(store.suspended.items()), None)
        told.insert(0, "  d shows where" if stopped is None else
                    f"  rank {stopped[0]} was stopped by a signal: kill -CONT {stopped[1]} lets "
                    "it go on")
        return [f"! {clean(hang.words(standing), 300)}", *told], "warning"
    told += [f"! {clean(w, 300)}" for w in store.warnings()[-1:]]
    return told, "warning" if told else "plain"


def stalled(store: RunStore, now: float) -> list[hang.Sign]:
    """The ranks that stand still, while it runs: until they go on, its last rate is not its rate
    and the time that is left can't be told."""
    live = store.state is not None and store.state.state == "running"
    return rank_words.stalled(store.ranks, now) if live else []


def _failed(store: RunStore) -> list[str]:
    state, first = store.state, store.first_error()
    cause = state.cause
    if cause is not None and cause.rank is not None:
        kind = f"{clean(cause.type, 60)}: " if cause.type else ""
        lead = f"✗ rank {cause.rank} failed first: {kind}{clean(cause.message, 300)}"
    elif first is not None:
        lead = f"✗ {_first_words(first)}"
    else:
        lead = f"✗ failed: {clean((cause and cause.message) or state.reason or 'no reason', 300)}"
    lines = [lead]
    # The reason of a failed rank is its cause once more.
    if state.reason and (cause is None or cause.message.splitlines()[:1] != [
            state.reason.partition(": ")[2]]) and clean(state.reason, 300) not in lead:
        lines.append(f"  {clean(state.reason, 300)}")
    return lines


def _first_words(view: RankView) -> str:
    error = view.error or {}
    at = "" if view.step is None else f" at step {view.step:,}"
    kind = clean(str(error.get("type") or "error"), 60)
    return f"rank {view.rank} failed first{at}: {kind}: {clean(str(error.get('message')), 300)}"


def _completed(store: RunStore) -> list[str]:
    state, done = store.state, store.progress()
    words = ["✓ completed"]
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
