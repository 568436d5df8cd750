"""The form pane: what to train and how, and its presets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Static

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import Problem, SpecError, UserError
from gpu_panel import keys
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import AskLine
from gpu_panel.common.errors import guarded
from gpu_panel.common.painting import put
from gpu_panel.common.panes import Pane
from gpu_panel.common.picking import pick

if TYPE_CHECKING:
    from gpu_engine.spec.catalog import TaskInfo
    from gpu_engine.spec.presets import Preset
    from gpu_panel.launch.device_source import DeviceSource
    from gpu_panel.launch.draft import Draft
    from gpu_panel.launch.fields import Fieldset
    from gpu_panel.launch.review import Review


class FormPane(Vertical, Pane):
    """Puts what is typed into the draft. Empty until the first draft is shown."""

    NAME = "form"
    TITLE = "Launch"
    CALLED = "the launch form"
    KEYS = keys.of("form")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    CHANGES: ClassVar[frozenset[str]] = frozenset({"save", "fit"})
    HELP = """Type what to train and how. An empty field takes the default that is shown in it.
Problems are shown below their fields, and you can launch once there are none. Up and down go from
field to field; left and right choose between options, enter or space shows all of them. While you
type in a field, digits and letters go into it: esc leaves it."""

    class Edited(Message):
        """The draft has been changed here."""

    @dataclass
    class Loaded(Message):
        """The person has loaded another preset, whose draft replaces the one shown."""

        draft: Draft

    def __init__(self, source: DeviceSource) -> None:
        """`source`: the devices here, by which a saved preset names them."""
        super().__init__(id=self.NAME)
        self._source = source
        self._fields: Fieldset | None = None
        self._problems: tuple[Problem, ...] = ()
        self._help = Static("", id="field-help")
        self._last: Widget | None = None

    @property
    def ready(self) -> bool:
        return self._fields is not None

    def enter(self) -> None:
        """Go to the field that had the focus last, or to the first one."""
        if self._fields is not None:
            last = self._last
            if last is None or not (last.is_attached and last.display):
                last = self._fields.task_choice
            last.focus()

    def enter_to_vary(self) -> None:
        """Go to what is mostly changed before a run is made again."""
        if self._fields is not None:
            self._fields.focus_varied()

    def pick_field(self) -> None:
        if self._fields is not None:
            self._fields.pick_field()

    # --- input from the screen -------------------------------------------------------------------

    async def show_draft(self, draft: Draft) -> None:
        """Show and edit another draft. Waits until its task's parameters are drawn, and the first
        time until all fields are."""
        if self._fields is None:
            tasks = await in_thread(_tasks)
            from gpu_panel.launch.fields import Fieldset  # read by now

            fields = Fieldset(tasks, draft)
            with self.app.batch_update():  # so that no half of the form is painted
                await self.mount(fields, self._help)
                self._fields = fields  # only now, as the other methods need all of its widgets
        self._fields.edit(draft)
        self._fields.fill()
        self._entitle()
        await self._show_task()

    def adapt(self) -> None:
        if self._fields is not None:
            self._fields.adapt()
            self._entitle()

    def _entitle(self) -> None:
        if self._fields is not None:
            self.border_title = Content(f"{self.TITLE} ─ {clean(self._fields.draft.title)}")

    def put(self, texts: Mapping[str, str]) -> None:
        """Put these texts into the fields of their keys."""
        if self._fields is not None:
            for key, text in texts.items():
                self._fields.draft.put(key, text)
            self._fields.fill()
            self._edited()

    def show_review(self, review: Review) -> None:
        self._problems = review.problems
        if self._fields is not None:
            if review.plan is not None:
                self._fields.fits = review.plan.fits
            self._fields.show_problems(review.problems)
            self._fields.show_interpreter(review.interpreter)

    def labels(self, problems: Sequence[Problem]) -> list[str]:
        """For each problem the label of the field below which it stands; "" for none."""
        return self._fields.labels(problems) if self._fields is not None else []

    def focus_problem(self) -> None:
        if self._fields is not None:
            self._fields.focus_problem(self._problems)

    # --- what is typed -------------------------------------------------------------------------

    def on_fieldset_edited(self, event: Fieldset.Edited) -> None:
        event.stop()
        if event.task:
            self._show_task_soon()
        self._edited()

    def _edited(self) -> None:
        self.adapt()
        self.post_message(self.Edited())

    @guarded("task", exclusive=True)
    async def _show_task_soon(self) -> None:
        await self._show_task()

    async def _show_task(self) -> None:
        if (fields := self._fields) is None:
            return
        use = fields.draft.text("task.use")
        task = await _described(use)
        if use == fields.draft.text("task.use"):
            await fields.show_task(task)
            fields.show_problems(self._problems)

    def on_descendant_focus(self) -> None:
        self._last = self.screen.focused
        self.on_descendant_blur()

    def on_descendant_blur(self) -> None:
        """Show the help of the field that has the focus now; the events of two widgets may come in
        any order."""
        if self._fields is not None:
            put(self._help, Content(self._fields.help_of(self.screen.focused)))

    # --- keys ----------------------------------------------------------------------------------

    def action_focus_previous(self) -> None:
        self.screen.focus_previous()

    def action_focus_next(self) -> None:
        self.screen.focus_next()

    def action_page(self, step: int) -> None:
        if self._fields is not None:
            self._fields.scroll_relative(y=step * self._fields.size.height, animate=False)

    async def action_fit(self) -> None:
        await self.app.run_action("fit", self.screen)

    async def action_leave(self) -> None:
        await self.app.run_action("leave", self.screen)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer to leave a text field alone: elsewhere nothing holds up the letter keys."""
        if action == "leave":
            return isinstance(self.screen.focused, Input)
        return super().check_action(action, parameters)

    @guarded("presets", exclusive=True)
    async def action_presets(self) -> None:
        """Choose a preset by a part of its name. One that can't be read is listed with the reason,
        and choosing it says it whole."""
        entries = await in_thread(_presets)
        pick(self.app, "type a part of a preset's name", [
            (name, about, partial(self._load, name)) for name, about in entries])

    @guarded("presets", exclusive=True)
    async def _load(self, name: str) -> None:
        self.post_message(self.Loaded(await in_thread(lambda: _read(name))))

    @guarded("presets", exclusive=True)
    async def action_save(self) -> None:
        """Save the form as a preset, also as a copy under another name."""
        from gpu_engine.spec import presets

        if self._fields is None:
            return
        draft = self._fields.draft
        before = draft.preset
        try:
            spec = draft.to_save(self._source.inventory)
        except SpecError as err:  # whose title is of a launch
            raise UserError(f"The preset can't be saved:\n{err}") from None
        devices = "those that Slurm chooses" if draft.on_slurm else \
            f"the {spec.devices.pick} freest at launch" if spec.devices.pick else \
            ", ".join(spec.devices.hosts or spec.devices.ids or ["none"])
        name = await self.app.push_screen_wait(AskLine(
            "Save preset", before.name if before and "/" not in before.name else
            presets.near_name(spec.name),
            f"Saved in {presets.own_folder()}\nDevices: {devices}",
            wrong=presets.name_problem, instead=presets.near_name, hint=_replaces))
        if name is None:
            return
        described = before.description if before is not None else None
        # Runs of a copy are not called as those of the preset that it was made of.
        renamed = before is not None and spec.name == before.spec.name and name != before.name
        if renamed:
            spec = replace(spec, name=name)

        def write() -> Preset:
            presets.save(name, spec, described)
            return presets.load(name)

        saved = await in_thread(write)
        self.notify(f"Saved in {saved.path}", title="Preset", markup=False)
        if renamed:
            draft.put("name", name)
            self._fields.fill()
        draft.saved(saved)
        self._edited()


