"""The device table: what there is, how busy it is, who is on it, what is ticked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from textual.binding import BindingType
from textual.message import Message

from gpu_engine.common.clean import clean
from gpu_panel import keys
from gpu_panel.common.rows import Line, Row, Rows
from gpu_panel.launch.devices import lines as device_lines
from gpu_panel.launch.devices.lines import ORDERS, Look

STALE_AFTER = 3.0
"""Seconds after which the table says how old its figures are."""


class DeviceTable(Rows):
    """Two lines a device. What is ticked belongs to the screen: the table asks for changes."""

    HELP = """Tick what the run may use. The second line says who is on a device: free, a run of
ours with its rank, or another person's process. A device that isn't free can be ticked too;
the panel asks once more before it launches there. The order of ticking is the order of the ranks,
which stand with the devices: < and > move one, r puts them in the machine's order."""
    BINDINGS: ClassVar[list[BindingType]] = keys.bindings(keys.of("devices"))

    @dataclass
    class Ticked(Message):
        """The person wants exactly these ticked, in the order of the ranks."""

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
        ranks = "" if device_lines.in_machines_order(look) else " · ranks in your order (r)"
        return f"Devices ─ {len(set(look.ticked))} ticked{said}{order}{ranks}"

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
        more = [key for key in able if key not in self.look.ticked]
        self.post_message(self.Ticked([*self.look.ticked, *more] if more else []))

    def action_tick_free(self) -> None:
        self.post_message(self.WantFree(self.wanted or max(1, len(set(self.look.ticked)))))

    def action_count_free(self) -> None:
        self.post_message(self.WantFree(None))

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()
        self._toggle(event.key)

    def _toggle(self, key: str) -> None:
        ticked = [k for k in self.look.ticked if k != key]
        if key not in self.look.ticked:
            ticked.append(key)  # the next rank
        self.wanted = None  # f goes by the ticks again
        self.post_message(self.Ticked(ticked))

    def action_move_rank(self, by: int) -> None:
        """Give the device under the cursor the rank of its neighbour, and the neighbour its own."""
        ticked, key = list(self.look.ticked), self.key_at_cursor
        if key is None or key not in ticked:
            return
        at = ticked.index(key)
        to = at + by
        if 0 <= to < len(ticked):
            ticked[at], ticked[to] = ticked[to], ticked[at]
            self.post_message(self.Ticked(ticked))

    def action_sort_ranks(self) -> None:
        """The ranks in the order in which the machine numbers the devices."""
        numbers = {key: i for i, key in enumerate(self._in_order)}
        order = sorted(self.look.ticked, key=lambda key: numbers.get(key, len(numbers)))
        if order != list(self.look.ticked):
            self.post_message(self.Ticked(order))

    @property
    def _in_order(self) -> list[str]:
        """Ids as the machine numbers them, however the table is sorted."""
        return [d.id for d in self.look.inventory.devices] if self.look.inventory else []
