"""The dialog for another attempt of a run: from which checkpoint, how long, with which changes."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Button, Input, Static

from gpu_engine.common.errors import UserError
from gpu_engine.remote.run import parts
from gpu_engine.runs import attempts, checkpoints, job, leftovers
from gpu_engine.runs.folder import Run, State
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import harmless
from gpu_panel.common.submit import SubmitDialog

_MOST_STEPS = 4


@dataclass(frozen=True, slots=True)
class ResumeOptions:
    """What another attempt starts with, unless the person changes it."""

    state: State
    checkpoint: str | None
    """The newest one; None: there is none."""
    unit: str = "steps"
    """What `length` counts: steps or epochs."""
    length: int | None = None
    """How long the run is to train in all; None for an own command, which decides that."""
    steps: tuple[int, ...] = ()
    """Those of the checkpoints on this machine that it can start from."""
    host: str | None = None
    """The host that has the checkpoints; None: this machine."""

    @classmethod
    def read(cls, run: Run) -> ResumeOptions:
        """Read them from the run's folder. Raises UserError: no spec, or it is live."""
        state = run.state()
        if state.live:
            raise UserError(f"run {run.id} is {state.state}: s stops it")
        spec = attempts.read_spec(run)
        checkpoint = leftovers.last_checkpoint(run.path)
        task, train = spec.get("task"), spec.get("train")
        if isinstance(task, dict) and "command" in task:
            return cls(state, checkpoint)
        train = train if isinstance(train, dict) else {}
        unit = "steps" if train.get("steps") is not None else "epochs"
        host = next((p.host for p in parts.read(run.path) if p.node == 0), None)
        slurm = job.read(run.path)  # which goes on from the newest
        only_newest = slurm is not None and slurm.request is not None
        saved = checkpoints.listed(run.checkpoints) if host is None and not only_newest else ()
        steps = (checkpoints.step_of(path.name) for path in saved)
        return cls(state, checkpoint, unit, train.get(unit, 1),
                   tuple(step for step in steps if step is not None), host)

    def sentences(self) -> str:
        """How it ended, and from where it goes on."""
        state = self.state
        said = f"Attempt {state.attempt} {state.state}" \
            + (f": {state.reason}" if state.reason else "")
        if state.attempts and (changed := state.attempts[-1].changed):
            said += f". It had {shlex.join(changed)}"
        if self.length is None:
            return f"{said}\n\nYour command is run again as it is; it must load what it has " \
                "saved by itself."
        if self.checkpoint is None:
            return f"{said}\n\nThere is no checkpoint: it starts from the beginning."
        step = checkpoints.step_of(self.checkpoint)
        which = f"after step {step:,}" if step is not None else self.checkpoint
        where = "" if self.host is None else f" on {self.host}"
        return f"{said}\n\nIt continues from its newest checkpoint{where}, {which}."

    def sets(self, length: str, changes: str, start: str) -> list[str]:
        """What was typed into the fields, as `key=value`s. Raises UserError."""
        try:
            given = shlex.split(changes)
        except ValueError as err:
            raise UserError(f"{changes}: {err}; write KEY=VALUE KEY=VALUE") from None
        bad = next((g for g in given if "=" not in g), None)
        if bad is not None:
            raise UserError(f"{bad}: expected KEY=VALUE, as in batch.size=64")
        if self.length is not None and length not in ("", str(self.length)):
            return [f"train.{self.unit}={length}", *given]
        if self.length is not None and self.state.state == "completed" and start == "newest" \
                and not any(g.startswith(("train.steps=", "train.epochs=")) for g in given):
            raise UserError(f"all of its {self.length:,} {self.unit} are done: type a larger "
                            "number")
        return given


class ResumeDialog(SubmitDialog):
    """Closes with True once the attempt has started."""

    def __init__(self, run: Run, options: ResumeOptions) -> None:
        super().__init__()
        self._run, self._options = run, options

    def compose(self) -> ComposeResult:
        options = self._options
        with Vertical(classes="dialog") as box:
            box.border_title = harmless(f"Resume run {self._run.id}")
            box.border_subtitle = "enter resume · esc cancel"
            yield Static(harmless(options.sentences()))
            if options.length is not None:
                yield from _field(f"{options.unit} in all", "length", str(options.length))
            if options.host is not None or len(options.steps) > 1:
                yield from _field("start from", "start", "newest")
                few = ", ".join(f"{step:,}" for step in options.steps[-_MOST_STEPS:])
                yield Static(f"newest, best, or a step{': ' if few else ''}{few}",
                             classes="dialog-note", markup=False)
            yield from _field("changes", "changes", "", "none, or KEY=VALUE as in batch.size=64")
            yield Static("", id="trouble")
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="no", compact=True, action="screen.cancel")
                yield Button("Resume", id="yes", compact=True, variant="primary",
                             action="screen.submit")

    def on_mount(self) -> None:
        self.query(Input).first().focus()
        self.show("")

    async def submit(self) -> None:
        from gpu_engine.places import verbs as launch

        typed = {field.id: field.value.strip() for field in self.query(Input)}
        start = typed.get("start") or "newest"
        sets = self._options.sets(typed.get("length", ""), typed["changes"], start)
        self.show("starting …", "-plain")
        await in_thread(lambda: launch.resume(self._run, sets, start=start))
        words = [*(["--from", start] if start != "newest" else []),
                 *(word for one in sets for word in ("--set", one))]
        same.done(self.app, f"Run {self._run.id} goes on", [["resume", self._run.id, *words]])
        self.dismiss(True)


def _field(label: str, name: str, value: str, placeholder: str = "") -> ComposeResult:
    with Horizontal(classes="ask"):
        yield Static(label, classes="ask-label", markup=False)
        yield Input(value, compact=True, id=name, placeholder=placeholder)
