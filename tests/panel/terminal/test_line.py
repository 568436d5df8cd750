"""The thread that writes, on a real pseudo-terminal."""

from __future__ import annotations

import os
import pty
import threading
import tty

import pytest

from gpu_panel.terminal.line import Line
from gpu_panel.terminal.pace import Pace

from ...conftest import patience
from .kit import BEGIN, END, ENTER, Emulator

SIZE = (60, 20)
ASK = b"\x1b[6n"


class Far:
    """A terminal at the far end of a line that may stand still: read by this process."""

    def __init__(self, *, answers: bool) -> None:
        self.fd, self.near = pty.openpty()
        tty.setraw(self.near)
        self.emulator = Emulator(SIZE)
        self.received = 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.read = threading.Condition()
        self.answers = answers
        self.line = Line(self.near, SIZE, Pace(answering=answers))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.line.start()

    def _run(self) -> None:
        while self.goes_on.wait():
            try:
                data = os.read(self.fd, 1024)
            except OSError:
                return
            with self.read:
                self.received += len(data)
                self.emulator.feed(data.decode("utf-8", "replace"))
                self.read.notify_all()
            if self.answers:
                for _ in range(data.count(ASK)):
                    self.line.answered()

    def shows(self, text: str) -> None:
        """Wait until the terminal shows the text."""
        with self.read:
            assert self.read.wait_for(lambda: text in self.emulator.text(), patience()), \
                self.emulator.text()

    def close(self) -> None:
        self.goes_on.set()
        self.line.finish()
        os.close(self.near)
        self._thread.join(patience())
        os.close(self.fd)


@pytest.fixture(params=[True, False], ids=["answers", "silent"])
def far(request):
    end = Far(answers=request.param)
    yield end
    end.close()


def frame(turn: int) -> str:
    """A picture of which every cell changes from turn to turn."""
    return "".join(f"\x1b[{row + 1};1H\x1b[38;2;{turn % 256};9;9m{f'turn {turn} ' * 9:.60}\x1b[0m"
                   for row in range(SIZE[1]))


def test_a_line_that_stands_still_holds_nobody_up_and_later_shows_only_the_newest(far):
    far.line.write(ENTER)
    far.line.write(frame(0))
    far.shows("turn 0 ")
    far.goes_on.clear()
    os.write(far.near, b"\x1b[1;1H")  # the reader is within its read: this ends it
    before = far.received
    for turn in range(1, 500):  # 600 kB, of which a pseudo-terminal takes some 20
        far.line.touched()
        far.line.write(BEGIN)
        far.line.write(frame(turn))
        far.line.write(END)
    far.goes_on.set()
    far.line.touched()
    far.shows("turn 499 " * 6)
    assert far.received - before < 100_000


def test_half_a_frame_is_never_sent(far):
    far.line.write(ENTER)
    far.line.write(BEGIN)
    far.line.write("\x1b[1;1Hfirst")
    far.line.write("\x07")  # wakes the thread, and is sent
    with far.read:
        assert far.read.wait_for(lambda: far.received >= len(ENTER) + 1, patience())
        assert "first" not in far.emulator.text()
    far.line.write("\x1b[2;1Hsecond")
    far.line.write(END)
    far.shows("first\nsecond")


def test_what_is_no_drawing_is_sent_in_its_order_and_to_the_last_byte(far):
    far.line.write(ENTER)
    far.line.write("\x1b[1;1Hhere")
    far.shows("here")
    far.line.settle(5.0)
    far.line.write("\x1b[1;1Hnever")
    far.line.write("\x1b[?1049l")
    far.line.write("\x1b[3;1H")
    far.line.finish()
    os.write(far.near, b"\x1b[2;1Hend")
    far.shows("end")
    assert "never" not in far.emulator.text()


def test_redraw_sends_what_the_program_has_drawn(far):
    far.line.write(ENTER)
    far.line.write("\x1b[1;1Hmine")
    far.shows("mine")
    os.write(far.near, b"\x1b[1;1Hsomething else")
    far.shows("something else")
    far.line.redraw()
    far.shows("mine")


def test_another_size_is_another_picture(far):
    far.line.write(ENTER)
    far.line.write("\x1b[1;1Hold")
    far.shows("old")
    with far.line._changed:  # an hour's bytes have been used up
        far.line._pace._urgent_until, far.line._pace._owed = 0.0, False
        far.line._pace._budget = -1e7
    far.line.resize((30, 5))
    far.line.write("\x1b[9;1Hgone\x1b[2;1Hold")
    far.line.write("\x1b[1;1Hnew")
    far.shows("new\nold")
    assert "gone" not in far.emulator.text()


def test_a_terminal_that_is_gone_ends_the_thread_quietly(capfd):
    far = Far(answers=False)
    far.line.write(ENTER)
    far.line.write("\x1b[1;1Hx")
    far.shows("x")
    os.close(far.near)
    far.line.touched()
    far.line.write("\x1b[1;1Hy")
    far.line.finish()
    os.close(far.fd)
    assert capfd.readouterr().err == ""


def test_at_the_end_it_waits_for_the_answer_that_the_shell_would_get():
    far = Far(answers=False)  # answered by hand here
    far.line = Line(far.near, SIZE, Pace())
    far.line.start()
    far.line.write(ENTER)
    far.line.write("\x1b[1;1Hasks")
    far.shows("asks")
    assert far.line.answered()
    far.line.write("\x1b[1;1Hasks again")
    far.shows("asks again")
    settled = threading.Event()
    thread = threading.Thread(target=lambda: (far.line.settle(patience()), settled.set()))
    thread.start()
    assert not settled.is_set()
    assert far.line.answered()
    assert settled.wait(patience())
    thread.join()
    assert not far.line.answered()
    far.close()


def test_a_bell_is_sent_between_frames_and_too_many_are_dropped(far):
    """Not in the midst of a frame's sequences, and not to a line that takes nothing."""
    assert not far.line.send("\a"), "the terminal does not show our screen"
    far.line.write(ENTER)
    far.line.write(BEGIN)
    far.line.write("\x1b[1;1Hhalf")
    assert far.line.send("\x1b]9;told\a")
    far.line.write("\x1b[2;1Hwhole" + END)
    far.line.write(END)
    far.shows("whole")
    assert "told" not in far.emulator.text()
    far.goes_on.clear()
    sent = [far.line.send("\x1b]9;" + "x" * 5000 + "\a") for _ in range(200)]
    assert not all(sent)
    far.goes_on.set()
    far.line.touched()
    far.line.write("\x1b[3;1Hafter")
    far.shows("after")
