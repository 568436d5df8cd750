"""Read one GPU and its MIG slices again and again, with as few driver calls as possible.

Every second: utilisation, memory, power, clocks and throttle reasons, six calls. Every two seconds:
processes and temperature. Every ten: limits, modes and health. This runs in the probe, in a thread
for each GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gpu_engine.devices.backends.nvidia import codes, find
from gpu_engine.devices.backends.nvidia.calls import Calls, Trouble
from gpu_engine.devices.backends.protocol import DriverLost, Reader
from gpu_engine.devices.process_info import Owners
from gpu_engine.devices.records import Device, DeviceProcess, ProcessKind, Sample

PROCESSES_EVERY = 2.0
SLOW_EVERY = 10.0
_MHZ = 1_000_000
_LISTS: tuple[tuple[ProcessKind, str], ...] = (
    ("compute", "Compute"), ("mps", "MPSCompute"), ("graphics", "Graphics"))


class GpuReader(Reader):
    """Reads one physical GPU: the GPU itself, or its slices. Reading the bus rates takes 40 ms."""

    def __init__(self, driver: Any, devices: Sequence[Device], owners: Owners,
                 clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(devices)
        self._driver = driver
        self._owners = owners
        self._clock = clock
        self._start()

    def _start(self) -> None:
        """Forget everything that the driver said, and begin from nothing."""
        self._handle: Any = None
        self._calls = Calls(self._driver, self._clock)
        self._slices: dict[str, tuple[Any, Calls]] = {}
        self._next_processes = self._next_slow = float("-inf")
        self._last: dict[str, Sample] = {d.id: Sample(d) for d in self.devices}
        self._seen_until = 0

    def read(self) -> tuple[Sample, ...]:
        """Read a sample of the GPU, or of each slice. Raises `DriverLost`."""
        taken = time.time()
        try:
            if self._handle is None:
                self._open()
            return self._read(taken)
        except Trouble as trouble:
            self._start()  # the handle is void now: the next reading begins from nothing
            if trouble.code in codes.START_AGAIN:
                raise DriverLost(str(trouble))
            return tuple(Sample(d, problem=str(trouble), lost=trouble.code in codes.LOST,
                                taken=taken) for d in self.devices)

    def _open(self) -> None:
        self._handle = find.handle_of(self._driver, self.devices[0])
        if not self.devices[0].is_slice:
            return
        for _, handle in find.slices_of(self._calls, self._handle):
            calls = Calls(self._driver, self._clock)
            uuid = find.text(calls.query("nvmlDeviceGetUUID", handle))
            if uuid:
                self._slices[uuid] = (handle, calls)

    def _read(self, taken: float) -> tuple[Sample, ...]:
        now = self._clock()
        query, handle = self._calls.query, self._handle
        processes_due = now >= self._next_processes
        slow_due = now >= self._next_slow
        self._calls.answered, self._calls.last_error = 0, None
        whole: dict[str, Any] = {"taken": taken, **self._fast(query, handle)}
        if processes_due:
            warmth = query("nvmlDeviceGetTemperatureV", handle, 0,
                           names=("nvmlDeviceGetTemperature",))
            # "Unknown" reads as -1 in a signed field.
            whole["temperature"] = codes.within(warmth, 0, 200)
        if slow_due:
            whole.update(self._slow(query, handle))
        if not self._calls.answered and self._calls.last_error not in (None, *codes.REFUSALS):
            raise Trouble(self._calls.last_error or 999)
        samples = []
        for device in self.devices:
            if device.is_slice:
                values = self._slice(device, whole, processes_due)
            else:
                values = whole | _memory(self._calls, handle)
                if processes_due:
                    values["processes"] = self._processes(self._calls, handle)
                    values |= _pcie(query, handle) if self.bus else _NO_RATES
            sample = replace(self._last[device.id], **values)
            self._last[device.id] = sample
            samples.append(sample)
        # Set only now, so that a reading that failed is repeated in full.
        if processes_due:
            self._next_processes = now + PROCESSES_EVERY - 0.5
        if slow_due:
            self._next_slow = now + SLOW_EVERY - 0.5
        return tuple(samples)

    def _fast(self, query: Callable[..., Any], handle: Any) -> dict[str, Any]:
        rates = query("nvmlDeviceGetUtilizationRates", handle)
        power = query("nvmlDeviceGetPowerUsage", handle)
        reasons = query("nvmlDeviceGetCurrentClocksEventReasons", handle,
                        names=("nvmlDeviceGetCurrentClocksThrottleReasons",))
        return {
            "utilization": codes.share(rates.gpu) if rates is not None else None,
            "memory_utilization": codes.share(rates.memory) if rates is not None else None,
            "power": codes.within(power / 1000, 0, 10_000) if power is not None else None,
            "clock_sm": _clock(query("nvmlDeviceGetClockInfo", handle, 1, key="clock sm")),
            "clock_memory": _clock(query("nvmlDeviceGetClockInfo", handle, 2, key="clock memory")),
            "throttle": codes.throttle(reasons) if reasons is not None else None,
        }

    def _slow(self, query: Callable[..., Any], handle: Any) -> dict[str, Any]:
        limit = query("nvmlDeviceGetEnforcedPowerLimit", handle,
                      names=("nvmlDeviceGetPowerManagementLimit",))
        state = query("nvmlDeviceGetPerformanceState", handle)
        link = query("nvmlDeviceGetCurrPcieLinkGeneration", handle)
        fan = codes.within(query("nvmlDeviceGetFanSpeed", handle), 0, 200)
        persistence = query("nvmlDeviceGetPersistenceMode", handle)
        mode = query("nvmlDeviceGetComputeMode", handle)
        corrected = query("nvmlDeviceGetTotalEccErrors", handle, 0, 0, key="ecc corrected")
        uncorrected = query("nvmlDeviceGetTotalEccErrors", handle, 1, 0, key="ecc uncorrected")
        remapped = query("nvmlDeviceGetRemappedRows", handle)
        notes = []
        if persistence == 0:
            notes.append("persistence mode is off: the first start on it takes seconds longer")
        if mode in (1, 2, 3):
            notes.append(f"compute mode is {codes.COMPUTE_MODES[mode]}")
        return {
            "power_limit": codes.within(limit / 1000, 0, 10_000) if limit is not None else None,
            "fan": fan / 100 if fan is not None else None,
            "persistence": bool(persistence) if persistence is not None else None,
            "compute_mode": codes.COMPUTE_MODES.get(mode),
            "performance_state": codes.within(state, 0, 15),
            "ecc_corrected": corrected,
            "ecc_uncorrected": uncorrected,
            "health": _health(uncorrected, remapped, mode),
            "notes": tuple(notes),
            "clock_sm_max": _clock(query("nvmlDeviceGetMaxClockInfo", handle, 1, key="max sm")),
            "clock_memory_max": _clock(query("nvmlDeviceGetMaxClockInfo", handle, 2,
                                             key="max mem")),
            "pcie_generation": codes.within(link, 1, 15),
            "pcie_width": codes.within(query("nvmlDeviceGetCurrPcieLinkWidth", handle), 1, 64),
        }

    def _slice(self, device: Device, whole: dict[str, Any], processes_due: bool) -> dict[str, Any]:
        """A slice's own memory and processes, with the whole GPU's temperature, clocks and health.

        Utilisation and power stay unknown: NVML has no utilisation of slices (nvml.h,
        nvmlDeviceGetUtilizationRates), and all slices draw power together.
        """
        own = self._slices.get(device.uuid or "")
        if own is None:
            return {"problem": "this MIG slice is gone: the GPU was divided differently",
                    "lost": True, "taken": whole["taken"]}
        handle, calls = own
        values = whole | {"utilization": None, "memory_utilization": None, "power": None,
                          "power_limit": None}
        values |= _memory(calls, handle)
        if processes_due:
            values["processes"] = self._processes(calls, handle, shares=False)
        return values

    def _processes(self, calls: Calls, handle: Any, shares: bool = True
                   ) -> tuple[DeviceProcess, ...] | None:
        """The processes on the device; None if the driver does not say.

        NVML has one list each for compute, MPS and graphics. The last two count as empty if the
        device does not support them; without the compute list the answer is not known.
        """
        merged: dict[int, tuple[ProcessKind, int | None]] = {}
        for kind, name in _LISTS:
            function = f"nvmlDeviceGet{name}RunningProcesses"
            listed = calls.query(f"{function}_v3", handle, names=(f"{function}_v2", function),
                                 key=function)
            if listed is None:
                if kind == "compute" or not calls.refuses(function):
                    return None
                continue
            for entry in listed:
                memory: int | None = codes.within(entry.usedGpuMemory, 0, 1 << 48)
                before = merged.get(entry.pid)
                if before is None:  # a process can be in two lists; the first list decides
                    merged[entry.pid] = (kind, memory)
                elif before[1] is None:
                    merged[entry.pid] = (before[0], memory)
        used = self._shares(calls, handle) if shares and merged else {}
        return tuple(self._owners.process(pid, memory, kind, used.get(pid))
                     for pid, (kind, memory) in merged.items())

    def _shares(self, calls: Calls, handle: Any) -> dict[int, float | None]:
        """Each process's newest share of the GPU's time, from samples since the last reading."""
        samples = calls.query("nvmlDeviceGetProcessUtilization", handle, self._seen_until) or []
        newest: dict[int, Any] = {}
        for sample in samples:
            # Real drivers also return entries of pid 0, and samples older than requested.
            before = newest.get(sample.pid)
            since = self._seen_until if before is None else before.timeStamp
            if sample.pid and sample.timeStamp > since:
                newest[sample.pid] = sample
        if newest:
            self._seen_until = max(s.timeStamp for s in newest.values())
        return {pid: codes.share(s.smUtil) for pid, s in newest.items()}


def _memory(calls: Calls, handle: Any) -> dict[str, Any]:
    """Memory used, total and reserved, in bytes; unknown if the driver's figures contradict each
    other.

    GPUs that use the machine's memory (GB10, Jetson) have none of their own: the driver then does
    not support the query, or gives a total of 0.
    """
    info = find.memory(calls, handle)
    shared = calls.unsupported("memory") if info is None else not info.total
    total = codes.within(info.total, 1, 1 << 48) if info is not None else None
    if info is None or total is None or not 0 <= info.used <= total:
        return {"memory_used": None, "memory_total": total, "memory_reserved": None,
                "memory_is_hosts": shared}
    return {"memory_is_hosts": False, "memory_used": info.used, "memory_total": total,
            "memory_reserved": codes.within(getattr(info, "reserved", None), 0, total)}


_NO_RATES: dict[str, float | None] = {"pcie_sent": None, "pcie_received": None}


def _pcie(query: Callable[..., Any], handle: Any) -> dict[str, float | None]:
    """The bus rates in bytes per second. Each of the two calls measures for 20 ms and gives units
    of 1000 bytes (nvml.h, nvmlDeviceGetPcieThroughput)."""
    sent = query("nvmlDeviceGetPcieThroughput", handle, 0, key="pcie sent")
    received = query("nvmlDeviceGetPcieThroughput", handle, 1, key="pcie received")
    return {"pcie_sent": sent * 1000.0 if sent is not None else None,
            "pcie_received": received * 1000.0 if received is not None else None}


def _clock(megahertz: int | None) -> int | None:
    """A clock in Hz; None if the value can't be true."""
    return megahertz * _MHZ if megahertz is not None and 0 <= megahertz <= 20_000 else None


def _health(uncorrected: int | None, remapped: tuple[int, int, int, int] | None,
            mode: int | None) -> tuple[str, ...]:
    """The reasons not to use this GPU. `remapped`: the result of nvmlDeviceGetRemappedRows."""
    found = []
    if uncorrected:
        found.append(f"{uncorrected} uncorrected memory errors since the driver was loaded")
    if remapped is not None and remapped[3]:
        found.append("a broken memory row could not be replaced: the card should be exchanged")
    if remapped is not None and remapped[2]:
        found.append("a broken memory row waits to be replaced: the GPU must be reset")
    if mode == 2:
        found.append("compute mode is prohibited: no process may use it")
    return tuple(found)
