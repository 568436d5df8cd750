"""The panel: one Textual app with its screens, and what they have in common."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from textual import actions, on, work
from textual.app import ScreenError, SystemCommand
from textual.binding import BindingType
from textual.driver import Driver
from textual.events import Event, Key, Paste
from textual.screen import Screen
from textual.timer import Timer, TimerCallback
from textual.worker import Worker

from gpu_engine.common.errors import UserError
from gpu_engine.settings.schema import Settings
from gpu_panel import keys, readonly
from gpu_panel.alerts.teller import Teller
from gpu_panel.common.background import in_thread
from gpu_panel.common.errors import guard, record, sentence, show
from gpu_panel.common.panes import PaneScreen
from gpu_panel.common.picking import Palette
from gpu_panel.launch.device_source import DeviceSource
from gpu_panel.launch.runs import RunsPane
from gpu_panel.launch.screen import LaunchScreen
from gpu_panel.textual_private import surely_rings
from gpu_panel.theme import SHEET, ThemedApp

if TYPE_CHECKING:
    from gpu_engine.devices.records import Inventory
    from gpu_engine.devices.sampler import Sampler
    from gpu_engine.remote.reach.watcher import Watcher


Parsed = tuple[str, str, tuple[object, ...]]
"""An action: whose (app, screen or focused; "" is the node with the key), its name, parameters."""


KEY_TAKES = 1.0
"""Seconds for which a key waits at most for the one before: what that was given to may have closed,
or still be busy."""


class PanelApp(ThemedApp):
    """Opens the launch screen; every other screen is pushed from there."""

    TITLE = "gpu-panel"
    # The default screen's sheets too: a screen that is not pushed does not load its CSS_PATH.
    CSS_PATH: ClassVar[str | PurePath | list[str | PurePath] | None] = [
        SHEET, "launch/screen.tcss"]
    BINDINGS: ClassVar[list[BindingType]] = keys.bindings(keys.of("app", "own"))
    CHANGES: ClassVar[frozenset[str]] = frozenset({"own_command"})
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012  Textual's way
    VERTICAL_BREAKPOINTS = [(0, "-short"), (34, "-tall")]  # noqa: RUF012

    def __init__(self, preset: str | None = None, *, sets: Sequence[str] = (),
                 command: Sequence[str] | None = None, inventory: Inventory | None = None,
                 sampler: Sampler | None = None, hosts: Watcher | None = None,
                 settings: Settings | None = None, light: bool = False) -> None:
        """`command`: the person's own command, in place of the preset's task. `inventory` and
        `sampler` replace this machine's devices, `hosts` the way to others. `settings`: those of
        settings.toml. `light`: whether the terminal's background is."""
        super().__init__()
        if self.console.is_dumb_terminal:
            # Rich says 80x25 of each. Where Textual's driver finds another size, the screen is laid
            # out for the one and the other in turn for ever, and the panel never comes to its end.
            self.console.size = shutil.get_terminal_size()
        self.settings = settings or Settings()
        self.preset = preset
        self.sets = tuple(sets)
        self.command = list(command) if command is not None else None
        self.devices = DeviceSource(inventory, sampler, hosts,
                                    interval=self.settings.panel.refresh)
        given = self.settings.given
        self.teller = Teller(self, self.devices, self.settings.panel.tell
                             if "panel.tell" in given else None)
        self.animation_level = "none"
        self.set_class(not self.settings.panel.footer, "-no-footer")
        own = self.settings.panel.theme if "panel.theme" in given else None
        self.begin_with_theme(own, light=light)
        self._typed = asyncio.Queue[Key | Paste]()

    def get_driver_class(self) -> type[Driver]:
        given = super().get_driver_class()
        if given.__name__ != "LinuxDriver":
            return given
        from gpu_panel.terminal.driver import PanelDriver

        return PanelDriver

    def get_default_screen(self) -> Screen:
        return LaunchScreen(self.devices, self.preset, self.sets, self.command,
                            usual=self.settings.panel.preset)

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        # Without this the terminal is left in its alternate screen with mouse reporting on.
        for ends in (signal.SIGTERM, signal.SIGHUP):
            try:
                loop.add_signal_handler(ends, self.exit, None, 128 + ends)
            except (RuntimeError, ValueError):  # not in the main thread, as in some tests
                break

        self.theme_changed_signal.subscribe(self, lambda _: self._keep_theme())

        self.teller.begin()
        self.run_worker(self._pass_keys_on(), group="keys")

        # After ctrl+z the terminal is empty, and Textual draws only what changes.
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))

    def on_unmount(self) -> None:
        self.devices.close()

    def set_timer(self, delay: float, callback: TimerCallback | None = None, *,
                  name: str | None = None, pause: bool = False) -> Timer:
        return surely_rings(super().set_timer(delay, callback, name=name, pause=pause))

    @work(exit_on_error=False, group="theme", exclusive=True)
    async def _keep_theme(self) -> None:
        try:
            await in_thread(self.keep_theme)
        except OSError as err:
            self.notify(f"The theme can't be saved: {err}", severity="warning", markup=False)

    @on(RunsPane.Read)
    def _runs_read(self, event: RunsPane.Read) -> None:
        self.teller.note_runs(event.runs)

    async def on_event(self, event: Event) -> None:
        if isinstance(event, Key | Paste) and not event.is_forwarded:
            self._typed.put_nowait(event)
        else:
            await super().on_event(event)

    async def _pass_keys_on(self) -> None:
        """Have each key wait until the one before has taken effect. Textual gives a key to the
        widget that has the focus when it arrives, and runs priority keys at once: of keys that come
        in a burst, as over a slow line, a number typed after tab would land in the field before,
        and ctrl+l would overtake it."""
        while True:
            event, screen, before = await self._typed.get(), self.screen, set(self.workers)

            def reads(screen: Screen = screen, before: set[Worker[Any]] = before) -> bool:
                """Whether an action reads something before it asks: what is typed next answers."""
                return self.screen is screen and any(
                    worker.is_running and worker.name.startswith("action_")
                    for worker in set(self.workers) - before)

            await super().on_event(event)
            with suppress(TimeoutError, ScreenError):
                async with asyncio.timeout(KEY_TAKES):
                    await self._handled()
                    while reads():
                        await asyncio.sleep(0.005)
                    if self.screen is not screen:
                        await self._handled()
            if reads() and not self._typed.empty():
                # What was typed for its question must not act on what is behind.
                while not self._typed.empty():
                    self._typed.get_nowait()
                self.notify("What was typed meanwhile is dropped: the key before is still at work",
                            severity="warning")

    async def _handled(self) -> None:
        """Wait until what has the focus has handled what it was sent."""
        # The key itself, what the field tells the form, what the form tells the screen.
        for _ in range(3):
            for node in (self.focused or self.screen).ancestors_with_self:
                handled = asyncio.Event()
                if node.call_later(handled.set):
                    await handled.wait()

    # --- actions -------------------------------------------------------------------------------

    async def run_action(self, action: Any, default_namespace: Any = None,
                         namespaces: Any = None) -> bool:
        """Run an action and show what goes wrong in it. Every key, click and palette entry comes
        through here."""
        node, parsed = self._target(action, default_namespace, namespaces)
        if readonly.refuses(node, parsed):
            self.clear_notifications()  # it is said once, also to who presses ten keys
            self.notify(readonly.SAID, title="Read-only", severity="warning")
            return True
        _, name, given = parsed
        if hasattr(node, "why_off") and not node.check_action(name, given) \
                and (why := node.why_off(name, given)):
            self.notify(why, severity="warning", markup=False)
            return True
        try:
            return await super().run_action(action, default_namespace, namespaces)
        except UserError as err:
            show(self, err)
        except Exception as err:  # noqa: BLE001  shown with a pointer to the whole traceback
            show(self, err)
        return True

    def _target(self, action: Any, default: Any, namespaces: Any) -> tuple[Any, Parsed]:
        """Whose action it is, and the action in its parts."""
        parsed = action if isinstance(action, tuple) else actions.parse(action)
        node = (namespaces or {}).get(parsed[0]) or {
            "app": self, "screen": self.screen, "focused": self.focused}.get(
                parsed[0], default or self)
        return node, parsed

    def action_help(self) -> None:
        from gpu_panel.common.help import HelpScreen

        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen(self.screen, self.focused))

    async def action_tell(self) -> None:
        try:
            told = await in_thread(self.teller.turn)
        except OSError as err:
            self.notify(f"That can't be saved: {err}", severity="warning", markup=False)
            told = self.teller.on
        self.notify("You are notified when a run ends or stalls, and when a device that you wait "
                    "for is free" if told else "No bell, no notifications",
                    title="On" if told else "Off")

    @work(exit_on_error=False, group="own")
    async def action_own_command(self, name: str) -> None:
        from gpu_panel.commands.own import run

        with guard(self):
            await run(self, next(c for c in self.settings.commands if c.name == name))

    def action_redraw(self) -> None:
        self.refresh(layout=True)

    async def action_quit(self) -> None:
        """Close the panel, after a question about unsaved changes that is asked once. Runs go on,
        as each has its own supervisor."""
        bottom = self.screen_stack[0]
        if isinstance(bottom, LaunchScreen) and bottom.draft.should_ask \
                and self.settings.panel.confirm_quit:
            from gpu_panel.common.dialogs import Confirm

            bottom.draft.asked()  # a second ctrl+q quits
            self.push_screen(Confirm(
                "Close the panel", f"Your changes to {bottom.draft.title} are lost: n goes back, "
                "and ctrl+s saves them as a preset.",
                yes="Close it", no="Stay"), lambda yes: self._quit(bottom) if yes else None)
            return
        self._quit(bottom)

    def _quit(self, bottom: Screen[Any]) -> None:
        going_on = bottom.going_on if isinstance(bottom, LaunchScreen) else ""
        self.exit(message=going_on or None)

    def get_system_commands(self, screen: Screen) -> Iterable[SystemCommand]:
        """The entries of the command palette: what this screen's keys do, by name."""
        for key in screen.palette_keys() if isinstance(screen, PaneScreen) else ():
            yield SystemCommand(f"{key.label} ({keys.display(key.keys)})", key.tooltip,
                                self._caller(screen, key.action))
        for key in () if readonly.on else keys.of("own"):
            yield SystemCommand(f"{key.label} ({keys.display(key.keys)})", key.tooltip,
                                self._caller(screen, f"app.{key.action}"))
        yield SystemCommand("keys", "Show every key and what the pane does", self.action_help)
        yield SystemCommand("bell on/off", "Turn bell and notifications on or off",
                            self._caller(screen, "app.tell"))
        yield SystemCommand("theme", "Change the colours", self.action_change_theme)
        yield SystemCommand("quit", "Close the panel; runs go on", self.action_quit)

    def _caller(self, screen: Screen, action: str) -> Any:
        async def call() -> None:
            await self.run_action(action, screen)

        return call

    def action_command_palette(self) -> None:
        """Open the palette, unless a list to choose from is open."""
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(id="--command-palette"))

    # --- failures ------------------------------------------------------------------------------

    def failed(self, error: Exception) -> None:
        """End with a short message, and the traceback in panel.log."""
        where = record(error)
        from rich.text import Text

        self.exit(return_code=1, message=Text(f"gpu-panel ended: {sentence(error, where)}"))
        self.panic()  # no message is handled any more, also if the app's own handling has failed
