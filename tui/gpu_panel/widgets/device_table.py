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
from gpu_panel.widgets.device_lines import ORDERS, Look
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
        """The person wants so many of the freest; None: ask how many."""

        count: int | None

    class WantOther(Message):
        """The person wants CPU slots in place of GPUs, or the GPUs again."""

    @dataclass
    class Details(Message):
        """The person wants the device under the cursor shown whole; `enter`: and to go there."""

        enter: bool

    class Highlighted(Message):
        """The cursor is on another device."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.look = Look()
        self.wanted: int | None = None
        """How many of the freest were asked for last."""
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
        order = f" · {ORDERS[look.order]}" if look.order != "index" else ""
        return f"Devices ─ {len(set(look.ticked))} ticked{said}{order}"

    def _stale(self, age: float | None) -> str:
        shot = self.look.snapshot
        if shot is not None and shot.problem:
            return clean(shot.problem, 60)
        return f"seen {age:.0f} s ago" if age is not None and age > STALE_AFTER else ""

    def watch_cursor(self, old: int, new: int) -> None:
        super().watch_cursor(old, new)
        self.post_message(self.Highlighted())

    def action_details(self, enter: bool) -> None:
        self.post_message(self.Details(enter))

    def action_other_kind(self) -> None:
        self.post_message(self.WantOther())

    def action_order(self) -> None:
        """Sort in the next way, and go to what is first then."""
        names = list(ORDERS)
        after = names[(names.index(self.look.order) + 1) % len(names)]
        self.look = replace(self.look, order=after)
        self.entitle(self._title(), self._titles[1])
        self.repaint()
        self.cursor = 0

    # --- ticking -------------------------------------------------------------------------------

    def action_tick(self) -> None:
        if self.key_at_cursor is not None:
            self._toggle(self.key_at_cursor)

    def action_tick_all(self) -> None:
        """All that can be used; where these are ticked already, none."""
        shot = self.look.snapshot
        bad = {s.device.id for s in shot.samples if s.problem} if shot is not None else set()
        able = [key for key in self._in_order if key not in bad]
        every = set(able) <= set(self.look.ticked)
        self.post_message(self.Ticked([] if every else able))

    def action_tick_free(self) -> None:
        self.post_message(self.WantFree(self.wanted or max(1, len(set(self.look.ticked)))))

    def action_count_free(self) -> None:
        self.post_message(self.WantFree(None))

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()
        self._toggle(event.key)

    def _toggle(self, key: str) -> None:
        ticked = set(self.look.ticked) ^ {key}
        self.wanted = None  # f goes by the ticks again
        self.post_message(self.Ticked([k for k in self._in_order if k in ticked]))

    @property
    def _in_order(self) -> list[str]:
        """Ids as the machine numbers them, however the table is sorted: ranks go by that."""
        return [d.id for d in self.look.inventory.devices] if self.look.inventory else []
