"""Putting the form's run into the queue: a line with the options of `gpu-engine run --queue`, in
which enter is enough."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import click
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, Static

from gpu_engine.cli import run as command
from gpu_engine.common.errors import UserError
from gpu_engine.devices.records import Inventory
from gpu_engine.plan.build import arguments
from gpu_engine.queue import submit
from gpu_engine.spec.host_names import parse_all
from gpu_engine.spec.read import apply_sets, from_dict
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import to_dict
from gpu_engine.sweep import group as sweep
from gpu_engine.sweep.grid import members, parse
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import Confirm, harmless
from gpu_panel.common.submit import SubmitDialog

if TYPE_CHECKING:
    from gpu_engine.runs.folder import Run
    from gpu_panel.launch.draft import Draft

_FOR_A_START = ("detach", "as_json", "quiet", "no_notify")
HINT = "enter is enough; or --after RUN --begin 22:00 --priority 1"


def to_vary(spec: RunSpec) -> str:
    """What is mostly varied, to type values behind it."""
    words = spec.task.command
    return "--grid train.lr=" if words is None or "{lr}" in words else "--grid "


@dataclass(frozen=True, slots=True)
class Queued:
    """A run that was put into the queue; of a sweep the first."""

    run: Run
    said: str
    doubt: str | None
    """Why its code is not kept as it is; None: it is kept, or there is none to keep."""
    words: list[str]
    """The command that does the same."""


def put(spec: RunSpec, base: tuple[str, RunSpec] | None, inventory: Inventory, typed: str
        ) -> Queued:
    """Put `spec` into the queue with the options in `typed`. Blocks. Raises UserError."""
    try:
        words = shlex.split(typed)
        # Without --help, which would be printed across the screen.
        context = command.run.make_context("run", words, help_option_names=[])
    except ValueError as err:  # an open quote
        raise UserError(str(err)) from None
    except click.ClickException as err:
        raise UserError(err.format_message()) from None
    given = context.params
    if given["preset"] is not None or "command" in context.meta:
        raise UserError(f"{given['preset'] or '--'}: only options stand here")
    if any(given[name] for name in _FOR_A_START):
        raise UserError("--detach, --json, --quiet and --no-notify are for a run that is started "
                        "in a shell")
    data = to_dict(spec, defaults=False)
    apply_sets(data, [*given["sets"],
                      *(f"{key}={given[name]}" for key, name in (
                          ("parallel.mode", "mode"), ("devices.ids", "devices"),
                          ("devices.pick", "count")) if given[name])])
    asked = from_dict(data)
    when = command.when(given["after"], given["begin"], given["priority"])
    line = ["run", "--queue", *words, *arguments(spec, base)]
    if given["grid"] or given["repeat"] > 1:
        every = members(asked, [parse(text) for text in given["grid"]], given["repeat"])
        found = sweep.submit(every, when, spec.name, base)
        return Queued(found.runs[0], f"Sweep {found.id} of {len(found.runs)} runs waits in the "
                      "queue", found.doubt, line)
    prepared = submit.prepare(asked, inventory)
    run = submit.submit(asked, when, prepared, base=base)
    return Queued(run, f"Run {run.id} waits in the queue", prepared.kept.doubt, line)


class QueueDialog(SubmitDialog):
    """Closes once the run is in the queue; what does not fit is said below the line."""

    DEFAULT_CSS = """
    QueueDialog #trouble { display: none; &.-plain { color: $text-muted; } }
    QueueDialog #trouble.-error { color: $text-error; }
    """

    def __init__(self, spec: RunSpec, base: tuple[str, RunSpec] | None, inventory: Inventory,
                 typed: str) -> None:
        super().__init__()
        self._spec, self._base, self._inventory, self._typed = spec, base, inventory, typed

    def compose(self) -> ComposeResult:
        devices = self._spec.devices
        named = ", ".join(devices.hosts or devices.ids or ("no device",))
        if self._typed.startswith("-n"):
            named = "the freest devices"
        with Vertical(classes="dialog") as box:
            box.border_title = harmless(f"Put {self._spec.name} into the queue")
            box.border_subtitle = "enter queue it · esc cancel"
            yield Static(harmless(
                f"It waits for {named}, and starts by itself, also when the panel is closed. "
                "Options as of gpu-engine run: -n 2 waits for any two devices, --set "
                "devices.free_gib=20 for so much memory on each; --grid "
                "train.lr=1e-3,3e-4 and --repeat N make a sweep."), classes="dialog-note")
            yield Input(self._typed, compact=True, id="queue-options", placeholder=HINT,
                        select_on_focus=False)
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
        QueueDialog(spec, draft.base, inventory, typed))
    if queued is not None:
        same.done(app, queued.said, [queued.words])
        if queued.doubt is not None:
            app.notify(queued.doubt, title=f"Run {queued.run.id}", severity="warning",
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
