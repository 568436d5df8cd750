"""What a terminal shows, as cells: a character with its style. Pure.

Reads the little that Textual writes for a frame: moves of the cursor (CUP), styles (SGR) and text.
Everything else in a text is handed back as it is. Sources: ECMA-48; xterm's "Control Sequences".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias

from rich.cells import cell_len, get_character_cell_size

from gpu_panel.terminal.style import on_blank

Cell: TypeAlias = tuple[str, str]
"""(character, its style). The style is what stands between `ESC [` and `m` after a reset, for
example "1;38;2;0;0;0"; "" is the terminal's own. The character is "" in the right half of a wide
one, and has its combining characters with it."""

_MOVE = re.compile(r"\x1b\[(\d+);(\d+)H")
_TOKEN = re.compile(
    r"\x1b\[(?P<style>[\d;]*)m"
    r"|(?P<text>[^\x00-\x1f\x7f]+)"
    r"|(?P<line>\r?\n)"
    r"|(?P<sync>\x1b\[\?2026[hl])"
    # OSC and DCS with their content, any other CSI, any other escape, a control character.
    r"|(?P<other>\x1b[\]P][^\x1b\x07]*(?:\x07|\x1b\\)"
    r"|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[^\[]|[\x00-\x1f\x7f])")


def blank(width: int) -> list[Cell | None]:
    """A row of which nobody knows what it shows."""
    return [None] * width


@dataclass(slots=True)
class Picture:
    """What the program has drawn so far."""

    width: int
    height: int
    rows: list[list[Cell | None]] = field(init=False)
    drawn: dict[int, int] = field(init=False, default_factory=dict)
    """Rows that were drawn in and not yet sent, each with its turn. They may be as they were."""
    turn: int = 0
    """Goes up when the person does something."""
    _row: int = field(init=False, default=0)
    _column: int = field(init=False, default=0)
    _style: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self.rows = [blank(self.width) for _ in range(self.height)]

    @property
    def cursor(self) -> tuple[int, int]:
        """(row, column), counted from 0, where the program left the cursor."""
        return self._row, self._column

    def newest_first(self) -> list[int]:
        """The rows in `drawn`, those first that were drawn in since the person's last action, and
        among them those that have waited longest."""
        return sorted(self.drawn, key=lambda row: -self.drawn[row])

    def draw(self, text: str) -> list[str]:
        """Take in what the program writes. Returns what is no drawing, in its order."""
        first, *rest = _MOVE.split(text)
        others = self._draw(first)
        for row, column, piece in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
            self._row, self._column = int(row) - 1, int(column) - 1
            others += self._draw(piece)
        return others

    def _draw(self, text: str) -> list[str]:
        """`draw` for a text without moves of the cursor."""
        others: list[str] = []
        for token in _TOKEN.finditer(text):
            kind = token.lastgroup
            if kind == "text":
                self._put(token[0])
            elif kind == "style":
                given = token["style"]
                if given in ("", "0"):
                    self._style = ""
                else:
                    self._style = f"{self._style};{given}" if self._style else given
            elif kind == "line":
                self._row, self._column = self._row + 1, 0
            elif kind == "other":
                others.append(token[0])
        return others

    def _put(self, text: str) -> None:
        row, at, style = self._row, self._column, self._style
        if not 0 <= row < self.height or at >= self.width:
            return
        if text.isspace():
            style = on_blank(style)
        if len(text) == cell_len(text) and (text.isascii() or not _joins(text)):
            cells: list[Cell | None] = [(c, style) for c in text]
        else:
            cells = []
            for c in text:
                size = get_character_cell_size(c)
                if size == 0 and cells:
                    base = -1 if cells[-1] != ("", style) else -2
                    cells[base] = (_text(cells[base]) + c, style)
                elif size == 0:
                    continue
                else:
                    cells.append((c, style))
                    cells += [("", style)] * (size - 1)
        line = self.rows[row]
        end = min(at + len(cells), self.width)
        if at > 0 and _text(line[at]) == "" and line[at] is not None:  # right half is overwritten
            line[at - 1] = None
        line[at:end] = cells[:end - at]
        if end < self.width and line[end] is not None and _text(line[end]) == "":
            line[end] = None
        self._column = at + len(cells)
        if self.drawn.get(row) != self.turn:
            self.drawn.pop(row, None)
            self.drawn[row] = self.turn


def _text(cell: Cell | None) -> str:
    return cell[0] if cell is not None else ""


def _joins(text: str) -> bool:
    """Whether a character of the text has no width of its own."""
    return any(get_character_cell_size(c) != 1 for c in text)
