"""The panel as a program: what it imports, how it starts, fails and ends."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
from click.testing import CliRunner
from textual.drivers.linux_driver import LinuxDriver

from gpu_panel.__main__ import main
from gpu_panel.terminal.driver import PanelDriver

from ..conftest import patience, wait_for

FIRST_FRAME = """
import asyncio, sys
from gpu_panel.app import PanelApp
async def main():
    async with PanelApp().run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        screen = pilot.app.screen
        while screen.review is None:
            await pilot.pause(0.02)
asyncio.run(main())
bad = [m for m in ("torch", "numpy", "pandas", "tomlkit") if m in sys.modules]
sys.exit(f"imported: {bad}" if bad else 0)
"""


def test_opening_it_imports_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", FIRST_FRAME], capture_output=True, text=True,
                          timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]


def test_version_and_help():
    runner = CliRunner()
    assert "gpu-panel" in runner.invoke(main, ["--version"]).output
    assert "PRESET" in runner.invoke(main, ["--help"]).output


def test_without_a_terminal_it_says_so_in_one_line():
    done = subprocess.run([sys.executable, "-m", "gpu_panel"], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "needs a terminal" in done.stderr


class Terminal:
    """The real program on a pseudo-terminal of its own."""

    def __init__(
            self, *args: str, env: dict[str, str] | None=None, program: tuple[str,
            ...]=(sys.executable, '-m', 'gpu_panel')):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm-256color", **(env or {})})
            os.execv(program[0], [*program, *args])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        self.said = b""

    def until(self, what: bytes, seconds: float | None = None):
        """Read until it was sent, in one style or several."""
        end = time.monotonic() + (seconds or patience())
        while what not in self.said and what not in re.sub(rb"\x1b\[[\d;]*m", b"", self.said):
            assert time.monotonic() < end, f"{what!r} was not shown: {self.said[-2000:]!r}"
            if select.select([self.fd], [], [], 0.1)[0]:
                self.said += os.read(self.fd, 1 << 16)

    def forget(self):
        """Forget what was sent so far."""
        self.said = b""

    def end(self) -> int:
        """Read all output. Returns the exit status."""
        while True:
            try:
                more = os.read(self.fd, 1 << 16)
            except OSError:
                break
            if not more:
                break
            self.said += more
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_terminal_that_vanishes_ends_it_even_without_a_hangup_signal():
    fd, near = pty.openpty()
    fcntl.ioctl(near, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    # In a session of its own it has no controlling terminal, and so nobody sends SIGHUP.
    process = subprocess.Popen([sys.executable, "-m", "gpu_panel"], stdin=near, stdout=near,
                               stderr=near, start_new_session=True,
                               env={**os.environ, "TERM": "xterm-256color"})
    os.close(near)
    try:
        said = b""
        while b"Devices" not in said:
            said += os.read(fd, 1 << 16)
        os.close(fd)
        assert process.wait(patience()) == 128 + signal.SIGHUP
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("kind", ["xterm-256color", "dumb"])
def test_a_terminal_that_closes_ends_it(kind):
    """The kernel sends SIGHUP, and SIGCONT with it."""
    terminal = Terminal(env={"TERM": kind})
    terminal.until(b"32 global")
    os.close(terminal.fd)
    try:
        _, status = wait_for(lambda: (done := os.waitpid(terminal.pid, os.WNOHANG))[0] and done,
                             60)
        assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    except AssertionError:
        os.kill(terminal.pid, signal.SIGKILL)
        raise


def test_only_what_was_suspended_resumes(monkeypatch):
    """Else a second thread reads the terminal, and goes on when the panel has ended."""
    driver, done = PanelDriver.__new__(PanelDriver), []
    monkeypatch.setattr(LinuxDriver, "suspend_application_mode", lambda _: done.append("suspended"))
    monkeypatch.setattr(LinuxDriver, "resume_application_mode", lambda _: done.append("resumed"))
    driver._asleep = False
    driver.resume_application_mode()
    assert done == []
    driver.suspend_application_mode()
    driver.resume_application_mode()
    driver.resume_application_mode()
    assert done == ["suspended", "resumed"]


def test_a_signal_gives_the_terminal_back():
    terminal = Terminal()
    terminal.until(b"32 global")
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.end() == 128 + signal.SIGTERM
    assert b"\x1b[?1049l" in terminal.said
    assert re.search(rb"\x1b\[\?1003l", terminal.said)

def test_sleeping_and_waking_draws_the_whole_screen_again():
    terminal = Terminal()
    terminal.until(b"32 global")
    os.write(terminal.fd, b"\x1a")
    os.waitpid(terminal.pid, os.WUNTRACED)
    terminal.until(b"\x1b[?1049l")
    terminal.forget()
    os.kill(terminal.pid, signal.SIGCONT)
    terminal.until(b"What will run")
    terminal.until(b"CPU core 0")
    terminal.forget()
    os.write(terminal.fd, b"\x11")  # ctrl+q
    assert terminal.end() == 0
    assert b"\x1b[?1049l" in terminal.said


# --- What the first frame does not wait for ---


LATER = {"gpu_engine.launching.launcher", "gpu_engine.plan.records", "gpu_engine.runs.folder",
         "gpu_engine.events.schema", "gpu_engine.devices.leases", "gpu_engine.spec.schema",
         "gpu_panel.launch.draft", "gpu_panel.launch.fields", "gpu_panel.launch.run_feed",
         "gpu_panel.run.screen"}
"""Modules that take long to import and show nothing in the first frame."""


def test_what_takes_long_is_imported_after_the_first_frame():
    asked = "import sys, gpu_panel.__main__, gpu_panel.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert not LATER & set(done.stdout.split())
