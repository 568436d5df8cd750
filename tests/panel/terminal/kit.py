"""Terminals as another program understands them: pyte's emulator."""

from __future__ import annotations

import pyte

ENTER, BEGIN, END = "\x1b[?1049h", "\x1b[?2026h", "\x1b[?2026l"


class Emulator:
    """What a terminal shows after what it was sent."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.screen = pyte.Screen(*size)
        self.screen.reset_mode(pyte.modes.DECAWM)  # as Textual does
        self._stream = pyte.Stream(self.screen)

    def feed(self, text: str) -> None:
        # pyte takes these for text.
        for mode in (BEGIN, END):
            text = text.replace(mode, "")
        self._stream.feed(text)

    def cells(self) -> list[list[tuple[object, ...]]]:
        """Every cell as it looks: the colour and weight of a space's text can't be seen."""
        return [[self._look(row, column) for column in range(self.screen.columns)]
                for row in range(self.screen.lines)]

    def _look(self, row: int, column: int) -> tuple[object, ...]:
        c = self.screen.buffer[row][column]
        lines = (c.underscore, c.strikethrough, c.reverse, c.blink)
        if c.data == " " and not any(lines):
            return " ", c.bg
        return c.data, c.bg, c.fg, c.bold, c.italics, *lines

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)
