"""Read one AMD card, and the partitions it is divided into, again and again.

Every second: utilisation, memory, power and clocks. Every two seconds: processes and temperature.
Every ten: limits, fan, link and memory errors. This runs in the probe, in a thread for each card.
A card that sleeps is not woken.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gpu_engine.devices.backends.amd import find
from gpu_engine.devices.backends.amd.find import Found
from gpu_engine.devices.backends.protocol import DriverLost, Reader
from gpu_engine.devices.backends.sysfs import Look, Tree, names_in, whole
from gpu_engine.devices.process_info import Owners
from gpu_engine.devices.records import Device, DeviceProcess, Sample

PROCESSES_EVERY = 2.0
SLOW_EVERY = 10.0
ASLEEP = "it sleeps, and the first process that uses it wakes it"
HELD = 64 << 20
"""Bytes of its memory from which a process without a queue counts as being on a device. ROCm
prepares a little on every device that it sees, also on those that the process never uses."""

_GONE = "GPU is gone: the driver no longer lists it"
_LOST = ("GPU is lost: the driver can't reach it (see dmesg; a reset of the GPU or a reboot brings "
         "it back)")
_RESET = "the driver is busy with it (a reset?): see dmesg"
_MOST_MEMORY = 1 << 48
_MOST_CLOCK = 20_000_000_000
# The same files for all cards of one kind: edge is what others call the GPU's temperature, and
# cards without a cooler of their own (Instinct) have the hottest place only.
_TEMPERATURES = ("edge", "junction")
# GT/s of PCI Express by generation, as the kernel writes them.
_SPEEDS = {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "8": 3, "16.0": 4, "16": 4, "32.0": 5, "32": 5,
           "64.0": 6, "64": 6}


class CardReader(Reader):
    """Reads one card: the GPU itself, or its partitions."""

    def __init__(self, tree: Tree, devices: Sequence[Device], owners: Owners,
                 clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(devices)
        self._tree, self._owners, self._clock = tree, owners, clock
        self._start()

    def _start(self) -> None:
        """Forget what was read, and begin from nothing."""
        self._found: dict[str | None, Found] = {}
        self._sensors: str | None = None
        self._next_processes = self._next_slow = float("-inf")
        self._last = {d.id: Sample(d) for d in self.devices}

    def read(self) -> tuple[Sample, ...]:
        """Read a sample of the card, or of each partition. Raises `DriverLost`."""
        taken = time.time()
        if not names_in(self._tree.kfd / "topology/nodes"):
            raise DriverLost("the amdgpu driver is not loaded any more")
        if not self._known():
            self._start()
            self._found = {f.device.uuid: f for f in find.find(self._tree)[0]
                           if f.device.uuid in [d.uuid for d in self.devices]}
        first = next(iter(self._found.values()), None)
        if first is None:
            return self._problem(_GONE, taken, lost=True)
        forbidden = self._forbidden(first)
        if forbidden is not None:
            return self._problem(forbidden, taken, lost=True)
        look = Look(self._tree, self._tree.pci / first.card)
        if find.asleep(look):
            return self._asleep(look, taken)
        return self._awake(look, taken)

    def _known(self) -> bool:
        """Whether all devices are known, and still where they were."""
        return len(self._found) == len(self.devices) and all(
            Look(self._tree, self._tree.node(f.node)).text("gpu_id") == str(f.gpu_id)
            for f in self._found.values())

    def _forbidden(self, first: Found) -> str | None:
        """Why this user can't use the card at all; None if they can."""
        for name in ("kfd", f"dri/{first.render}"):
            path = self._tree.root / "dev" / name
            if not path.exists():
                return (f"/dev/{name} is not there (a container needs --device=/dev/kfd "
                        "--device=/dev/dri)")
            if not self._tree.usable(path):
                return (f"this user may not use /dev/{name} (sudo usermod -aG render,video $USER, "
                        "then log in again)")
        return None

    def _problem(self, why: str, taken: float, *, lost: bool) -> tuple[Sample, ...]:
        self._start()
        return tuple(Sample(d, problem=why, lost=lost, taken=taken) for d in self.devices)

    def _asleep(self, look: Look, taken: float) -> tuple[Sample, ...]:
        """Samples of a card without power: it does nothing, which is known without reading it. How
        much of its memory is taken the driver keeps count of itself."""
        samples = []
        for device in self.devices:
            found, hosts = self._found.get(device.uuid), self._last[device.id].memory_is_hosts
            memory: dict[str, Any] = {"memory_total": device.memory_total} if hosts or not found \
                or found.partitions > 1 else _memory(look)
            samples.append(Sample(
                device, utilization=0.0, taken=taken, memory_is_hosts=hosts, notes=(ASLEEP,),
                processes=self._processes(found, awake=False) if found else None, **memory))
            self._last[device.id] = Sample(device, memory_is_hosts=hosts)
        self._next_processes = self._next_slow = float("-inf")
        return tuple(samples)

    def _awake(self, look: Look, taken: float) -> tuple[Sample, ...]:
        now = self._clock()
        processes_due, slow_due = now >= self._next_processes, now >= self._next_slow
        if slow_due or self._sensors is None:
            self._sensors = find.sensors_of(look)
        look.answered, look.errors = 0, set()
        card: dict[str, Any] = {"taken": taken, "problem": None, "lost": False,
                                 **_fast(look, self._sensors)}
        if not look.answered:
            if find.asleep(look):  # it has just fallen asleep
                return self._asleep(look, taken)
            if look.errors & {errno.ENODEV, errno.ENXIO, errno.EIO}:
                return self._problem(_LOST, taken, lost=True)
            if look.errors & {errno.EBUSY, errno.EAGAIN}:
                return self._problem(_RESET, taken, lost=False)
        if processes_due:
            card["temperature"] = _temperature(look, self._sensors)
        if slow_due:
            card |= _slow(look, self._sensors)
        samples = []
        for device in self.devices:
            found = self._found.get(device.uuid)
            if found is None:
                samples.append(Sample(device, problem=_GONE, lost=True, taken=taken))
                continue
            values = dict(card)
            if processes_due:
                values["processes"] = self._processes(found)
            if found.partitions > 1:
                given = values.get("processes", self._last[device.id].processes)
                values |= _of_a_partition(device, given)
            if values.get("memory_is_hosts", self._last[device.id].memory_is_hosts):
                values |= {"memory_used": None, "memory_total": None}
            sample = replace(self._last[device.id], **values)
            self._last[device.id] = sample
            samples.append(sample)
        # Set only now, so that a reading that failed is repeated in full.
        if processes_due:
            self._next_processes = now + PROCESSES_EVERY - 0.5
        if slow_due:
            self._next_slow = now + SLOW_EVERY - 0.5
        return tuple(samples)

    def _processes(self, found: Found, awake: bool = True) -> tuple[DeviceProcess, ...] | None:
        """The processes on a device; None if the driver does not say.

        The KFD lists every process that has opened it, on every GPU. On this one is who has a queue
        there, or holds memory of it worth mentioning.
        """
        folder = self._tree.kfd / "proc"
        if not folder.is_dir():
            return None
        present = []
        for name in names_in(folder):
            if not name.isdecimal():
                continue
            look = Look(self._tree, folder / name)
            memory = look.number(f"vram_{found.gpu_id}", _MOST_MEMORY)
            queues = any(look.text(f"queues/{q}/gpuid") == str(found.gpu_id)
                         for q in names_in(folder / name / "queues"))
            if not queues and (memory or 0) < HELD:
                continue
            busy = None
            if awake and found.units:  # this asks the hardware
                busy = look.number(f"stats_{found.gpu_id}/cu_occupancy", found.units * 2)
            share = min(1.0, busy / found.units) if busy is not None and found.units else None
            present.append(self._owners.process(int(name), memory, "compute", share))
        return tuple(present)


