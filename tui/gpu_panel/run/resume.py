"""The dialog for another attempt of a run, and the settings that it proposes: the checkpoint, the
length, and the changes."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Button, Input, Static

from gpu_engine.common.errors import UserError
from gpu_engine.remote.run import parts
from gpu_engine.runs import attempts, checkpoints, leftovers
from gpu_engine.runs.folder import Run, State
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import harmless
from gpu_panel.common.submit import SubmitDialog

_LENGTHS = ("train.steps=", "train.epochs=")
_MOST_STEPS = 4


@dataclass(frozen=True, slots=True)
class ResumeOptions:
    """What another attempt starts with, unless the person changes it."""

    state: State
    checkpoint: str | None
    unit: str = "steps"
    """What `length` counts: steps or epochs."""
    length: int | None = None
    """How long the run is to train in all; None for an own command, which decides that."""
    like: int | None = None
    """The number of the attempt whose settings are used; None: those of the last attempt. It is
    set if the last attempt failed with other settings than the last good one had."""
    others: tuple[str, ...] = ()
    """The `key=value`s in which the last attempt differed from `like`, without its length."""
    before: int | None = None
    """The length of attempt `like`, which applies if no other is given."""
    steps: tuple[int, ...] = ()
    best: int | None = None
    """The step of the best checkpoint; None if there was no evaluation to decide it."""
    host: str | None = None
    """The host that has the checkpoints; None: this machine. Which ones it has is known there."""

    @classmethod
    def read(cls, run: Run) -> ResumeOptions:
        """Read them from the run's folder. Raises UserError: no spec, or it is live."""
        state = run.state()
        if state.live:
            raise UserError(f"run {run.id} is {state.state}: s stops it")
        spec = attempts.read_spec(run)
        checkpoint = leftovers.last_checkpoint(run.path)
        like, others = attempts.failed_settings(run, state) or (None, ())
        host = next((p.host for p in parts.read(run.path) if p.node == 0), None)
        if "command" in _section(spec, "task"):
            return cls(state, checkpoint, like=like, others=others)
        train = _section(spec, "train")
        unit = "steps" if train.get("steps") is not None else "epochs"
        length = train.get(unit, 1)
        earlier = _section(attempts.read_spec(run, like), "train") if like is not None else train
        return cls(state, checkpoint, unit, length, like,
                   tuple(o for o in others if not o.startswith(_LENGTHS)),
                   earlier.get(unit, 1 if unit == "epochs" and "steps" not in earlier else None),
                   *(_saved(run, train.get("best")) if host is None else ((), None)), host)

    @property
    def own(self) -> bool:
        return self.length is None

    def sentence(self) -> str:
        if self.own:
            return ("Your command is run again as it is; it must load what it has saved by "
                    "itself.")
        if self.checkpoint is None:
            return "There is no checkpoint: it starts from the beginning."
        step = self.checkpoint.removeprefix("step-").lstrip("0") or "0"
        where = "" if self.host is None else f" on {self.host}"
        which = f"after step {int(step):,}" if step.isdigit() else self.checkpoint
        return f"It continues from its newest checkpoint{where}, {which}."

    @property
    def can_choose(self) -> bool:
        return len(self.steps) > 1 or (self.host is not None and self.checkpoint is not None)

    def warning(self) -> str:
        """A warning that names the settings in which the last attempt differed from the last good
        one; empty if there are none."""
        if self.like is None:
            return ""
        longer = [f"train.{self.unit}={self.length}"] \
            if self.length != self.before and not self.own else []
        good = next((a for a in self.state.attempts if a.number == self.like), None)
        how = f", which {'was stopped' if good.outcome == 'stopped' else good.outcome}" \
            if good is not None and good.outcome in ("stopped", "completed") else ""
        return (f"It had other settings than attempt {self.like}{how}: "
                f"{' '.join(map(shlex.quote, [*longer, *self.others]))}. They are filled in below; "
                "remove one to go back to its earlier value.")

    def choices(self) -> str:
        if self.host is not None:
            return f"newest, best, or the step of one that {self.host} has"
        shown = ", ".join(f"{step:,}" for step in self.steps[-_MOST_STEPS:])
        more = "…, " if len(self.steps) > _MOST_STEPS else ""
        best = "" if self.best is None else f"best (step {self.best:,}), "
        return f"newest, {best}or a step: {more}{shown}"

    def sets(self, length: str, changes: str, start: str = "newest") -> list[str]:
        """What was typed into the fields, as `key=value`s. Raises UserError."""
        try:
            given = shlex.split(changes)
        except ValueError as err:
            raise UserError(f"{changes}: {err}; write KEY=VALUE KEY=VALUE") from None
        bad = next((g for g in given if "=" not in g), None)
        if bad is not None:
            raise UserError(f"{bad}: expected KEY=VALUE, as in batch.size=64")
        if self.own:
            return given
        longer = bool(length.strip()) and length.strip() != str(self.before)
        if longer:
            given.insert(0, f"train.{self.unit}={length.strip()}")
        if self.state.state == "completed" and start == "newest" and not any(
                g.startswith(("train.steps=", "train.epochs=")) for g in given):
            raise UserError(f"all of its {self.length:,} {self.unit} are done: type a larger "
                            "number")
        return given


