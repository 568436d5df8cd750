"""Putting the form's run into the queue: a line with the options of `gpu-engine run --queue`, in
which enter is enough."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import click
from click.core import ParameterSource
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, Static

from gpu_engine.cli import run as command
from gpu_engine.cli.spec_options import SpecChoice, assignments, members_of
from gpu_engine.common import units
from gpu_engine.common.errors import UserError
from gpu_engine.devices.records import Inventory
from gpu_engine.plan.build import arguments
from gpu_engine.queue import submit
from gpu_engine.runs import job
from gpu_engine.runs.notes import parse_tags
from gpu_engine.spec.host_names import parse_all
from gpu_engine.spec.read import apply_sets, from_dict
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import to_dict
from gpu_engine.sweep import group as sweep
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import Confirm, harmless
from gpu_panel.common.submit import SubmitDialog

if TYPE_CHECKING:
    from gpu_engine.runs.folder import Run
    from gpu_panel.launch.draft import Draft

_SPEC = ("sets", "mode", "devices", "count", "nodes", "sbatch", "run_limit", "metrics")
_SWEEP = ("grid", "repeat", "stop_worse", "halving")
_WHEN = ("after", "begin", "priority")
"""Options of `gpu-engine run` that can be given here, beside --tag and --queue."""
HINT = "enter is enough; or --after RUN --begin 22:00"


def to_vary(spec: RunSpec) -> str:
    """What is mostly varied, to type values behind it."""
    words = spec.task.command
    return "--grid train.lr=" if words is None or "{lr}" in words else "--grid "


@dataclass(frozen=True, slots=True)
class Queued:
    """A run that was put into the queue; of a sweep the first."""

    run: Run
    said: str
    warnings: str
    """What the person should know of it, as why its code is not kept as it is; empty: nothing."""
    words: list[str]
    """The command that does the same."""


def put(spec: RunSpec, base: tuple[str, RunSpec] | None, inventory: Inventory, typed: str
        ) -> Queued:
    """Put `spec` into the queue with the options in `typed`. Blocks. Raises UserError."""
    try:
        # Without --help, which would be printed across the screen.
        with command.run.make_context("run", shlex.split(typed), help_option_names=[]) as context:
            given = dict(context.params)
            _require_options(context)
            data = to_dict(spec, defaults=False)
            apply_sets(data, assignments(**{name: given[name] for name in _SPEC}))
            choice = SpecChoice(from_dict(data), base)
            every = members_of(choice, **{name: given[name] for name in _SWEEP})
    except ValueError as err:  # an open quote
        raise UserError(str(err)) from None
    except click.ClickException as err:
        raise UserError(err.format_message()) from None
    when = command.when(*(given[name] for name in _WHEN))
    tags, asked = parse_tags(given["tags"]), choice.spec
    # The form's values and those typed are one spec by now; other options stay as they are.
    line = ["run", "--queue", *_words(context), *arguments(asked, base)]
    if every:
        found = sweep.submit(every, when, asked.name, base, tags)
        return Queued(found.runs[0], f"Sweep {found.id} of "
                      f"{units.counted(len(found.runs), 'run')} waits in the queue",
                      "; ".join(found.warnings), line)
    prepared = submit.prepare(asked, inventory)
    run = submit.submit(asked, when, prepared, base=base, tags=tags)
    there = job.read(run.path)
    said = f"Run {run.id} waits in the queue" if there is None else \
        f"Run {run.id}: {there.sentence()}"
    warnings = "; ".join(filter(None, (prepared.kept.doubt, *run.require_plan().warnings)))
    return Queued(run, said, warnings, line)


def _given(context: click.Context) -> Iterator[click.Parameter]:
    """The parameters of the line that were typed."""
    for param in context.command.params:
        source = context.get_parameter_source(param.name or "")
        if source not in (None, ParameterSource.DEFAULT):
            yield param


def _require_options(context: click.Context) -> None:
    """Raises UserError if the line has what can't be taken here."""
    if "command" in context.meta:
        raise UserError("--: only options stand here")
    for param in _given(context):
        if isinstance(param, click.Argument):
            raise UserError(f"{context.params[param.name or '']}: only options stand here")
        if param.name not in (*_SPEC, *_SWEEP, *_WHEN, "tags", "queued"):
            raise UserError(f"{param.opts[0]} is for a run that is started in a shell")