def _fast(look: Look, sensors: str | None) -> dict[str, Any]:
    busy = look.number("gpu_busy_percent", 100)
    memory_busy = look.number("mem_busy_percent", 100)
    values: dict[str, Any] = {
        "utilization": busy / 100 if busy is not None else None,
        "memory_utilization": memory_busy / 100 if memory_busy is not None else None,
        **_memory(look),
        "power": None, "clock_sm": None, "clock_memory": None,
    }
    if sensors is not None:
        power = look.number(f"{sensors}/power1_average", 10_000_000_000)
        if power is None:  # newer cards and kernels have the figure of the moment instead
            power = look.number(f"{sensors}/power1_input", 10_000_000_000)
        values |= {"power": power / 1e6 if power is not None else None,
                   "clock_sm": look.number(f"{sensors}/freq1_input", _MOST_CLOCK),
                   "clock_memory": look.number(f"{sensors}/freq2_input", _MOST_CLOCK)}
    return values


def _memory(look: Look) -> dict[str, Any]:
    total = look.number("mem_info_vram_total", _MOST_MEMORY, 1)
    used = look.number("mem_info_vram_used", _MOST_MEMORY)
    if total is None or used is None or used > total:
        return {"memory_used": None, "memory_total": total}
    return {"memory_used": used, "memory_total": total}