def _replaces(name: str) -> str:
    """What saving under this name does to a preset of the same name; empty if there is none."""
    from gpu_engine.spec import presets

    own = presets.own_folder() / f"{name}.toml"
    if own.exists():
        return f"{own} already exists: it is replaced. Its comments are kept."
    return f"{name} ships with gpu-panel. Yours will be used instead." * presets.ships(name)


def _presets() -> list[tuple[str, str]]:
    """The name of each preset, and what is said of it. Blocks."""
    from gpu_engine.spec import presets

    return [(p.name, " · ".join(filter(None, (presets.about(p), str(p.path)))))
            if isinstance(p, presets.Preset) else (p[0].stem, f"✗ can't be read: {clean(p[1])}")
            for p in presets.all_presets()]


def _tasks() -> list[TaskInfo]:
    """Which tasks ship with gpu-panel; reads the fields' code too, off the event loop. Blocks."""
    from gpu_engine.spec import catalog
    from gpu_panel.launch import fields  # noqa: F401

    return catalog.builtin()


def _read(preset: str) -> Draft:
    """The draft of this preset. Blocks. Raises UserError if it can't be read."""
    from gpu_engine.spec import presets
    from gpu_panel.launch.draft import Draft

    return Draft(None, presets.load(preset))


async def _described(use: str) -> TaskInfo | None:
    """A task with its parameters; None if it can't be found."""
    from gpu_engine.spec import catalog

    if not use:
        return None
    try:
        return await in_thread(lambda: catalog.describe(use))
    except UserError:
        return None  # the review shows the problem at the field
