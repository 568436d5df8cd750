"""The devices of a run, claimed: leased while it lives, and looked at before each start.

The lease keeps our own runs apart. Who else is on a GPU is seen by the driver alone, and may have
come since the run was planned, so it is asked once more when the lease is held.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from gpu_engine.common.places import leases_folder
from gpu_engine.devices import availability, leases, recheck
from gpu_engine.devices.records import Device, Sample
from gpu_engine.plan.records import LaunchPlan

TIMEOUT = 30.0
"""Seconds that the driver has for an answer: waking eight GPUs without persistence mode takes
half of it."""
PATIENCE = 2.0
"""Seconds in which what is in the way may go by itself: a process that ends just now."""
PATIENCE_AGAIN = 10.0
"""The same where our own ranks have just died there: the driver frees their memory over time."""

log = logging.getLogger(__name__)


def devices_of(plan: LaunchPlan) -> list[Device]:
    """Each device of a plan once."""
    used = {d.id: d for r in plan.ranks for d in r.devices}
    return [Device(d.id, _kind(d.id), d.label, uuid=d.uuid,
                   index=int(d.id) if d.id.isdigit() else None)
            for d in used.values()]


def shared(plan: LaunchPlan) -> bool:
    """Whether others may be on its devices: wished for, or CPU slots, which everything on the
    machine shares anyway."""
    return plan.spec.devices.share or plan.device_type == "cpu"


def take(plan: LaunchPlan, run_id: str) -> leases.Leases:
    """Hold the devices for as long as this process lives. Raises UserError with who has them."""
    return leases.acquire(leases_folder(), devices_of(plan), run_id, share=shared(plan))


def blocked(plan: LaunchPlan, *, again_on_them: bool,
            asked_to_end: Callable[[], bool]) -> str | None:
    """Why ranks can't start on the devices now; None: they can.

    `again_on_them`: ranks of this run were there before. A driver that does not answer blocks:
    ranks would wait in it beyond any signal. What the driver does not tell blocks nothing: it is
    logged as a doubt.
    """
    if shared(plan):
        return None
    devices, found = devices_of(plan), None
    end = time.monotonic() + (PATIENCE_AGAIN if again_on_them else PATIENCE)
    try:
        for samples in recheck.looks(plan.source, devices, TIMEOUT, asked_to_end):
            found = _first(samples)
            if found is None:
                for sample in samples:
                    for doubt in availability.doubts(sample):
                        log.warning("%s: %s", sample.device.name, doubt)
                return None
            if time.monotonic() >= end:
                break
    except recheck.NoAnswer as err:
        return (f"its GPUs can't be looked at before the start: {err}. With devices.share = true "
                "they are not looked at")
    return found


def _first(samples: tuple[Sample, ...]) -> str | None:
    for sample in samples:
        why = availability.in_the_way(sample)
        if sample.problem:
            return (f"{sample.device.name} can't be used: {why}. Take other devices, or look for "
                    "them anew (in the panel: c twice)")
        if why:
            return (f"{sample.device.name} is not free any more: {why}. Take other devices, wait, "
                    "or set devices.share = true")
    return None


def _kind(device_id: str) -> str:
    """The kind of a device as its id tells it: a slot is "cpu:0", a whole GPU a number."""
    if device_id.startswith("cpu:"):
        return "cpu"
    return "gpu" if device_id.isdigit() else "slice"
