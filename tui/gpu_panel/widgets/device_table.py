"""The device table: what there is, how busy it is, who is on it, what is ticked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from textual.binding import BindingType
from textual.message import Message

from gpu_engine.clean import clean
from gpu_panel import keys
from gpu_panel.widgets import device_lines
from gpu_panel.widgets.device_lines import Look
from gpu_panel.widgets.rows import Line, Row, Rows

STALE_AFTER = 3.0
"""Seconds after which the table says how old its figures are."""


class DeviceTable(Rows):
    """Two lines a device. What is ticked belongs to the screen: the table asks for changes."""

    HELP = """Tick what the run may use. The second line says who is on a device: free, a run of
ours with its rank, or another person's process. A device that isn't free can be ticked too;
the panel asks once more before it launches there."""
    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("devices")]

    @dataclass
    class Ticked(Message):
        """The person wants exactly these ticked, in the table's order."""

        ids: list[str]

    @dataclass
    class WantFree(Message):
        """The person wants so many of the freest."""

        count: int

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.look = Look()
        self.entitle("Devices")

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        return device_lines.build(self.look, width)

    def show(self, look: Look, age: float | None = None) -> None:
        """Draw `look`; `age`: seconds since a device was last read."""
        self.look = look
        self.entitle(self._title(), self._stale(age))
        self.repaint()

    def tick(self, ids: Sequence[str]) -> None:
        """Draw these as ticked, at once."""
        self.look = replace(self.look, ticked=tuple(ids))
        self.entitle(self._title(), self._titles[1])
        self.repaint()

    def _title(self) -> str:
        look = self.look
        if look.inventory is None or not look.inventory.devices:
            return "Devices"
        free = sum(f.free for f in (look.freedom or {}).values())
        said = f" · {free} free" if look.freedom else ""
        return f"Devices ─ {len(set(look.ticked))} ticked{said}"

    def _stale(self, age: float | None) -> str:
        shot = self.look.snapshot
        if shot is not None and shot.problem:
            return clean(shot.problem, 60)
        return f"seen {age:.0f} s ago" if age is not None and age > STALE_AFTER else ""

    # --- ticking -------------------------------------------------------------------------------

    def action_tick(self) -> None:
        if self.key_at_cursor is not None:
            self._toggle(self.key_at_cursor)

    def action_tick_all(self) -> None:
        every = set(self.keys) <= set(self.look.ticked)
        self.post_message(self.Ticked([] if every else self.keys))

    def action_tick_free(self) -> None:
        self.post_message(self.WantFree(max(1, len(set(self.look.ticked)))))

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()
        self._toggle(event.key)

    def _toggle(self, key: str) -> None:
        ticked = set(self.look.ticked) ^ {key}
        self.post_message(self.Ticked([k for k in self.keys if k in ticked]))
