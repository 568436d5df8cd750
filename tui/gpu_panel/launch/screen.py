"""The main screen: devices, launch form, what will run, runs.

What is typed and ticked goes into one draft; the engine reviews it; the panes show what it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Container
from textual.timer import Timer
from textual.widgets import Footer

from gpu_engine.devices.records import HostSample
from gpu_panel import keys
from gpu_panel.common.background import in_thread
from gpu_panel.common.errors import guard
from gpu_panel.common.pane_bar import PaneBar
from gpu_panel.common.panes import PaneScreen
from gpu_panel.keys import Section
from gpu_panel.launch.detail.actions import DetailActions
from gpu_panel.launch.detail.ending import EndingActions
from gpu_panel.launch.detail.pane import DeviceDetail
from gpu_panel.launch.devices.pane import DeviceTable
from gpu_panel.launch.devices.source import DeviceSource
from gpu_panel.launch.devices.ticks import TickActions
from gpu_panel.launch.draft import Draft
from gpu_panel.launch.form.pane import LaunchForm
from gpu_panel.launch.form.task_params import TaskParams
from gpu_panel.launch.host_bar import HostBar
from gpu_panel.launch.plan.pane import CommandPreview
from gpu_panel.launch.presets.actions import PresetActions
from gpu_panel.launch.review import Review, review
from gpu_panel.launch.runs.actions import RunActions
from gpu_panel.launch.runs.pane import RunsTable

PANES = (("devices", "Devices"), ("form", "Launch"), ("plan", "What will run"), ("runs", "Runs"))
HEADINGS = (("devices", "Devices"), ("detail", "Details of a device"), ("form", "Form"),
            ("runs", "Runs"))
DEBOUNCE = 0.15
APART = 0.3
"""Seconds between the parts of the screen that are painted each second."""


class LaunchScreen(PresetActions, RunActions, TickActions, DetailActions, EndingActions,
                   PaneScreen):
    """Four panes side by side, or one at a time where the terminal is narrow."""

    SCOPE = "launch"
    AUTO_FOCUS = "#devices"

    def __init__(self, devices: DeviceSource, preset: str | None = None,
                 sets: Sequence[str] = (), command: Sequence[str] | None = None) -> None:
        super().__init__(classes="-pane-devices")
        self.devices = devices
        self.wanted_preset, self.sets, self.command = preset, tuple(sets), command
        self.draft = Draft()
        self.review: Review | None = None
        self._unresolved = True
        self._ticks = 0
        self._debounce: Timer | None = None
        self._painting = True
        self._held: frozenset[str] = frozenset()
        self._ticks_of: dict[str, list[str]] = {}

    def compose(self) -> ComposeResult:
        yield HostBar(id="host")
        yield PaneBar(PANES, id="panes")
        with Container(id="top"):
            yield DeviceTable(id="devices")
            yield Container(id="form-place")
        yield CommandPreview(id="plan")
        yield DeviceDetail(id="detail")
        yield RunsTable(id="runs")
        yield Footer(compact=True, show_command_palette=False)

    # --- start: everything that takes time comes after the first frame -----------------------

    def on_mount(self) -> None:
        self._show_pane("devices")
        # One after another, as the compositor goes through every widget in the rectangle around
        # all that changed at once: host, table and details together are the whole screen.
        # The details every two, as often as the driver is asked for processes.
        for part, every, after in ((self._paint_table, 1.0, 0.01), (self._paint_host, 1.0, APART),
                                   (self.paint_detail, 2.0, 2 * APART)):
            self.set_timer(after, partial(self.set_interval, every, part))
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self._find_devices()
        self._load_form()

    @work(exit_on_error=False, group="devices")
    async def _find_devices(self) -> None:
        with guard(self.app):
            await self.devices.find()
            self._paint()

    @work(exit_on_error=False, group="form")
    async def _load_form(self) -> None:
        with guard(self.app):
            from gpu_engine.spec import catalog

            draft, trouble = await in_thread(self.read_first_preset, name="panel-preset")
            tasks = await in_thread(catalog.builtin, name="panel-tasks")
            place = self.query_one("#form-place", Container)
            form = LaunchForm(tasks, id="form")
            with self.app.batch_update():  # no painting of half a form
                await place.mount(form)
            self.form = form  # there for the others only once all its fields are
            if trouble is not None:
                self.tell(trouble)
            await self.take_draft(draft)

    async def take_draft(self, draft: Draft) -> None:
        """Put another draft into the form."""
        self.draft = draft
        self._unresolved, self._ticks = True, 0
        self.form.fill(draft)
        self._paint()
        await self._show_task()
        self.review_now()

    # --- the one painter -----------------------------------------------------------------------

    def on_screen_suspend(self) -> None:
        self._painting = False
        self.devices.watch_bus()

    def on_screen_resume(self) -> None:
        self._painting, self._skipped = True, True  # look at runs at once
        self._paint()

    def _paint(self) -> None:
        """Everything at once."""
        self._paint_host()
        self._paint_table()
        self.paint_detail()

    @property
    def may_paint(self) -> bool:
        return self._painting and self.is_mounted

    def _paint_host(self) -> None:
        if self.may_paint:
            shot = self.devices.snapshot
            self.query_one(HostBar).show(self.devices.inventory,
                                         shot.host if shot else HostSample())

    def _paint_table(self) -> None:
        if not self.may_paint:
            return
        self._ticks += 1
        inventory = self.devices.inventory
        if inventory is not None and self._unresolved and self.may_resolve(inventory):
            self.resolve_devices()
        self.devices.remember()
        self.paint_devices()
        self.refresh_runs()

    def paint_devices(self) -> None:
        table = self.query_one(DeviceTable)
        if not table.is_on_screen and table.size.width:
            return
        table.show(replace(
            table.look, inventory=self.devices.inventory, snapshot=self.devices.snapshot,
            ticked=tuple(self.draft.ids), mode=str(self.draft.value("parallel.mode")),
            first_rank=self.draft.first_rank, ours=self.our_devices(), words=self.device_words(),
            freedom=self.freedom, history=self.devices.history), self.devices.age())

    # --- typing --------------------------------------------------------------------------------

    @on(LaunchForm.Edited)
    def _typed(self, event: LaunchForm.Edited) -> None:
        self.draft.put(event.key, event.text)
        if event.key in ("parallel.mode", "train.lr_scale"):
            self.form.fill(self.draft)
        if event.key == "task.use":
            self._show_task_soon()
        self.edited()

    @on(TaskParams.Edited)
    def _typed_param(self, event: TaskParams.Edited) -> None:
        self.draft.put_param(event.field, event.text)
        self.edited()

    @on(LaunchForm.TaskChosen)
    def _chose_task(self, event: LaunchForm.TaskChosen) -> None:
        if event.command:
            self.draft.put("task.command", "")
        else:
            self.draft.use_task(event.use)
        self.form.fill(self.draft)
        self._show_task_soon()
        self.edited()

    @work(exit_on_error=False, group="task", exclusive=True)
    async def _show_task_soon(self) -> None:
        with guard(self.app):
            await self._show_task()

    async def _show_task(self) -> None:
        """Draw the parameters of the task that is named; none where it can't be found."""
        from gpu_engine.common.errors import UserError
        from gpu_engine.spec import catalog

        use = self.draft.value("task.use")
        info = None
        if isinstance(use, str):
            try:
                info = await in_thread(lambda: catalog.describe(use), name="panel-task")
            except UserError:
                info = None  # the review says so beside the field
        if use == self.draft.value("task.use"):
            await self.form.show_task(info, self.draft)
            self._show_review()

    def edited(self) -> None:
        """Something changed: what was planned before is not what would run now."""
        self.form.adapt(self.draft)
        if self._debounce is not None:
            self._debounce.stop()
        self._debounce = self.set_timer(DEBOUNCE, self.review_now)

    # --- what the engine says ------------------------------------------------------------------

    @work(exit_on_error=False, group="review", exclusive=True)
    async def review_now(self) -> None:
        with guard(self.app):
            await self.reviewed()

    async def reviewed(self) -> Review | None:
        """Ask the engine about the draft as it is now, and show its answer."""
        inventory = self.devices.inventory
        if self._debounce is not None:
            self._debounce.stop()
            self._debounce = None
        if inventory is None or (self._unresolved and self.draft.picks):
            self.query_one(CommandPreview).show_waiting("Looking for devices …")
            self.form.show_verdict("still looking for devices")
            return None
        data, base, shot = self.draft.copy(), self.draft.base, self.devices.snapshot
        found = await in_thread(lambda: review(data, inventory, base, shot), name="panel-review")
        if data == self.draft.data:
            self.review = found
            self._show_review()
        elif self._debounce is None:  # it changed meanwhile, and nobody has asked again
            self.edited()
        return found

    def review_if_leases_changed(self) -> None:
        """A run of ours that began or ended, or a device that was lost, changes what fits, though
        nothing was typed."""
        shot = self.devices.snapshot
        held = frozenset(k for k, f in (self.freedom or {}).items() if f.state == "leased") \
            | frozenset(f"{s.device.id} lost" for s in (shot.samples if shot else ()) if s.problem)
        if held != self._held:
            self._held = held
            if self.review is not None:
                self.review_now()

    def _show_review(self) -> None:
        found = self.review
        if found is None or not hasattr(self, "form"):
            return
        preview = self.query_one(CommandPreview)
        if found.plan is not None:
            preview.show_plan(found.plan)
        else:
            preview.show_problems(found.problems)
        self.form.show_problems(found.problems)
        self.form.show_verdict(found.problems[0] if found.problems else None)
        bar = self.query_one(PaneBar)
        devices = any(p.key.startswith("devices.") for p in found.problems)
        bar.mark("devices", "✗" if devices else "")
        bar.mark("form", "✗" if any(not p.key.startswith("devices.")
                                    for p in found.problems) else "")
        self.paint_devices()

    # --- panes ---------------------------------------------------------------------------------

    def key_sections(self) -> list[Section]:
        """Every key of this screen, for the help."""
        return [*(Section(title, keys.of(scope)) for scope, title in HEADINGS),
                Section("Everywhere on this screen", self.KEYS),
                Section("Everywhere", keys.of("app"))]

    def action_pane(self, pane: str) -> None:
        self._show_pane(pane)
        if pane == "form":
            if hasattr(self, "form"):
                self.query_one("#task-choice").focus()
        else:
            self.query_one(f"#{pane}").focus()

    @on(PaneBar.Picked)
    def _picked(self, event: PaneBar.Picked) -> None:
        self.action_pane(event.pane)

    def _show_pane(self, pane: str) -> None:
        """Which one is seen where there is room for one."""
        if self.has_class("-narrow"):
            self.hide_detail()
        self.query_one(PaneBar).active = pane
        self.update_classes({f"-pane-{name}": name == pane for name, _ in PANES})

    def action_leave(self) -> None:
        """Out of a field: to the pane's own keys; at the table: close the details."""
        if self.focused is not None and self.focused.id == "devices":
            self.hide_detail()
        if self.query_one(PaneBar).display and self.has_class("-narrow"):
            self.set_focus(None)
            return
        self.query_one("#devices").focus()

    def action_copy(self) -> None:
        plan = self.review.plan if self.review else None
        if plan is None:
            self.notify("Nothing to copy before the form fits", severity="warning")
            return
        self.copy_line("\n".join(plan.lines))

    def action_processes(self) -> None:
        plan = self.review.plan if self.review else None
        if plan is None:
            self.notify("Nothing would run before the form fits", severity="warning")
            return
        from gpu_panel.launch.plan.processes import ProcessesScreen

        self.app.push_screen(ProcessesScreen(plan))
