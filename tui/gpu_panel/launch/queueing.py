"""Putting the form's run into the queue: the dialog for what it waits for, in which enter is
enough, and what is said then."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widget import Widget
from textual.widgets import Button, Input, Static

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import Problem, SpecError, UserError
from gpu_engine.common.units import GIB
from gpu_engine.devices.records import Inventory
from gpu_engine.plan.build import arguments
from gpu_engine.queue import submit
from gpu_engine.queue.submit import When, moment
from gpu_engine.runs.folder import Run
from gpu_engine.runs.waiting import Wants
from gpu_engine.spec.schema import RunSpec
from gpu_engine.sweep import submit as sweep
from gpu_engine.sweep import values
from gpu_engine.sweep.grid import Member, members, varied
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.choice import Choice
from gpu_panel.common.dialogs import Confirm, harmless
from gpu_panel.common.submit import SubmitDialog
from gpu_panel.launch.draft import Draft
from gpu_panel.launch.run_line import RunLine

N = TypeVar("N", int, float)

DEVICES, COUNT, FREE, AFTER, BEGIN, PRIORITY, FREE_FOR, VARY, REPEAT = (
    "devices", "count", "free", "after", "begin", "priority", "free-for", "vary", "repeat")


class Wrong(Exception):
    def __init__(self, field: str, why: str) -> None:
        super().__init__(why)
        self.field = field


@dataclass(frozen=True, slots=True)
class Wish:
    """The texts of the dialog's fields."""

    any: bool = False
    """Any devices, not the ticked ones."""
    count: str = "1"
    free: str = ""
    """GiB that must be free on each of any devices; empty: not asked."""
    after: str = ""
    """The id of a run."""
    begin: str = ""
    priority: str = ""
    free_for: str = ""
    vary: str = ""
    """A sweep over these values: "train.lr=1e-3,3e-4 batch.size=64,128"; empty: one run."""
    repeat: str = ""

    def spec(self, spec: RunSpec) -> RunSpec:
        """`spec` on the devices that the person wants. Raises Wrong."""
        if not self.any:
            return replace(spec, devices=replace(spec.devices, pick=None, free_gib=None))
        free = _number(FREE, self.free, 0.0, least=0.001) if self.free.strip() else None
        return replace(spec, devices=replace(
            spec.devices, ids=None, pick=_number(COUNT, self.count, 1, least=1), free_gib=free))

    def when(self, now: float) -> When:
        """When it may start. `now`: Unix seconds. Raises Wrong."""
        begin = None
        if self.begin.strip():
            try:
                begin = moment(self.begin, now)
            except UserError as err:
                raise Wrong(BEGIN, str(err).removeprefix("--begin ")) from None
        return When(self.after or None, begin, _number(PRIORITY, self.priority, 0),
                    _number(FREE_FOR, self.free_for, 0.0))

    def words(self) -> list[str]:
        """The options of `gpu-engine run` that ask for the same, apart from the devices."""
        given = (("--after", self.after), ("--begin", self.begin), ("--priority", self.priority),
                 ("--free-for", self.free_for), ("--repeat", self.repeat),
                 *(("--grid", text) for text in self.vary.split()))
        return ["--queue", *(word for name, text in given if text.strip()
                             for word in (name, text.strip()))]

    def members(self, spec: RunSpec) -> list[Member]:
        """The runs of the sweep; none if there is just one run. Raises Wrong."""
        repeat = _number(REPEAT, self.repeat, 1, least=1)
        if not self.vary.strip() and repeat == 1:
            return []
        try:
            axes = [values.parse(text) for text in self.vary.split()]
            return members(spec, axes, repeat)
        except UserError as err:
            raise Wrong(VARY, str(err.problems[0] if isinstance(err, SpecError) else err)) from None


def to_vary(spec: RunSpec) -> str:
    """What is mostly varied, to type values behind it: "train.lr=", or "lr=" for an option."""
    command = spec.task.command
    if command is None or "{lr}" in command:
        return "train.lr="
    name = varied(command)
    return f"{name}=" if name else ""


def field_of(error: UserError) -> tuple[str | None, str]:
    """The field that an error of the engine is about, if it is about one; and what it says."""
    if isinstance(error, SpecError):
        first = error.problems[0]
        field = {"devices.pick": COUNT, "devices.free_gib": FREE}.get(
            first.key, DEVICES if first.key.startswith("devices.") else None)
        return field, str(first.message if field else first)
    text = str(error)
    for field in (AFTER, FREE_FOR):
        if text.startswith(f"--{field} "):
            return field, text.removeprefix(f"--{field} ")
    return None, text


def _number(field: str, text: str, otherwise: N, least: float | None = None) -> N:
    """The number in a field, of the type of `otherwise`, which an empty field means."""
    whole = isinstance(otherwise, int)
    try:
        number = type(otherwise)(text.strip() or otherwise)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise Wrong(field, f"{text.strip()}: give a {'whole ' * whole}number")
    if least is not None and number < least:
        raise Wrong(field, f"{text.strip()}: give "
                    + ("1 or more" if whole else "more than 0 GiB, or nothing"))
    return type(otherwise)(number)


