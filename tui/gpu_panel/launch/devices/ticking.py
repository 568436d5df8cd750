"""Which devices are ticked after a key: one more, all, the freest, in another order. No widgets.

Keys of rows are those of `row_keys`; the order of the ticked ones is the order of the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpu_panel.launch.devices import row_keys
from gpu_panel.launch.devices.freest import freest

if TYPE_CHECKING:
    from gpu_panel.launch.devices.source import DeviceSource


def toggled(ticked: Sequence[str], key: str) -> list[str]:
    """Without `key` if it is ticked; else with it as the next rank."""
    rest = [k for k in ticked if k != key]
    return rest if key in ticked else [*rest, key]


def all_or_none(source: DeviceSource, keys: Sequence[str], ticked: Sequence[str],
                host: str | None) -> list[str]:
    """All devices of one machine that can be used and that no run holds; if these are ticked
    already, none of its devices. Other machines' stay as they are. `keys`: those of all rows.
    `host`: None for this machine."""
    shot = source.snapshot_of(host)
    bad = {row_keys.of(host, s.device.id) for s in shot.samples if s.problem} \
        if shot is not None else set()
    more = [key for key in keys if key not in bad and key not in ticked
            and row_keys.split(key)[0] == host and why_not(source, key) is None
            and source.state_of(key) != "leased"]
    return [*ticked, *more] if more else [k for k in ticked if row_keys.split(k)[0] != host]


def why_not(source: DeviceSource, key: str) -> str | None:
    """Why this device can't be ticked; None if it can."""
    host, _ = row_keys.split(key)
    seen = next((s for s in source.hosts if s.host.name == host), None)
    return None if seen is None or seen.can_run else f"{seen.host.name}: {seen.reason}"


async def freest_of(source: DeviceSource, host: str | None, count: int) -> list[str] | None:
    """The freest devices of a machine, at most `count`; None while its devices are not known.
    Raises OSError if the leases can't be read."""
    inventory = source.inventory
    if inventory is None:
        return None
    if host is None:
        await source.judge()
        return [d.id for d in freest(count, inventory, source.looks, source.holders)]
    seen = next((s for s in source.hosts if s.host.name == host and s.can_run), None)
    return [row_keys.of(host, name) for name, f in seen.freedom.items() if f.free][:count] \
        if seen is not None else []


def moved(ticked: Sequence[str], key: str, by: int) -> list[str] | None:
    """The ranks of `key` and of its neighbour swapped; None if there is nothing to swap."""
    order = list(ticked)
    if key not in order:
        return None
    at = order.index(key)
    if not 0 <= at + by < len(order):
        return None
    order[at], order[at + by] = order[at + by], order[at]
    return order


def in_order(ticked: Sequence[str], keys: Sequence[str]) -> list[str]:
    """The ticked devices in the order of `keys`, those that are not there last."""
    numbers = {key: i for i, key in enumerate(keys)}
    return sorted(ticked, key=lambda key: numbers.get(key, len(numbers)))
