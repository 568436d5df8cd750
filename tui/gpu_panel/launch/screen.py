"""The launch screen: devices, what will run, and the runs with their preview. The form, or the
details of a device, lie over the preview, and without the room for both over the list too.

What is typed and ticked goes into one draft; the engine reviews the draft, and the panes show its
answer. A pane owns its content and its keys; the screen passes messages between panes.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import compress
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical
from textual.events import ScreenResume
from textual.timer import Timer

from gpu_panel.common.background import in_thread
from gpu_panel.common.errors import guarded, show
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.common.panes import PaneBar, PaneScreen
from gpu_panel.launch.detail import DetailPane
from gpu_panel.launch.devices import DevicesPane
from gpu_panel.launch.form import FormPane
from gpu_panel.launch.host_bar import HostBar
from gpu_panel.launch.plan import PlanPane, as_before
from gpu_panel.launch.preview import PreviewPane
from gpu_panel.launch.row_keys import named_in
from gpu_panel.launch.runs import RunsPane
from gpu_panel.textual_private import surely_rings

if TYPE_CHECKING:
    from gpu_engine.common.errors import Problem, UserError
    from gpu_engine.launching.launcher import Prepared
    from gpu_engine.runs.folder import Run
    from gpu_panel.commands.own import Values
    from gpu_panel.launch.device_source import DeviceSource
    from gpu_panel.launch.draft import Draft
    from gpu_panel.launch.review import BusyDevice, Review
    from gpu_panel.run.store import RunStore

DEBOUNCE = 0.15
"""Seconds after the last key before the engine reviews the draft."""
SETTLED = 2.0
"""Seconds after the first frame until nearly all that is there stays: from then on the garbage
collector leaves it alone, as searching it holds up a key for 50 ms."""
APART = 0.3
"""Seconds between the paintings of different parts within a second."""


READ_WITHIN, TICK = 5.0, 0.02
"""Seconds that an action waits for the preset and the devices, and between two looks."""


def has_begun(run: Run) -> None:
    """Return once the run has its devices, or has ended, or half a minute has passed. Blocks."""
    end = time.monotonic() + 30
    while (state := run.state()).state in ("queued", "starting") and time.monotonic() < end:
        if state.state == "queued" and state.reason is not None:
            return  # it waits, in our line or in Slurm's; one that begins says nothing yet
        time.sleep(TICK)


class LaunchScreen(PaneScreen):
    """In a narrow terminal one pane at a time, with tabs. The class -pane-NAME says which is in
    front, -detail whether the details of a device are open; the style sheet does the rest."""

    SCOPE = "launch"
    CHANGES: ClassVar[frozenset[str]] = frozenset({"launch", "queue", "fit"})
    PANES = (DevicesPane, DetailPane, FormPane, PlanPane, RunsPane, PreviewPane)
    AUTO_FOCUS = "#devices"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide"), (150, "-roomy")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (21, "-short"), (34, "-tall")]  # noqa: RUF012  Textual's way

    def __init__(self, source: DeviceSource, preset: str | None = None,
                 assignments: Sequence[str] = (), command: Sequence[str] | None = None,
                 *, usual: str) -> None:
        """`preset`, `assignments` (key=value), `command` and `usual`: the form's first content, as
        in `first_draft`."""
        super().__init__(classes="-pane-devices")
        self.source = source
        self._first = preset, tuple(assignments), command, usual
        self.review: Review | None = None
        self._debounce: Timer | None = None
        self._begun = False
        self._launching = False
        """Whether a run is being started, or has not taken its devices yet."""
        self.host = HostBar(source)
        self.bar = PaneBar(self.tabs(), id="panes")
        self.devices = DevicesPane(source)
        self.form = FormPane(source)
        self.plan = PlanPane()
        self.lower = Container(id="lower")
        stores: dict[str, RunStore] = {}
        self.runs = RunsPane(stores)
        self.detail = DetailPane(source, lambda: self.runs.lines or ())
        self.preview = PreviewPane(stores)

    @cached_property
    def draft(self) -> Draft:
        """What the form says; empty until the first draft has been read."""
        from gpu_panel.launch.draft import Draft  # after the first frame

        return Draft()

    def compose(self) -> ComposeResult:
        yield self.host
        with Horizontal(id="tabs"):
            yield self.bar
        with Container(id="top"):
            yield self.devices
        yield self.plan
        with self.lower:
            with Vertical(id="list"):
                yield self.runs
            yield self.preview
            yield self.form
            yield self.detail
        yield KeyBar()

    # --- start: everything slow happens after the first frame ----------------------------------

    def on_mount(self) -> None:
        # The parts are painted at different moments: the compositor visits every widget in the
        # rectangle around all changes of one moment, which would be the whole screen.
        # Details are painted every two seconds, as the processes are sampled every two seconds.
        for part, every, after in ((self._poll, 1.0, 0.01), (self.host.refresh, 1.0, APART),
                                   (self._paint_detail, 2.0, 2 * APART)):
            surely_rings(self.set_timer(
                after, partial(self.set_interval, every, partial(self._if_seen, part))))
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self._begun = True
        self.set_timer(SETTLED, lambda: gc.freeze())
        self.runs.poll_now()
        self._find_devices()
        self._load_form()

    @guarded("devices")
    async def _find_devices(self) -> None:
        await self.source.find()
        self._if_seen(self._poll_and_paint)
        await self.source.watch_hosts()

    @guarded("form")
    async def _load_form(self) -> None:
        def read() -> tuple[Draft, UserError | None]:
            from gpu_panel.launch.draft import first_draft  # after the first frame

            return first_draft(*self._first)

        draft, trouble = await in_thread(read)
        await self._show_draft(draft)
        if trouble is not None:
            show(self.app, trouble)

    @on(FormPane.Loaded)
    @guarded("form")
    async def _loaded(self, event: FormPane.Loaded) -> None:
        await self._load(event.draft)

    @on(RunsPane.Again)
    @guarded("form")
    async def _again(self, event: RunsPane.Again) -> None:
        if not self.form.ready:
            return
        def read() -> Draft:
            from gpu_engine.runs import attempts
            from gpu_engine.spec.read import from_dict
            from gpu_panel.launch.draft import Draft

            return Draft(from_dict(attempts.read_spec(event.run)), run=event.run.id)

        await self._load(await in_thread(read))
        self.bring_forward("form")
        self.form.enter_to_vary()

    async def _load(self, draft: Draft) -> None:
        """Put a draft into the place of the present one, whose changes the person may keep."""
        from gpu_panel.common.dialogs import Confirm

        if not self.draft.should_ask or await self.app.push_screen_wait(Confirm(
                "Replace the form", f"{self.draft.title}: its changes are in no preset. n goes "
                "back, and ctrl+s saves them as one.", yes="Replace it")):
            await self._show_draft(draft)

    async def _show_draft(self, draft: Draft) -> None:
        self.draft = draft
        self.devices.show_draft(draft)
        self.plan.entitle(draft.title)
        await self.form.show_draft(draft)
        self.review_now()
        await self.source.watch_hosts(named_in(draft.hosts))

    # --- reading and painting, while this screen is shown ---------------------------------------

    def _if_seen(self, part: Callable[[], object]) -> None:
        if self.is_seen and self.is_mounted:
            part()

    def _poll(self) -> None:
        self.devices.poll()
        self.runs.hues.clear()
        self.runs.hues.update(self.devices.hues)
        self.runs.poll()

    def _poll_and_paint(self) -> None:
        self.host.refresh()
        self._poll()
        self._paint_detail()

    def on_screen_suspend(self) -> None:
        self.preview.rest()

    def on_screen_resume(self, event: ScreenResume) -> None:
        if not self._begun:
            self.host.refresh()
            self.devices.poll()
            return
        self.runs.poll_now()
        self._poll_and_paint()
        self.preview.poll()

    @on(RunsPane.Points)
    def _points(self, event: RunsPane.Points) -> None:
        self.preview.point(event.at)

    @on(RunsPane.Read)
    def _runs_read(self, event: RunsPane.Read) -> None:
        self.devices.show_runs(event.runs)
        self.preview.set_class(not event.runs, "-empty")
        marks = [f"●{self.runs.live}"] if self.runs.live else []
        marks += [f"◌{self.runs.waiting}"] if self.runs.waiting else []
        self.bar.mark("runs", " ".join(marks))

    @property
    def going_on(self) -> str:
        """What goes on without the panel: "2 runs go on, 1 waits in the queue; gpu-panel shows them
        again."; else ""."""
        live, waiting = self.runs.live, self.runs.waiting
        if live and any(w.group == "trials" and not w.is_finished for w in self.app.workers):
            live -= 1  # a trial of what fits, which ends with the panel
        parts = [f"{live:,} run{' goes' if live == 1 else 's go'} on"] if live else []
        if waiting:
            parts.append(f"{waiting:,} {'' if live else 'run' + 's' * (waiting > 1) + ' '}"
                         f"wait{'s' * (waiting == 1)} in the queue")
        again = "it" if live + waiting == 1 else "them"
        return ", ".join(parts) + f"; gpu-panel shows {again} again." if parts else ""

    # --- the engine's review of the draft ------------------------------------------------------

    @on(FormPane.Edited)
    @on(DevicesPane.Edited)
    def edited(self) -> None:
        self.form.adapt()
        if self._debounce is not None:
            self._debounce.stop()
        self._debounce = surely_rings(self.set_timer(DEBOUNCE, self.review_now))

    @on(DevicesPane.Resolved)
    def _resolved(self) -> None:
        self.form.adapt()
        self.review_now()

    @on(DevicesPane.HeldChanged)
    def _held_changed(self) -> None:
        if self.form.ready:
            self.review_now()

    @guarded("review", exclusive=True)
    async def review_now(self) -> None:
        await self._reviewed()

    async def _reviewed(self) -> Review | None:
        """Review the draft and show the answer. None if the devices are not known yet."""
        draft, source, inventory = self.draft, self.source, self.source.inventory
        if self._debounce is not None:
            self._debounce.stop()
            self._debounce = None
        if inventory is None or (not self.devices.resolved and draft.picks):
            self.plan.show_waiting("Looking for devices …")
            return None
        known = {seen.host.name: seen.state for seen in source.hosts}
        asking = [name for name in named_in(draft.hosts)
                  if known.get(name, "asking") == "asking"]
        if asking:  # for the first time
            self.plan.show_waiting(f"Asking {', '.join(asking)} …")
            return None
        data, typed = draft.data, draft.typed
        shot, hosts = source.snapshot, source.hosts

        def ask() -> Review:
            from gpu_panel.launch.review import review  # imported after the first frame

            return review(data, inventory, draft.base, shot, hosts)

        found = await in_thread(ask)
        if draft is self.draft and typed == draft.typed:
            self._show_review(found)
        elif self._debounce is None:  # the draft has changed meanwhile, and no review is planned
            self.edited()
        return found

    def _show_review(self, found: Review) -> None:
        self.review = found
        self.form.show_review(found)
        of_devices = [self._is_of_ticks(problem) for problem in found.problems]
        self.devices.show_problems([*compress(found.problems, of_devices)])
        self._paint_plan()
        self.bar.mark("devices", "✗" if any(of_devices) else "")
        self.bar.mark("form", "" if all(of_devices) else "✗")

    def _paint_plan(self) -> None:
        """Show what would run, or the problems: one that the open form shows is only named."""
        if (found := self.review) is None:
            return
        draft, form = self.draft, self.form if self.has_class("-pane-form") else None
        self.plan.show_review(found, draft.title, as_before(draft.run, draft.differences())
                              if draft.run and found.plan is not None else "",
                              form.labels(found.problems) if form is not None else [])

    @property
    def run_at_hand(self) -> str:
        """The id of the run under the cursor; "" for none."""
        line = self.runs.line_at_cursor
        return line.id if line is not None else ""

    def placeholders(self) -> Values:
        """For the person's own commands, where the focus is on nothing that has some. Blocks."""
        return self.runs.placeholders()

    # --- launching -----------------------------------------------------------------------------

    async def _known(self) -> bool:
        """Wait until the preset is read and devices are found; what is typed meanwhile waits, too.
        Whether they are, and else says so."""
        for _ in range(round(READ_WITHIN / TICK)):
            if self.form.ready and self.source.inventory is not None and (
                    self.devices.resolved or not self.draft.picks):
                return True
            await asyncio.sleep(TICK)
        self.notify("Still looking for devices" if self.form.ready else "Still reading the preset",
                    severity="warning")
        return False

    @guarded("launch")
    async def action_launch(self) -> None:
        if self._launching:
            self.notify("The run is already starting", severity="warning")
            return
        self._launching = True
        run = None
        try:
            run = await self._launch()
        finally:
            # Its supervisor takes the devices a moment later. Until then they look free.
            if run is None:
                self._launching = False
            else:
                self._await_start(run)

    @guarded("start")
    async def _await_start(self, run: Run) -> None:
        try:
            await in_thread(lambda: has_begun(run))
        finally:
            self._launching = False

    async def _launch(self) -> Run | None:
        from gpu_engine.places import verbs
        from gpu_panel.launch.review import busy_devices, sharing_would_help

        if not await self._known():
            return None
        found = await self._reviewed()
        if found is None:
            self.notify("Still looking for devices", severity="warning")
            return None
        taken = await busy_devices(self.source, self.devices.ticked)
        if found.plan is None and not sharing_would_help(found, taken):
            self._go_to_problem(found.problems)
            return None
        # The engine uses a device beside others only if the spec allows it.
        share = any(t.can_be_shared for t in taken.values())
        if taken and not await self._ask_about(taken, share):
            return None
        if share:
            self.draft.share()
            found = await self._reviewed()
        prepared = await self._ask_hosts(found) if found is not None else None
        if prepared is None:
            self._go_to_problem(found.problems if found is not None else ())
            return None
        launched = self.draft
        run = await in_thread(lambda: verbs.start(prepared))
        launched.asked()
        self.action_pane("runs")
        self.runs.go_to(run.id)
        if self.has_class("-low"):  # there is no preview
            self.runs.open(run)
        return run

    async def _ask_about(self, taken: Mapping[str, BusyDevice], share: bool) -> bool:
        """Ask whether to launch on devices that are not free, or to wait for them."""
        from gpu_panel.launch.queueing import LaunchTaken

        text = "\n".join(map(str, taken.values()))
        if share:
            text += "\n\nIf a device is shared, everything on it runs more slowly."
        if not self.draft.hosts:
            text += "\n\nQ puts the run into the queue: it starts when they are free."
        question = LaunchTaken("Launch on devices that are not free", text,
                               yes="Share and launch" if share else "Launch anyway")
        yes = await self.app.push_screen_wait(question)
        if question.waits:
            self.action_queue()
        return yes

    @guarded("queue", exclusive=True)
    async def action_queue(self, vary: bool = False) -> None:
        """Put the form's run into the queue, after a dialog. `vary`: begin with what varies."""
        if not await self._known() or (inventory := self.source.inventory) is None:
            return
        from gpu_panel.launch.queueing import ask_and_queue

        draft = self.draft
        queued = await ask_and_queue(self.app, draft, inventory, vary=vary)
        if queued is not None:
            draft.asked()
            self.action_pane("runs")
            self.runs.go_to(queued.run.id)

    @guarded("fit", exclusive=True)
    async def action_fit(self) -> None:
        """Try what fits, and put what is proposed into the form if the person wants that."""
        found = await self._reviewed() if await self._known() else None
        if found is None:
            self.notify("Still looking for devices", severity="warning")
            return
        if found.plan is None:
            self._go_to_problem(found.problems, "Can't try what fits")
            return
        from gpu_panel.launch.fitting import ask_and_fit

        shot = self.source.snapshot
        batch = await ask_and_fit(self.app, self.draft.spec(), found.plan, shot and shot.host)
        if batch is not None:
            self.form.put({"batch.meaning": batch.meaning, "batch.size": str(batch.size),
                           "batch.accumulate": str(batch.accumulate)})
        self.review_now()  # it says what is known now

    async def _ask_hosts(self, found: Review) -> Prepared | None:
        """What is launched; where it runs on hosts, after each was asked what is wrong there. None
        where something is. Raises SpecError with what the hosts have said."""
        from gpu_engine.places import verbs

        if found.over_hosts is None:
            return found.prepared
        names = ", ".join(named_in(self.draft.hosts)) or "this machine"
        self.notify(f"Asking {names} before anything starts …", markup=False)
        spec, base = self.draft.spec(), self.draft.base
        return await in_thread(lambda: verbs.prepare(spec, base=base))

    def _go_to_problem(self, problems: Sequence[Problem], title: str = "Can't launch") -> None:
        """Say what is wrong with the draft, and go to the field with the problem."""
        if problems:
            first = problems[0]
            self.notify(str(first), title=title, severity="error", markup=False)
            self.action_pane("devices" if self._is_of_ticks(first) else "form")
            self.form.focus_problem()

    def _is_of_ticks(self, problem: Problem) -> bool:
        """Whether it is about what is ticked: Slurm's number of devices has a field."""
        return problem.key.startswith("devices.") and not any(self.form.labels([problem]))

    # --- the details of a device ---------------------------------------------------------------

    @property
    def detail_open(self) -> bool:
        return self.has_class("-detail")

    def _paint_detail(self) -> None:
        if self.detail_open:
            self.detail.show_device(self.devices.key_at_cursor)

    def action_details(self, enter: bool) -> None:
        """Show or hide the details of the device under the cursor. `enter`: and go there."""
        if self.detail_open and not enter:
            self._close_detail()
            return
        self.add_class("-detail")
        self._paint_detail()
        if enter or self.has_class("-narrow"):
            self.detail.focus()

    def _close_detail(self) -> None:
        if self.detail_open:
            self.remove_class("-detail")
            if self.detail.has_focus:
                self.devices.focus()

    @on(DevicesPane.Highlighted)
    def _highlighted(self) -> None:
        self._if_seen(self._paint_detail)

    def action_other_device(self, by: int) -> None:
        self.devices.cursor += by

    # --- going from pane to pane ---------------------------------------------------------------

    def bring_forward(self, name: str) -> None:
        if name not in dict(self.tabs()):  # one of the preview's
            return
        if name in ("form", "runs") or self.has_class("-narrow"):
            self._close_detail()
        self.bar.active = name
        self.update_classes({f"-pane-{tab}": tab == name for tab, _ in self.tabs()})
        self._paint_plan()

    def action_jump(self) -> None:
        if self.form.ready:
            self.bring_forward("form")
            self.form.pick_field()

    def action_leave(self) -> None:
        """Leave a field, so that the letter keys work again; from the table, close the details or
        the form. If only one pane is shown, a focused list keeps the focus."""
        if not self.has_class("-narrow"):
            if self.focused is self.devices:
                self._close_detail() if self.detail_open else self.bring_forward("devices")
            self.devices.focus()
        elif self.form.has_focus_within:
            self.set_focus(None)
        elif self.has_class("-pane-devices"):  # from the runs below them
            self.devices.focus()