_THESE, _ANY, _NONE = "these", "any", ""
_MOST_RUNS = 100


@dataclass(frozen=True, slots=True)
class Queued:
    """A run that was put into the queue; of a sweep the first."""

    run: Run
    said: str
    """What it waits for: "Run 3f2a waits in the queue for GPU 0, GPU 1"."""
    doubt: str | None
    """Why its code is not kept as it is; None: it is kept, or there is none to keep."""
    words: list[str]


class QueueDialog(SubmitDialog):
    """Closes once the run is in the queue. Errors are shown at their fields."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "app.focus_previous", "field before", show=False),
        Binding("down", "app.focus_next", "next field", show=False),
    ]
    DEFAULT_CSS = """
    QueueDialog {
        .dialog { padding: 0 2; }
        #fields { height: auto; max-height: 1fr; scrollbar-size-vertical: 1; }
        .row { height: auto; }
        .label { width: 15; color: $text-muted; }
        .row Input, .row Choice { width: 1fr; }
        #q-count { width: 5; }
        .unit { width: auto; color: $text-muted; margin: 0 1; }
        .wrong { color: $text-error; margin-left: 15; display: none; }
        #note { color: $text-muted; }
        #trouble { display: none; &.-plain { color: $text-muted; } }
        #trouble.-error { color: $text-error; }
    }
    """

    def __init__(self, spec: RunSpec, inventory: Inventory, base: tuple[str, RunSpec] | None,
                 first: Wish, others: Sequence[RunLine], *, vary: bool = False) -> None:
        """`spec`: with the ticked devices. `first`: what the fields say at first. `others`: the
        live and the waiting runs. `vary`: begin with the values that are to vary."""
        super().__init__()
        self._vary = vary
        self._spec, self._inventory, self._base, self._first = spec, inventory, base, first
        self._others = others[:_MOST_RUNS]

    # --- what is shown -------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        first, spec = self._first, self._spec
        note = "It shares its devices with others, as its preset says, and waits only for memory." \
            if spec.devices.share else "It starts by itself, also when the panel is closed."
        varied = "nothing; or train.lr=1e-3,3e-4 batch.size=64,128" \
            if spec.task.command is None else "nothing; or lr=1e-3,3e-4 for its --lr 1e-3"
        with Vertical(classes="dialog") as box:
            box.border_title = harmless(f"Put {spec.name} into the queue")
            box.border_subtitle = "enter queue it · esc cancel"
            with VerticalScroll(id="fields", can_focus=False):
                yield from self._row(DEVICES, "waits for", self._devices())
                yield from self._row(
                    COUNT, "how many", Input(first.count, compact=True, id="q-count",
                                             type="integer", max_length=4),
                    Static("each with", classes="unit"),
                    Input(first.free, compact=True, id="q-free", max_length=8,
                          placeholder="any memory"), Static("GiB free", classes="unit"))
                yield from self._row(AFTER, "after run", self._runs())
                for field, label, text, longest, hint in (
                        (BEGIN, "not before", first.begin, 40,
                         "now; or 22:00, +90m"),
                        (PRIORITY, "priority", first.priority, 8, "0; a higher one goes first"),
                        (FREE_FOR, "free for", first.free_for, 8,
                         "0; so many seconds before it starts"),
                        (VARY, "vary", first.vary, 400, varied),
                        (REPEAT, "repeat", first.repeat, 4, "1; more times with other seeds")):
                    yield from self._row(field, label, Input(
                        text, compact=True, id=f"q-{field}", max_length=longest,
                        select_on_focus=field != VARY, placeholder=hint))
                yield Static(note, id="note")
                yield Static("", id="trouble", markup=False)
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="no", compact=True, action="screen.cancel")
                yield Button("Queue it", id="yes", compact=True, variant="primary",
                             action="screen.submit")

    def _row(self, field: str, label: str, *widgets: Widget) -> Iterable[Widget]:
        yield Horizontal(Static(label, classes="label"), *widgets, classes="row",
                         id=f"row-{field}")
        yield Static("", classes="wrong", id=f"wrong-{field}", markup=False)

    def _devices(self) -> Choice:
        options = [(_THESE, self._ticked)] if self._ticked else []
        choice = Choice([*options, (_ANY, "any devices")], id="q-devices")
        choice.set_reactive(Choice.value, _ANY if self._first.any or not options else _THESE)
        return choice

    @property
    def _ticked(self) -> str:
        """"GPU 0, GPU 1"; "" if nothing is ticked."""
        found = [self._inventory.find(name) for name in self._spec.devices.ids or ()]
        return ", ".join(device.label for device in found if device is not None)

    def _runs(self) -> Choice:
        named = [(one.id, f"{one.id} {clean(one.name)[:30]}") for one in self._others]
        return Choice([(_NONE, "none"), *named], id="q-after", closed=True,
                      notes=["", *("waits" if one.waits else one.state for one in self._others)])

    def on_mount(self) -> None:
        self.query_one(f"#row-{COUNT}").display = self._any
        self.query_one("#q-vary" if self._vary else "#yes").focus()

    @property
    def _any(self) -> bool:
        return self.query_one("#q-devices", Choice).value == _ANY

    @on(Choice.Changed, "#q-devices")
    def _chosen(self) -> None:
        self.query_one(f"#row-{COUNT}").display = self._any
        self._clear()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._clear()

    # --- submitting ----------------------------------------------------------------------------

    async def submit(self) -> None:
        self._clear()
        try:
            asked = self._wish()
            spec, when = asked.spec(self._spec), asked.when(time.time())
            members = asked.members(spec)
        except Wrong as err:
            self._blame(err.field, str(err))
            return
        self.show("keeping the code as it is now …", "-plain")
        self.dismiss(await in_thread(lambda: self._put(spec, when, asked, members)))

    def blame(self, error: UserError) -> None:
        self._blame(*field_of(error))

    def _put(self, spec: RunSpec, when: submit.When, asked: Wish, members: Sequence[Member]
             ) -> Queued:
        """Blocks. Raises UserError."""
        if members:
            found = sweep.submit(members, when, spec.name, self._base)
            run, doubt = found.runs[0], found.doubt
            name = f"Sweep {found.id} of {len(found.runs)} runs"
        else:
            prepared = submit.prepare(spec, self._inventory)
            run, doubt = submit.submit(spec, when, prepared, base=self._base), prepared.kept.doubt
            name = f"Run {run.id}"
        chosen, free = spec.devices, spec.devices.free_gib
        devices = self._ticked if not asked.any else Wants(
            count=chosen.pick or 1, free=None if free is None else int(free * GIB),
            cpu=self._inventory.is_cpu).text
        return Queued(run, f"{name} waits in the queue for {devices}", doubt,
                      ["run", *arguments(spec, self._base), *asked.words()])

    def _wish(self) -> Wish:
        def text(field: str) -> str:
            return self.query_one(f"#q-{field}", Input).value

        after = self.query_one("#q-after", Choice).value
        return Wish(self._any, text("count"), text("free"), after, text("begin"), text("priority"),
                    text("free-for"), text("vary"), text("repeat"))

    def _blame(self, field: str | None, why: str) -> None:
        self.show("")
        if field in (COUNT, FREE) and not self._any:
            field = DEVICES
        if field is None:
            self.show(why)
            return
        row = COUNT if field == FREE else field
        place = self.query_one(f"#wrong-{row}", Static)
        place.update(harmless(why))
        place.display = True
        self.query_one(f"#q-{field}").focus()

    def _clear(self) -> None:
        self.show("")
        for place in self.query(".wrong"):
            place.display = False


_CURED = ("devices.ids", "devices.pick")
"""Keys of problems that another answer in the dialog may cure."""


class LaunchTaken(Confirm):
    """Asks whether to launch on devices that are not free. `waits`: rather queue the run."""

    BINDINGS = [Binding("Q", "wait", "wait for them")]  # noqa: RUF012  Textual's way
    waits = False

    def action_wait(self) -> None:
        self.waits = True
        self.dismiss(False)


async def problems(draft: Draft, inventory: Inventory) -> tuple[Problem, ...]:
    """What does not fit and waiting would not cure, whatever the person answers in the dialog."""
    def check() -> tuple[Problem, ...]:
        try:
            submit.plan(first_wish(draft).spec(draft.spec_to_wait()), inventory)
        except SpecError as err:
            return tuple(p for p in err.problems if p.key not in _CURED)
        return ()

    return await in_thread(check)


async def ask_and_queue(app: App[Any], draft: Draft, inventory: Inventory,
                        runs: tuple[RunLine, ...], *, vary: bool) -> Queued | None:
    """Show the dialog; None if the person leaves it. `vary`: begin with the values that are to
    vary. Call this from a worker. Raises SpecError."""
    live = [line for line in runs if line.live]
    spec, first = draft.spec_to_wait(), first_wish(draft)
    if vary:
        first = replace(first, vary=to_vary(spec))
    found: Queued | None = await app.push_screen_wait(QueueDialog(
        spec, inventory, draft.base, first, live, vary=vary))
    if found is not None:
        same.done(app, found.said, [found.words])
        if found.doubt is not None:
            app.notify(found.doubt, title=f"Run {found.run.id}", severity="warning", markup=False,
                       timeout=12)
    return found


def first_wish(draft: Draft) -> Wish:
    """What the dialog proposes: the ticked devices, or as many as the preset asks for."""
    picks = None if draft.ids_by_hand else draft.picks
    free = draft.picks_with
    return Wish(picks is not None or not draft.ids, str(picks or max(1, len(draft.ids))),
                f"{free:g}" if free and picks else "")