def _words(context: click.Context) -> list[str]:
    """The typed options that are no keys of the spec."""
    words = list[str]()
    for param in _given(context):
        if param.name in (*_SWEEP, *_WHEN, "tags"):
            value = context.params[param.name]
            for one in value if param.multiple else [value]:
                words += [param.opts[0]] if one is True else [param.opts[0], str(one)]
    return words


class QueueDialog(SubmitDialog):
    """Closes once the run is in the queue; what does not fit is said below the line."""

    DEFAULT_CSS = """
    QueueDialog #trouble { display: none; &.-plain { color: $text-muted; } }
    QueueDialog #trouble.-error { color: $text-error; }
    """

    def __init__(self, spec: RunSpec, base: tuple[str, RunSpec] | None, inventory: Inventory,
                 typed: str, *, on_slurm: bool = False) -> None:
        super().__init__()
        self._spec, self._base, self._inventory, self._typed = spec, base, inventory, typed
        self._on_slurm = on_slurm

    def compose(self) -> ComposeResult:
        devices = self._spec.devices
        named = ", ".join(devices.hosts or devices.ids or ("no device",))
        if self._typed.startswith("-n"):
            named = "the freest devices"
        with Vertical(classes="dialog") as box:
            box.border_title = harmless(f"Put {self._spec.name} into the queue")
            box.border_subtitle = "enter queue it · esc cancel"
            told = ("It waits in Slurm's queue, which starts it. Options as of gpu-engine run: "
                    "-n 2 for two devices of each node, --nodes 2, -o account=vision; "
                    ) if self._on_slurm else (
                f"It waits for {named}, and starts by itself, also when the panel is closed. "
                "Options as of gpu-engine run: -n 2 waits for any two devices, --set "
                "devices.free_gib=20 for so much memory on each; ")
            yield Static(harmless(f"{told}--grid train.lr=1e-3,3e-4 and --repeat N make a sweep."),
                         classes="dialog-note")
            yield Input(self._typed, compact=True, id="queue-options", select_on_focus=False,
                        placeholder=HINT + " --priority 1" * (not self._on_slurm))
            yield Static("", id="trouble", markup=False)

    async def submit(self) -> None:
        typed = self.query_one(Input).value
        self.show("keeping the code as it is now …", "-plain")
        self.dismiss(await in_thread(
            lambda: put(self._spec, self._base, self._inventory, typed)))


async def ask_and_queue(app: App[Any], draft: Draft, inventory: Inventory, *, vary: bool
                        ) -> Queued | None:
    """Show the dialog; None if the person leaves it. `vary`: begin with the values that are to
    vary. Call this from a worker. Raises SpecError."""
    spec = draft.spec_to_wait()
    picks, entries = None if draft.ids_by_hand else draft.picks, parse_all(draft.hosts)
    where = [] if draft.ids_by_hand else draft.any_of
    if draft.ids_by_hand and len(entries) == 1 and entries[0].ids:  # any so many of that machine
        picks, where = len(entries[0].ids), [entries[0].host]
    typed = f"-n {picks} " if picks is not None else ""  # a blank, as more may be typed behind it
    typed += f"--set devices.hosts={','.join(where)} " if where else ""
    typed += to_vary(spec) if vary else ""
    queued: Queued | None = await app.push_screen_wait(
        QueueDialog(spec, draft.base, inventory, typed, on_slurm=draft.on_slurm))
    if queued is not None:
        same.done(app, queued.said, [queued.words])
        if queued.warnings:
            app.notify(queued.warnings, title=f"Run {queued.run.id}", severity="warning",
                       markup=False, timeout=12)
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
