"""Another attempt of a run: `gpu-engine resume`, from which checkpoint, how long, with which
changes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import click

from gpu_engine.cli.run import resume
from gpu_engine.common.errors import UserError
from gpu_engine.remote.run import parts
from gpu_engine.runs import attempts, checkpoints, job, leftovers
from gpu_engine.runs.folder import Run, State
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.command_dialog import CommandDialog, Form, carry_out

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

    def require_more(self, sets: Sequence[str], start: str) -> None:
        """Raises UserError where nothing is left to be done."""
        if self.length is not None and self.state.state == "completed" and start == "newest" \
                and not any(given.startswith(("train.steps=", "train.epochs=")) for given in sets):
            raise UserError(f"all of its {self.length:,} {self.unit} are done: type a larger "
                            "number")


class ResumeDialog(CommandDialog):
    """Closes with True once the attempt has started."""

    def __init__(self, run: Run, options: ResumeOptions) -> None:
        texts, about = dict[str, str](), options.sentences()
        if options.length is not None:
            texts[f"--set train.{options.unit}"] = str(options.length)
        if options.host is not None or len(options.steps) > 1:
            texts["--from"] = ""
            few = ", ".join(f"{step:,}" for step in options.steps[-_MOST_STEPS:])
            about += f"\n\n--from: newest, best, or a step{': ' if few else ''}{few}"
        form = Form(resume, {"run": str(run.path), "detach": True, "as_json": True}, (
            "detach", "as_json", "quiet", *([] if "--from" in texts else ["start"])))

        async def call(context: click.Context, words: list[str]) -> bool:
            options.require_more(context.params["sets"], context.params["start"])
            await in_thread(lambda: carry_out(context))
            same.done(self.app, f"Run {run.id} goes on", [["resume", run.id, *words]])
            return True

        super().__init__(form, texts | {"--set": ""}, f"Resume run {run.id}", about, "Resume",
                         call)