def _saved(run: Run, best: object) -> tuple[tuple[int, ...], int | None]:
    steps: tuple[int, ...] = ()
    try:
        steps = tuple(step for path in checkpoints.listed(run.checkpoints)
                      if (step := checkpoints.step_of(path.name)) is not None)
        name = checkpoints.choose(run.checkpoints, "best", best if isinstance(best, str) else None)
    except (OSError, UserError):
        return steps, None
    return steps, checkpoints.step_of(name) if name else None


def _section(spec: dict[str, Any], name: str) -> dict[str, Any]:
    found = spec.get(name)
    return found if isinstance(found, dict) else {}


class ResumeDialog(SubmitDialog):
    """Closes with True once the attempt has started."""

    def __init__(self, run: Run, options: ResumeOptions) -> None:
        super().__init__()
        self._run, self._options = run, options

    def compose(self) -> ComposeResult:
        out = self._options
        with Vertical(classes="dialog") as box:
            box.border_title = harmless(f"Resume run {self._run.id}")
            box.border_subtitle = "enter resume · esc cancel"
            ending = out.state.state + (f": {out.state.reason}" if out.state.reason else "")
            yield Static(harmless(f"Attempt {out.state.attempt} {ending}"), classes="dialog-note")
            if out.like is not None:
                yield Static(harmless(out.warning()), classes="-warning", id="doubtful")
            yield Static(harmless(out.sentence()))
            if not out.own:
                with Horizontal(classes="ask"):
                    yield Static(f"{out.unit} in all", classes="ask-label", markup=False)
                    yield Input(str(out.length), compact=True, id="length", max_length=12)
            if out.can_choose:
                with Horizontal(classes="ask"):
                    yield Static("start from", classes="ask-label")
                    yield Input("newest", compact=True, id="start", max_length=30)
                yield Static(harmless(out.choices()), classes="dialog-note")
            with Horizontal(classes="ask"):
                yield Static("changes", classes="ask-label")
                yield Input(" ".join(map(shlex.quote, out.others)), compact=True, id="changes",
                            placeholder="none, or KEY=VALUE as in batch.size=64")
            yield Static("", id="trouble")
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="no", compact=True, action="screen.cancel")
                yield Button("Resume", id="yes", compact=True, variant="primary",
                             action="screen.submit")

    def on_mount(self) -> None:
        self.query_one("#changes" if self._options.own else "#length").focus()
        self.show("")

    async def submit(self) -> None:
        from gpu_engine.launching import launcher as launch

        length = "" if self._options.own else self.query_one("#length", Input).value
        changes = self.query_one("#changes", Input).value
        start = "newest"
        for field in self.query("#start").results(Input):
            start = field.value.strip() or start
        sets, like = self._options.sets(length, changes, start), self._options.like
        self.show("starting …", "-plain")
        await in_thread(lambda: launch.resume(self._run, sets, like=like, start=start))
        words = [*(["--like", str(like)] if like is not None else []),
                 *(["--from", start] if start != "newest" else []),
                 *(word for one in sets for word in ("--set", one))]
        same.done(self.app, f"Run {self._run.id} goes on", [["resume", self._run.id, *words]])
        self.dismiss(True)
