"""Claiming the devices of a run: they are leased as long as it lives, and checked before each
start.

The lease keeps our own runs apart, and those of all users if they share a folder. Only the driver
knows who else is on a GPU, and they may have come since the run was planned, so it is checked again
once the lease is held.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from gpu_engine.common.paths import leases_folder
from gpu_engine.devices import availability, leases
from gpu_engine.devices.leases import why_not
from gpu_engine.devices.records import Device, Sample
from gpu_engine.plan.records import LaunchPlan

TIMEOUT = 30.0
"""Seconds that the driver has to answer: waking eight GPUs without persistence mode takes half of
that."""
PATIENCE = 2.0
"""Seconds to wait for devices that are not free, as a process on them may just be ending."""
PATIENCE_AGAIN = 10.0
"""The same after our own ranks have died there: the driver takes time to free their memory."""

log = logging.getLogger(__name__)


def devices_of(plan: LaunchPlan) -> list[Device]:
    """The devices of a plan, each once."""
    used = {d.id: d for r in plan.ranks for d in r.devices}
    return [Device(d.id, _kind(d.id, d.uuid), d.label, uuid=d.uuid, cores=d.cores,
                   index=int(number) if (number := d.id.rpartition(":")[2]).isdigit() else None)
            for d in used.values()]


def acquire(plan: LaunchPlan, run_id: str) -> leases.Leases:
    """Lease the devices for as long as this process lives. Raises UserError, which says who holds
    them."""
    why = why_not()
    if why is not None:
        log.warning("%s", why)
    share = plan.spec.devices.share or plan.device_type == "cpu"
    return leases.acquire(leases_folder(), devices_of(plan), run_id, share=share)


def blocked(plan: LaunchPlan, *, again_on_them: bool,
            asked_to_end: Callable[[], bool]) -> str | None:
    """Why ranks can't start on the devices now; None if they can. A driver that does not answer is
    a reason, as ranks would hang in it, where no signal reaches them. Facts that it does not tell
    are logged. `again_on_them`: ranks of this run were on them before."""
    if plan.spec.devices.share or plan.device_type == "cpu":
        return None
    from gpu_engine.devices import discover  # late: on CPU slots there is nothing to ask

    devices, found = devices_of(plan), None
    end = time.monotonic() + (PATIENCE_AGAIN if again_on_them else PATIENCE)
    try:
        for samples in discover.readings(plan.source, devices, TIMEOUT, asked_to_end):
            found = _first(samples)
            if found is None:
                for sample in samples:
                    for doubt in availability.doubts(sample):
                        log.warning("%s: %s", sample.device.name, doubt)
                return None
            if time.monotonic() >= end:
                break
    except discover.NoAnswer as err:
        return (f"its GPUs can't be checked before the start: {err}. With devices.share = true "
                "they are not checked")
    return found


def _first(samples: tuple[Sample, ...]) -> str | None:
    for sample in samples:
        why = availability.in_the_way(sample)
        if sample.problem:
            return (f"{sample.device.name} can't be used: {why}. Take other devices, or search for "
                    "them again (in the panel: press c twice)")
        if why:
            return (f"{sample.device.name} is no longer free: {why}. Take other devices, wait, "
                    "or set devices.share = true")
    return None


def _kind(device_id: str, uuid: str | None) -> str:
    """The kind of a device: "cpu:0" is a CPU slot, and the id of a slice is its UUID."""
    if device_id.startswith("cpu:"):
        return "cpu"
    return "slice" if device_id == uuid else "gpu"
