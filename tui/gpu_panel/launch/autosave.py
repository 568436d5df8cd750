"""Keeps the form while the panel is open, so that it comes back the next time."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from textual.screen import Screen
from textual.timer import Timer

from gpu_panel import readonly
from gpu_panel.common.background import in_thread
from gpu_panel.common.errors import guard

if TYPE_CHECKING:
    from gpu_panel.launch.devices.source import DeviceSource
    from gpu_panel.launch.draft import Draft

AFTER = 1.0
"""Seconds after a change until the form is written."""


class Autosave:
    """Writes the form a moment after it has changed, and as the panel closes."""

    def __init__(self, screen: Screen[Any], source: DeviceSource) -> None:
        """`source`: the devices here."""
        self._screen, self._source = screen, source
        self._written: dict[str, Any] | None = None
        """What is in the file, as far as this panel knows; None before there is a form."""
        self._timer: Timer | None = None

    def begin(self, draft: Draft) -> None:
        """Take the first draft, which need not be written."""
        from gpu_panel.launch import saved_form  # after the first frame, as below

        self._written = saved_form.written(draft, None)

    def keep_soon(self, draft: Draft) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._timer = self._screen.set_timer(AFTER, lambda: self._screen.run_worker(
            self._save(draft), group="keep", exit_on_error=False))

    async def _save(self, draft: Draft) -> None:
        with guard(self._screen.app):
            form = self._unwritten(draft)
            if form is None:
                return
            try:
                await in_thread(lambda: self._write(form))
            except (OSError, ValueError) as err:  # JSON has no nan, which its field refuses too
                self._screen.notify(f"The form can't be saved: {err}",
                                    severity="warning", markup=False)

    def keep_at_once(self, draft: Draft) -> None:
        """Write the form now, as the panel closes."""
        with suppress(OSError, ValueError):
            if (form := self._unwritten(draft)) is not None:
                self._write(form)

    def _unwritten(self, draft: Draft) -> dict[str, Any] | None:
        """What is to be written; None if that is in the file, or there is no form yet."""
        if self._written is None or readonly.on:
            return None
        from gpu_panel.launch import saved_form

        form = saved_form.written(draft, self._source.inventory)
        return form if form != self._written else None

    def _write(self, form: dict[str, Any]) -> None:
        from gpu_panel.launch import saved_form

        saved_form.write(form)
        self._written = form
