"""Putting the form's run into the queue: `gpu-engine run --queue` on the form's values, with what
else is typed; enter is enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import click
from textual.app import App
from textual.binding import Binding, BindingType

from gpu_engine.cli import run as command
from gpu_engine.cli.spec_options import SpecChoice, sets_keys
from gpu_engine.common import units
from gpu_engine.devices.records import Inventory
from gpu_engine.plan.build import arguments
from gpu_engine.runs import job
from gpu_engine.runs.folder import find
from gpu_engine.spec.host_names import parse_all
from gpu_engine.spec.schema import RunSpec
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.command_dialog import MORE, CommandDialog, Form, carry_out, typed
from gpu_panel.common.dialogs import Confirm

if TYPE_CHECKING:
    from gpu_engine.runs.folder import Run
    from gpu_panel.launch.draft import Draft

FORM = Form(command.run, {"queued": True, "as_json": True},
            ("detach", "as_json", "quiet", "no_notify", "part"))


def to_vary(spec: RunSpec) -> str:
    """What is mostly varied, to type values behind it."""
    words = spec.task.command
    return "train.lr=" if words is None or "{lr}" in words else ""


@dataclass(frozen=True, slots=True)
class Queued:
    """A run that was put into the queue; of a sweep the first."""

    run: Run
    said: str
    warnings: str
    """What the person should know of it, as why its code is not kept as it is; empty: nothing."""
    words: list[str]
    """The command that does the same."""


def put(context: click.Context, choice: SpecChoice) -> Queued:
    """Put what is chosen into the queue, with the options that were typed. Blocks. Raises
    UserError, click.ClickException."""
    context.meta["choice"] = choice
    answer, warnings = carry_out(context)
    asked: SpecChoice = context.meta["choice"]
    # The form's values and those typed are one spec by now; other options stay as they are.
    words = [word for param, values in typed(context)
             if not sets_keys(param) and param.name != "queued"
             for value in (values if param.multiple else [values])
             for word in (param.opts[0], *([] if value is True else [str(value)]))]
    line = ["run", "--queue", *words, *arguments(asked.spec, asked.base)]
    run = find(answer.get("runs", [answer["id"]])[0])
    if "runs" in answer:
        many = units.counted(len(answer["runs"]), "run")
        said = f"Sweep {answer['id']} of {many} waits in the queue"
    else:
        there = job.read(run.path)
        said = f"Run {run.id} waits in the queue" if there is None else \
            f"Run {run.id}: {there.sentence()}"
    return Queued(run, said, warnings, line)


async def ask_and_queue(app: App[Any], draft: Draft, inventory: Inventory, *, vary: bool
                        ) -> Queued | None:
    """Show the dialog; None if the person leaves it. `vary`: ask for the values that are to vary.
    Call this from a worker. Raises SpecError."""
    spec = draft.spec_to_wait()
    picks, entries = None if draft.ids_by_hand else draft.picks, parse_all(draft.hosts)
    where = [] if draft.ids_by_hand else draft.any_of
    if draft.ids_by_hand and len(entries) == 1 and entries[0].ids:  # any so many of that machine
        picks, where = len(entries[0].ids), [entries[0].host]
    names = ("--repeat", "--stop-worse") if vary else ("--after", "--begin") if draft.on_slurm \
        else ("--after", "--begin", "--priority")
    texts = {"--grid": to_vary(spec)} if vary else {}
    texts |= {"-n": str(picks or ""), **dict.fromkeys((*names, "--tag"), ""),
              MORE: f"--set devices.hosts={','.join(where)} " if where else ""}
    devices = spec.devices
    named = ", ".join(devices.hosts or devices.ids or ("no device",))
    if picks:  # what is ticked by now is only what was freest
        named = f"the freest devices; without -n{' and more' * bool(where)} for {named}"
    about = "It waits in Slurm's queue, which starts it; -n is for each node." \
        if draft.on_slurm else \
        f"It waits for {named}. It starts by itself, also when the panel is closed."
    choice = SpecChoice(spec, draft.base, inventory)
    queued: Queued | None = await app.push_screen_wait(CommandDialog(
        FORM, texts, f"Put {spec.name} into the queue", about, "Queue it",
        lambda context, _: in_thread(lambda: put(context, choice))))
    if queued is not None:
        same.done(app, queued.said, [queued.words],
                  trouble=[queued.warnings] if queued.warnings else [])
    return queued


class LaunchTaken(Confirm):
    """Asks whether to launch on devices that are not free. `waits`: rather queue the run."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("Q", "wait", "wait for them")]
    waits = False

    def on_mount(self) -> None:
        self.query_one(".dialog").border_subtitle = "y yes · n no · Q wait"

    def action_wait(self) -> None:
        self.waits = True
        self.dismiss(False)
