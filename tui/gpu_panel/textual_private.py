"""What the panel uses of Textual that is not public: each with what it buys, and what happens
without it. No other file does (tests/panel/test_private_names.py)."""

from __future__ import annotations

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.timer import Timer


def writes(driver: LinuxDriver) -> bool:
    """Whether the thread still runs that writes to the terminal; it ends where that has vanished.

    Buys: a panel that ends with a terminal that sends no SIGHUP. Without it, it would use a core
    for ever."""
    thread = driver._writer_thread
    return thread is not None and thread.is_alive()


def surely_rings(timer: Timer) -> Timer:
    """Have a timer ring also if the process lost the processor just as it began.

    A timer that begins more than its time late leaves that turn out, and one that rings once then
    never does (seen with more processes than cores). Buys: the size of the terminal, with which
    Textual's app waits 8 ms, so that no later size would count; and a launch screen that looks for
    devices, reviews what was typed and shows the preview at all."""
    timer._skip = False
    return timer


class FailingApp(App[None]):
    """An app that says itself that it has failed.

    Buys: one line, and the traceback in panel.log. Without it a fault in a widget ends the panel
    with a screenful of local variables, and leaves nothing to send to us."""

    def failed(self, error: Exception) -> None:
        """Called after an exception outside an action. The widget that raised it is dead."""
        super()._handle_exception(error)

    def _handle_exception(self, error: Exception) -> None:
        if self.is_headless:  # in a test: let the test see it
            super()._handle_exception(error)
        else:
            self.failed(error)