def _temperature(look: Look, sensors: str | None) -> float | None:
    """Degrees of the GPU's edge, or else of its hottest place; the files hold thousandths."""
    if sensors is None:
        return None
    found: dict[str, int | None] = {}
    for number in (1, 2, 3):
        label = look.text(f"{sensors}/temp{number}_label") or ("edge" if number == 1 else "")
        found[label] = look.number(f"{sensors}/temp{number}_input", 200_000)
    value = next((v for n in _TEMPERATURES if (v := found.get(n)) is not None), None)
    return value / 1000 if value is not None else None


def _slow(look: Look, sensors: str | None) -> dict[str, Any]:
    hosts = find.uses_the_hosts_memory(look)
    values: dict[str, Any] = {"memory_is_hosts": hosts, "power_limit": None, "fan": None}
    if sensors is not None:
        limit = look.number(f"{sensors}/power1_cap", 10_000_000_000, 1)
        turns = look.number(f"{sensors}/pwm1", 255)
        values |= {"power_limit": limit / 1e6 if limit is not None else None,
                   "fan": turns / 255 if turns is not None else None}
    speed = (look.text("current_link_speed") or "").partition(" ")[0]
    errors = {key.strip(): whole(count.strip(), 1 << 63) for key, _, count in (
        line.partition(":") for line in (look.text("ras/umc_err_count") or "").splitlines())}
    corrected, uncorrected = errors.get("ce"), errors.get("ue")
    return values | {
        "pcie_generation": _SPEEDS.get(speed),
        "pcie_width": look.number("current_link_width", 64, 1),
        "clock_sm_max": _highest(look.text("pp_dpm_sclk")),
        "clock_memory_max": _highest(look.text("pp_dpm_mclk")),
        "ecc_corrected": corrected,
        "ecc_uncorrected": uncorrected,
        "health": (f"{uncorrected} uncorrected memory errors since the driver was loaded",)
        if uncorrected else (),
    }


def _highest(levels: str | None) -> int | None:
    """The highest clock of a list such as "0: 500Mhz", in Hz."""
    clocks = []
    for line in (levels or "").splitlines():
        value = line.partition(":")[2].strip().rstrip("* ").lower().removesuffix("mhz")
        number = whole(value, 20_000, 1)
        if number is not None:
            clocks.append(number * 1_000_000)
    return max(clocks, default=None)


def _of_a_partition(device: Device, processes: tuple[DeviceProcess, ...] | None
                    ) -> dict[str, Any]:
    """What replaces the card's figures in the sample of a partition.

    The driver has utilisation, memory and power of whole cards only. The share of a partition's
    compute units that its processes occupy tells how much it is used, if all of them tell it.
    """
    shares = [p.utilization for p in processes or ()]
    known = processes is not None and None not in shares
    used = [p.memory for p in processes or ()]
    return {
        "utilization": min(1.0, sum(s or 0.0 for s in shares)) if known else None,
        "memory_utilization": None,
        "memory_used": sum(m or 0 for m in used)
        if processes is not None and None not in used else None,
        "memory_total": device.memory_total,
        "power": None,
        "power_limit": None,
    }
