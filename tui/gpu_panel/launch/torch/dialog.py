"""Installing torch beside the screen: what would be installed, and how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.interpreters import own_torch
from gpu_engine.interpreters.own_torch import Offer, Progress
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import harmless
from gpu_panel.common.rows import fit
from gpu_panel.common.static_text import put

_WAIT = 15.0
"""Seconds in which an installer has ended, and what it has written is taken away."""


class Installation:
    """It goes on while its dialog is closed, and ends with the panel."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self.progress = Progress("", 0)
        self.failure: Exception | None = None
        self.over = False
        """Whether it has ended: well, if nothing has failed and it was not given up."""
        self.given_up = False
        self._stop = threading.Event()
        self._ended = threading.Event()

    async def run(self) -> None:
        """Install, and wait for it. What goes wrong is in `failure`."""
        try:
            await in_thread(self._install)
        except Exception as err:  # noqa: BLE001 - shown by whoever shows the installation
            self.failure = err
        self.over = True

    def _install(self) -> None:
        try:
            with closing(own_torch.install(self.offer, self._stop)) as steps:
                for progress in steps:
                    self.progress = progress
        finally:
            self._ended.set()

    def give_up(self) -> None:
        """End it; `run` returns soon after."""
        self.given_up = True
        self._stop.set()

    def give_up_at_once(self) -> None:
        """End it and wait for that. Blocks: for a panel that closes."""
        if not self.over:
            self.give_up()
            self._ended.wait(_WAIT)


_LOOK = 0.25
_WIDTH = 20
_LINE = 58
CHOOSE = "choose"


class TorchScreen(ModalScreen[str | None]):
    """Returns CHOOSE if an interpreter is to be named. Closing it ends no installation."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "close"), Binding("y", "install", "install"),
        Binding("c", f"dismiss({CHOOSE!r})", "choose another"), Binding("x", "end", "end it"),
        Binding("left", "app.focus_previous", "other", show=False),
        Binding("right", "app.focus_next", "other", show=False)]

    def __init__(self, offer: Offer, running: Installation | None,
                 begin: Callable[[Offer], Installation]) -> None:
        """`running`: one that has begun earlier. `begin` begins one."""
        super().__init__()
        self._offer, self._begin = offer, begin
        self._installation = running if running is not None and not running.given_up else None

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = "Install torch"
            yield Static(harmless("\n".join(self._offer.lines())))
            yield Static("", id="torch-progress")
            with Horizontal(classes="buttons"):
                yield Button("Close", id="torch-close", compact=True, action="screen.dismiss")
                yield Button("Choose another", id="torch-choose", compact=True,
                             action=f"screen.dismiss({CHOOSE!r})")
                yield Button("Install", id="torch-install", compact=True, variant="primary",
                             action="screen.install")

    def on_mount(self) -> None:
        self.query_one("#torch-close").focus()
        self.set_interval(_LOOK, self._paint)
        self._paint()

    def _paint(self) -> None:
        """Show how far it is; closes once torch is there."""
        running = self._installation
        if running is not None and running.over and not running.given_up \
                and running.failure is None:
            self.dismiss(None)
            return
        going = running is not None and not running.over
        button = self.query_one("#torch-install", Button)
        button.disabled = going or self._offer.problem is not None
        self.query_one(".dialog").border_subtitle = "x cancel · esc go on in the background" \
            if going else "y install · c choose another · esc"
        put(self.query_one("#torch-progress", Static), self._text())

    def _text(self) -> Content:
        running = self._installation
        if self._offer.problem is not None:
            return Content.styled(f"\n✗ {clean(self._offer.problem)}", "$text-error")
        if running is None:
            return Content.styled("\nNothing is installed before you press y.", "$text-muted")
        if running.failure is not None:
            why = str(running.failure) if isinstance(running.failure, UserError) \
                else f"{type(running.failure).__name__}: {running.failure}"
            return Content.styled("\n✗ The installation failed. The installer's last lines:\n",
                                  "$text-error") + harmless(why)
        if running.given_up:
            return Content.styled("\nCancelled. Nothing was left behind." if running.over
                                  else "\nCancelling …", "$text-muted")
        whole = self._offer.download + self._offer.size
        part = min(1.0, running.progress.written / whole)
        full = round(part * _WIDTH)
        line = fit(clean(running.progress.line), _LINE).rstrip()
        return Content.assemble(
            "\n", ("█" * full, "$text-primary"), ("░" * (_WIDTH - full), "$text-muted"),
            f" {running.progress.written / 1e9:.1f} of about {whole / 1e9:.1f} GB\n",
            (line, "$text-muted"))

    def action_install(self) -> None:
        going = self._installation is not None and not self._installation.over
        if not going and self._offer.problem is None:
            self._installation = self._begin(self._offer)
            self._paint()

    def action_end(self) -> None:
        if self._installation is not None and not self._installation.over:
            self._installation.give_up()
            self._paint()
