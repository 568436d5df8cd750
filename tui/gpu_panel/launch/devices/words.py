"""What the devices pane says about the devices: title, notes and the runs on them. No widgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

from gpu_engine.common.clean import clean
from gpu_panel.common import units
from gpu_panel.launch.devices import lines, row_keys
from gpu_panel.launch.devices.lines import ORDERS, DeviceTable, Ours

if TYPE_CHECKING:
    from gpu_engine.common.errors import Problem
    from gpu_engine.devices.availability import Availability
    from gpu_engine.devices.records import Inventory
    from gpu_panel.launch.devices.source import DeviceSource
    from gpu_panel.launch.draft import Draft
    from gpu_panel.launch.runs.feed import RunLine


def of_runs(runs: Sequence[RunLine], now: float, hues: Mapping[str, int]) -> dict[str, Ours]:
    """Key of a device's row → the run of ours on it. `now`: Unix seconds. `hues`: of runs, by
    their ids."""
    return {device: Ours(run.id, rank, run.name, units.clock(now - run.created), hues[run.id])
            for run in runs for device, rank in run.devices}


def hues(runs: Sequence[RunLine], before: Mapping[str, int]) -> dict[str, int]:
    """The number of a hue, from 1, for each run that is on devices: that which it had `before`, or
    the lowest that no other has."""
    ids = [run.id for run in runs if run.devices]
    found = {run: before[run] for run in ids if run in before}
    free = (n for n in count(1) if n not in found.values())
    return found | {run: next(free) for run in reversed(ids) if run not in found}


def title(name: str, source: DeviceSource, table: DeviceTable) -> str:
    """The pane's title: how many devices are ticked and how many are free, and the order if it is
    not the usual one."""
    if source.inventory is None or not (source.inventory.devices or source.hosts):
        return name
    judged = [*(source.freedom or {}).values(),
              *(f for seen in source.hosts for f in seen.freedom.values())]
    counted = f" · {sum(f.free for f in judged)} free" if judged else ""
    order = f" · {ORDERS[table.order]}" if table.order != "index" else ""
    ranks = "" if lines.in_machines_order(table) else " · ranks in your order (r)"
    return f"{name} ─ {len(set(table.ticked))} ticked{counted}{order}{ranks}"


def notes(source: DeviceSource, draft: Draft | None, resolved: bool,
          problems: Sequence[Problem]) -> tuple[tuple[str, str], ...]:
    """Notes and problems about the devices, with their styles. `resolved`: whether the devices
    that the preset asks for have been looked up."""
    inventory, aside = source.inventory, source.gpus_aside
    asks = "You chose" if draft is not None and draft.ticked_before else "The preset asks for"
    found = [(f"{asks} {name}, which is not here", "warn")
             for name in (draft.absent if draft else ())]
    if source.hosts_problem is not None:
        found.append((f"! {clean(source.hosts_problem)}", "warn"))
    if aside:
        many = f"{aside} GPUs" if aside > 1 else "GPU"
        found.append((f"c shows this machine's {many} again", "dim"))
    if resolved and draft is not None and draft.ticked and draft.missing \
            and inventory is not None:
        there = min(draft.picks or 0, len(inventory.devices))
        if len(draft.ids) < there:
            found.append((_too_few(draft.picks or 0, there, inventory, source.freedom or {}),
                          "warn"))
    if row_keys.ANY in source.wanted:
        found.append(("You will be notified when any device is free (W)", "accent"))
    return (*found, *((f"✗ {p.message}", "bad") for p in problems))


def _too_few(asked: int, there: int, inventory: Inventory, freedom: Mapping[str, Availability]
             ) -> str:
    """Why fewer devices are ticked than the preset asks for: who has the first of the others, and
    what to do."""
    named = {d.id: d.label for d in inventory.devices}
    taken = [f"{named[name]}: {clean(f.reason)}" for name, f in freedom.items()
             if not f.free and name in named]
    free = sum(f.free for f in freedom.values())
    if free >= there or not taken:
        why = "a whole GPU and a MIG slice can't be combined" if free >= there else \
            "it is not known which are free"
        return f"The preset asks for the {asked} freest devices, but {why}; tick others yourself"
    more = f" (and {len(taken) - 1} more)" if len(taken) > 1 else ""
    return f"The preset asks for the {asked} freest devices, and {free or 'none'} of {there} " \
           f"{'are' if free > 1 else 'is'} free; {taken[0]}{more}. Tick others yourself, or Q " \
           "puts the run into the queue"
