"""The two lines at the top of the run screen: what the run is and how far it has got, then its
figures.

Pure: made from a store and the time. Everything from files goes through `clean`."""

from __future__ import annotations

from textual.content import Content

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.events.view import Progress
from gpu_engine.plan.own_command import is_told
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.spec import modes
from gpu_panel.run.doing import standing_still, why_still
from gpu_panel.run.states import WARNING, colour, glyph
from gpu_panel.run.store import RunStore

DOT = " · "


def headline(store: RunStore, now: float, width: int) -> Content:
    """One line: what the run is, and on the right how far it has got. `now`: Unix seconds."""
    left, right = heading(store, now, width)
    gap = max(width - left.cell_length - right.cell_length - 1, 1)
    return Content.assemble(left, " " * gap, right)


def heading(store: RunStore, now: float, width: int) -> tuple[Content, Content]:
    """What the run is, and how far it has got, in `width` cells together. `now`: unix seconds."""
    right = _how_far(store, now)
    run = f" run {clean(store.run.id, 20)}  "
    parts = what_is_trained(store.plan) or ([clean(store.state.name, 40)] if store.state else [])
    if store.named is not None:
        parts[:1] = [clean(store.named, 40)]
    while parts and len(run) + len(DOT.join(parts)) + right.cell_length + 3 > width:
        parts.pop()
    left = Content.assemble((run, "bold"), (parts[0] if parts else "", "bold $text-primary"),
                            "".join(DOT + p for p in parts[1:]))
    return left, right


def what_is_trained(plan: LaunchPlan | None) -> list[str]:
    """What is trained and how: ["bytes-gpt", "DDP×2", "256 global", "bf16"]; empty: no plan."""
    if plan is None:
        return []
    mode, command, dtype = modes.find(plan.mode), plan.spec.task.command, plan.spec.amp.dtype
    parts = [clean(plan.name, 40),
             clean(mode.shape(plan.replicas, plan.nodes), 30) if mode is not None else
             clean(plan.mode, 20)]  # a mode of another version
    if is_told(command, "batch.meaning"):
        parts.append(f"{plan.batch.global_size:,} global")
    if dtype != "off" and is_told(command, "amp.dtype"):
        parts.append(dtype)
    return parts


def _how_far(store: RunStore, now: float) -> Content:
    """State, time, share and time left: "● running 01:40 · 50 % · 01:40 left"."""
    state = store.state
    if state is None:
        return Content("reading…")
    parts = []
    if (took := state.took(now)) is not None:
        parts.append(units.clock(max(took, 0.0)))
    done = store.view.progress()
    if done.share is not None and state.state != "completed" and not _before(store):
        parts.append(units.share(done.share))
    left = state.left(done.seconds_left, now)
    if state.state == "running" and left is not None and not standing_still(store, now):
        parts.append(f"{units.clock(left)} left")
    if state.attempt > 1:
        parts.append(f"attempt {state.attempt}")
    amber = state.state == "completed" and state.warnings
    return Content.assemble((f"{glyph(state.state)} {state.state}",
                             f"bold {'$text-warning' if amber else colour(state.state)}".strip()),
                            " " + DOT.join(parts) if parts else "", " ")


def _before(store: RunStore) -> bool:
    """Whether its figures are those of the attempt before, as the one that runs has none yet. Of
    one that waits for devices they are shown: so far it has got."""
    state = store.state
    return state is not None and state.live and state.state != "queued" and state.attempt > 1 \
        and not store.view.is_of_latest


def figures(store: RunStore, now: float) -> Content:
    """One line of figures, the most important first. `now`: unix seconds."""
    done, some = store.view.progress(), next(iter(store.ranks.values()), None)
    parts: list[tuple[str, str] | str] = []
    if _before(store):
        done, some = Progress(None, None, None, None, None, None), None
    if done.step is not None:
        of = f" of {done.total_steps:,}" if done.total_steps else ""
        parts.append(f"step {done.step:,}{of}")
        if done.trainings > 1:
            parts.append(f"{done.trainings} trainings")
    # Processes that took the same rank: their figures would pass for one training's.
    more = sum(v.process is not None for v in store.ranks.values())
    if more:
        parts.append(f"{more + 1} processes train as rank "
                     f"{next(v.as_rank for v in store.ranks.values() if v.process is not None)}")
    # Epochs begin at 0 in events, at 1 for people; after the last step the next one has "begun".
    if some is not None and some.epoch is not None and some.epochs:
        parts.append(f"epoch {min(some.epoch + 1, some.epochs)} of {some.epochs}")
    still = why_still(store, now)
    if still is not None and not still.works:
        # Of a host that is cut off nobody knows whether it stands still.
        unheard = store.unheard is not None and not store.suspended
        parts.append(("no reports" if unheard else "stalled", "$text-warning"))
    elif still is None and (done.samples_per_s is not None or done.steps_per_s is not None):
        parts.append(units.pace(done.samples_per_s, done.steps_per_s))
    if store.view.saved is not None:
        at = "" if store.view.saved.step is None else f" step {store.view.saved.step:,}"
        parts.append(f"saved{at} {units.ago(max(now - store.view.saved.at, 0))}")
    skipped = max((v.skipped or 0 for v in store.ranks.values()), default=0)
    if skipped:
        parts.append((f"{units.counted(skipped, 'step')} skipped", "$text-warning"))
    if many := len(store.view.warnings()) + len(store.launch_warnings()):
        parts.append((f"{WARNING} {units.counted(many, 'warning')} (i)", "$text-warning"))
    if store.skipped_lines:
        parts.append((f"{store.skipped_lines:,} damaged lines ignored", "$text-warning"))
    if store.view.evaluations:
        step, values = store.view.evaluations[-1]
        named = ", ".join(f"{clean(k, 20)} {units.loss(v)}" for k, v in list(values.items())[:3])
        parts.append(f"eval {named}" + (f" at {step:,}" if step is not None else ""))
    # Those that the chart shows already are left out.
    named = [(k, v) for k, v in (some.metrics if some is not None else {}).items()
             if not k.startswith(("loss[", "grad_norm"))]
    if named:
        parts.append(", ".join(f"{clean(k, 20)} {units.loss(v)}" for k, v in named[-3:]))
    if some is not None and some.lr is not None:
        parts.append(f"lr {some.lr:.3g}")
    out = Content(" ")
    for i, part in enumerate(parts):
        piece = Content.styled(*part) if isinstance(part, tuple) else Content(part)
        out = out + Content(DOT if i else "") + piece
    return out
