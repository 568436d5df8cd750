"""What is said of a run or a sweep: a title and a sentence, and the facts they are made of. Pure.

Names, causes and host names come from files and other machines, so all of them go through `clean`:
no control character reaches a phone, a terminal or a command.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, get_args

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.events.view import Progress
from gpu_engine.runs.state import State

Told = Literal["finished", "failed", "stopped", "stalled", "lost", "made_room"]
Event = Literal[Told, "test"]
"""The last is no event of a run: a message that tries whether it arrives."""

EVENTS: tuple[Told, ...] = get_args(Told)
"""The names that `on` in notify.toml takes."""

USUAL: tuple[Told, ...] = ("finished", "failed", "stalled", "lost", "made_room")
"""What an entry without `on` gets."""

_LONGEST = 400
"""Characters of a cause."""


@dataclass(frozen=True, slots=True)
class Message:
    """What is told. Times are Unix seconds; None: not known."""

    event: Event
    title: str
    """A few words: "digits failed"."""
    text: str
    """All of it in one sentence."""
    machine: str
    """Where it is told from."""
    time: float
    run: str | None = None
    """The run's id; None: it is about a sweep."""
    name: str | None = None
    """The name that a person gave the run, else the one that it was started with."""
    on: tuple[str, ...] = ()
    """The hosts or nodes that the run is on, if not on this machine."""
    state: str | None = None
    attempt: int | None = None
    cause: str | None = None
    """The first cause of a failure, what stands still, or why it was lost: one line."""
    seconds: float | None = None
    """What the run's attempts took."""
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    warnings: tuple[str, ...] = ()
    """What is told of the run though it may have completed."""
    sweep: str | None = None
    """The sweep's id, where the message is about its end."""

    def to_dict(self) -> dict[str, object]:
        """For JSON: what is not finite is null."""
        out = asdict(self)
        if self.loss is not None and not abs(self.loss) < float("inf"):
            out["loss"] = None
        return out


_DONE = {"finished": "completed", "failed": "failed", "stopped": "was stopped",
         "stalled": "has stalled", "lost": "was lost", "made_room": "waits again"}


def of_run(event: Event, state: State, progress: Progress, *, name: str, machine: str,
           on: tuple[str, ...] = (), why: str | None = None, now: float) -> Message:
    """The message that `event` has happened to a run.

    name: what the run is called. on: the hosts or nodes that it is on, if not `machine`.
    why: for "stalled", which ranks stand still; for the others the state says it.
    """
    called = clean(name, 80) or state.id
    where = ", ".join(clean(h, 60) for h in on[:4]) + (", …" if len(on) > 4 else "") \
        if on else clean(machine, 60)
    cause = _cause(event, state) if why is None else clean(why, _LONGEST)
    took = state.took(now)
    done = _DONE[event]
    if event == "stalled" and why is not None and why == state.reason and state.unheard:
        done = "sends no heartbeat"  # it may well go on
    text = f"{called} (run {state.id}) on {where} {done}"
    if took is not None:
        text += f" after {units.clock(took)}"
    if progress.step is not None:
        of = f" of {progress.total_steps:,}" if progress.total_steps else ""
        text += f", at step {progress.step:,}{of}"
    if progress.loss is not None:
        text += f", loss {units.loss(progress.loss)}"
    if state.attempt > 1:
        text += f", in attempt {state.attempt}"
    if cause:
        text += f": {cause}"
    told = tuple(clean(one.message, _LONGEST) for one in state.warnings)
    for warning in told:
        text += f". Warning: {warning}"
    return Message(event, f"{called} {done}", text, clean(machine, 60), now, state.id,
                   called, tuple(clean(h, 60) for h in on), state.state, state.attempt,
                   cause or None, took, progress.step, progress.total_steps, progress.loss, told)


def of_sweep(event: Event, ident: str, name: str, outcome: str, *, machine: str, seconds: float,
             now: float) -> Message:
    """The message that a sweep has ended, `seconds` after it was submitted. `outcome`: how many of
    its runs are done and which is the best."""
    called, machine = clean(f"sweep {ident} {name}", 80), clean(machine, 60)
    return Message(event, f"{called} has ended", f"{called} on {machine} has ended, "
                   f"{units.clock(seconds)} after it was submitted: {clean(outcome, _LONGEST)}",
                   machine, now, name=clean(name, 80), seconds=seconds, sweep=ident)


def _cause(event: Event, state: State) -> str:
    """Why, in one line; "" where there is nothing to say."""
    if event == "finished":
        return ""
    if event == "failed" and state.cause is not None:
        return clean(state.cause.line, _LONGEST)
    return clean(state.reason or "", _LONGEST)


def test(machine: str, now: float) -> Message:
    """A message that only tries whether it arrives."""
    machine = clean(machine, 60)
    return Message("test", "gpu-panel can reach you",
                   f"This is a test from {machine}: you are notified of runs here.", machine, now)
