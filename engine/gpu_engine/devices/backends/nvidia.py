"""NVIDIA's GPUs and MIG slices, through NVML.

Every second six things are asked of a GPU: utilisation, memory, power, two clocks and throttle
reasons. Every two seconds: processes and temperature. Every ten: limits, modes and health. To show
another figure is a row in one of the tables below. Everything but `present` and `environment` runs
in the probe, where a thread for each GPU may hang.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_engine.devices.backends import nvml, visible
from gpu_engine.devices.backends.registry import (
    PROCESSES_EVERY,
    SLOW_EVERY,
    Backend,
    DriverLost,
    GpuReader,
    Reader,
)
from gpu_engine.devices.host import Owners
from gpu_engine.devices.records import Device, DeviceProcess, Inventory, ProcessKind, Sample

NVML = "libnvidia-ml.so.1"
_MOST_MEMORY = 1 << 48
_COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")


def _percent(value: int) -> float:
    return value / 100


def _milli(value: int) -> float:
    return value / 1000


def _mega(value: int) -> int:
    return value * 1_000_000


_Row = tuple[str, str, tuple[int, ...], int, int, Callable[[int], object]]
"""A field of `Sample`, NVML's function and arguments, the lowest and the highest value that can be
true (drivers give 0xFFFFFFFF for "unknown"), and what turns it into the field's unit."""
_EACH_SECOND: tuple[_Row, ...] = (
    ("power", "nvmlDeviceGetPowerUsage", (), 0, 10_000_000, _milli),
    ("clock_sm", "nvmlDeviceGetClockInfo", (1,), 0, 20_000, _mega),
    ("clock_memory", "nvmlDeviceGetClockInfo", (2,), 0, 20_000, _mega),
)
_WITH_PROCESSES: tuple[_Row, ...] = (
    ("temperature", "nvmlDeviceGetTemperature", (0,), 0, 200, int),
)
_RARELY: tuple[_Row, ...] = (
    ("power_limit", "nvmlDeviceGetEnforcedPowerLimit", (), 0, 10_000_000, _milli),
    ("fan", "nvmlDeviceGetFanSpeed", (), 0, 200, _percent),
    ("persistence", "nvmlDeviceGetPersistenceMode", (), 0, 1, bool),
    ("compute_mode", "nvmlDeviceGetComputeMode", (), 0, 3, _COMPUTE_MODES.__getitem__),
    ("performance_state", "nvmlDeviceGetPerformanceState", (), 0, 15, int),
    ("ecc_corrected", "nvmlDeviceGetTotalEccErrors", (0, 0), 0, 1 << 63, int),
    ("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", (1, 0), 0, 1 << 63, int),
    ("clock_sm_max", "nvmlDeviceGetMaxClockInfo", (1,), 0, 20_000, _mega),
    ("clock_memory_max", "nvmlDeviceGetMaxClockInfo", (2,), 0, 20_000, _mega),
    ("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration", (), 1, 15, int),
    ("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", (), 1, 64, int),
)
_PROCESSES: tuple[tuple[ProcessKind, str], ...] = (
    ("compute", "Compute"), ("mps", "MPSCompute"), ("graphics", "Graphics"))


class Nvidia(Backend):
    """GPUs and MIG slices as NVML shows them."""

    name = "nvml"
    asks_driver = True
    variables = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    missing = "the NVIDIA driver library is no longer installed here"
    gone = nvml.GONE

    def present(self) -> bool:
        """Whether the driver's library is installed. It is opened, but nothing in it is called.

        LD_LIBRARY_PATH is searched too: the probe will use its present value, while the loader of
        this process still uses the value at its start.
        """
        import ctypes

        folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
        if any(Path(folder, NVML).exists() for folder in folders if folder):
            return True
        with contextlib.suppress(OSError):
            ctypes.CDLL(NVML)
            return True
        return False

    def discover(self, environ: Mapping[str, str], patience: float) -> Inventory:
        """Find the GPUs and MIG slices that CUDA_VISIBLE_DEVICES in `environ` makes visible."""
        nothing = self.nothing(environ)
        try:
            driver = nvml.start()
            if driver is None:
                return nothing
            version = driver.query("nvmlSystemGetCudaDriverVersion")
            count = driver.query("nvmlDeviceGetCount", default=0)
            if not count:
                driver.check()
        except (ImportError, nvml.Trouble) as error:
            return replace(nothing, problem=str(error))
        answers = _of_each_gpu(driver, count, patience)
        devices = [device for found, _ in answers for device in found]
        problems = [f"GPU {i} {problem}" for i, (_, problem) in enumerate(answers) if problem]
        inherited = nothing.inherited_visible
        offered = visible.cuda(devices, inherited)
        problems += filter(None, [
            visible.order_doubt(devices, inherited, environ.get("CUDA_DEVICE_ORDER"))])
        here, form = f'CUDA_VISIBLE_DEVICES is "{inherited}" here', "it takes numbers or UUIDs"
        if devices and not offered:
            problems.append(f"{here}, which makes no device visible"
                            + ("" if nothing.hidden else f": {form}, as in 0,1"))
        if over := visible.unread(offered, inherited):
            problems.append(f'{here}, and "{over}" of it is not read: {form} of devices that are '
                            "there, as in 0,1")
        return replace(nothing, devices=offered,
                       driver=driver.query("nvmlSystemGetDriverVersion"),
                       cuda=f"{version // 1000}.{version % 1000 // 10}" if version else None,
                       problem="; ".join(problems) or None)

    def open(self, devices: Sequence[Device]) -> Sequence[Reader]:
        """A reader for each GPU or slice. Raises `DriverLost`."""
        try:
            driver = nvml.start()
        except (ImportError, nvml.Trouble) as error:
            raise DriverLost(str(error)) from None
        if driver is None:
            raise DriverLost(self.missing)
        owners = Owners()
        return [NvmlReader(driver, device, owners) for device in devices]

    def environment(self, devices: Sequence[Device]) -> dict[str, str]:
        """CUDA_VISIBLE_DEVICES for these devices, and CUDA_DEVICE_ORDER=PCI_BUS_ID.

        Without the order CUDA numbers the fastest card first, while NVML, and so our ids, follow
        PCI order: on a machine with different cards the list would mean the wrong ones. The list
        holds indices, as much training code calls int() on it; a MIG slice has only its UUID.
        """
        if not devices:
            return {"CUDA_VISIBLE_DEVICES": ""}
        names = [str(d.uuid if d.is_slice else d.index) for d in devices]
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(names))}

    def hides_all(self, environ: Mapping[str, str]) -> bool:
        return visible.hides_all(environ.get("CUDA_VISIBLE_DEVICES"))


_Answer = tuple[list[Device], str | None]
"""The devices that one GPU is offered as, and a problem that a person should know about."""


def _of_each_gpu(driver: nvml.Handle, count: int, patience: float) -> list[_Answer]:
    """The devices at each index. Each GPU is asked in a thread of its own: waking one can take
    seconds, and a call about one that hangs never returns."""
    late = f"has not answered for {patience:g} s (its driver may hang: see dmesg)"
    unread = [Device(str(i), "gpu", "NVIDIA GPU", index=i) for i in range(count)]
    answers: list[_Answer] = [([device], late) for device in unread]

    def ask(index: int) -> None:
        try:
            answers[index] = _devices_at(driver, index)
        except nvml.Trouble:
            # The sampler will say what is wrong with it, and notice its return.
            answers[index] = [unread[index]], None
        except Exception as error:  # noqa: BLE001  the other GPUs must still be found
            answers[index] = [unread[index]], f"could not be read: {error!r}"

    threads = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + patience
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return list(answers)


def _devices_at(driver: nvml.Handle, index: int) -> _Answer:
    """The GPU at `index`; in MIG mode its slices instead, as CUDA can't use the whole GPU then."""
    gpu = driver.gpu(index)
    uuid = gpu.query("nvmlDeviceGetUUID") or None
    name = gpu.query("nvmlDeviceGetName") or "NVIDIA GPU"
    capability = tuple(gpu.query("nvmlDeviceGetCudaComputeCapability", default=())) or None
    if gpu.query("nvmlDeviceGetMigMode", default=(0,))[0] != 1:
        return [Device(str(index), "gpu", name, index=index, uuid=uuid, capability=capability,
                       memory_total=_memory(gpu)["memory_total"])], None
    slices = []
    for number, part in gpu.slices().items():
        if uuid := part.query("nvmlDeviceGetUUID"):
            model = part.query("nvmlDeviceGetName") or f"{name} MIG"
            slices.append(Device(  # the label is the name's last word
                uuid, "mig", f"{model} {index}:{number}", index=index, uuid=uuid,
                capability=capability, memory_total=_memory(part)["memory_total"]))
    return slices, None if slices else (
        "is in MIG mode and has no slice that can be used (create one with nvidia-smi mig, or "
        "switch MIG off)")


class NvmlReader(GpuReader):
    """Reads one GPU, or one MIG slice: its own memory and processes, and what its GPU says of its
    temperature, clocks and health."""

    def __init__(self, driver: nvml.Handle, device: Device, owners: Owners) -> None:
        self._driver, self._owners = driver, owners
        super().__init__(device)

    def forget(self) -> None:
        super().forget()
        self._gpu: nvml.Handle | None = None
        self._own: nvml.Handle | None = None
        """The device itself: the same, or the slice."""
        self._seen_until = 0
        """The time of the newest sample of the processes' shares, as the driver counts."""

    def read(self) -> tuple[Sample, ...]:
        """Read a sample. Raises `DriverLost`."""
        values: dict[str, Any] = {"taken": time.time()}
        try:
            if self._gpu is None or self._own is None:
                self._gpu, self._own = self._driver.find(self.device)
            self._gpu.begin()
            values |= self._figures(self._gpu)
            self._gpu.check()
            values |= _memory(self._own)
            if self.due(PROCESSES_EVERY):
                values["processes"] = self._processes(self._own)
            return self.update(values)
        except nvml.Trouble as trouble:
            # The handle is void now: the next reading begins from nothing.
            if trouble.start_again:
                raise DriverLost(str(trouble)) from None
            return self.failed(str(trouble), lost=trouble.lost)

    def _figures(self, gpu: nvml.Handle) -> dict[str, Any]:
        """What is known of a whole GPU."""
        values = _values(gpu, _EACH_SECOND)
        reasons = gpu.query("nvmlDeviceGetCurrentClocksEventReasons")
        values["throttle"] = None if reasons is None else nvml.throttle(reasons)
        # NVML has no utilisation of slices, and all slices draw power together.
        if self.device.is_slice:
            values["power"] = None
        else:
            rates = gpu.query("nvmlDeviceGetUtilizationRates")
            values |= {"utilization": _share(rates and rates.gpu),
                       "memory_utilization": _share(rates and rates.memory)}
        if self.due(PROCESSES_EVERY):
            values |= _values(gpu, _WITH_PROCESSES)
        if self.due(SLOW_EVERY):
            values |= _values(gpu, _RARELY)
            values |= _remarks(values, gpu.query("nvmlDeviceGetRemappedRows"))
            if self.device.is_slice:
                values["power_limit"] = None
        return values

    def _processes(self, handle: nvml.Handle) -> tuple[DeviceProcess, ...] | None:
        """The processes on the device; None if the driver does not say.

        NVML has one list each for compute, MPS and graphics. The last two count as empty if the
        device does not support them; without the compute list the answer is not known.
        """
        listed: dict[int, tuple[ProcessKind, int | None]] = {}
        for kind, name in _PROCESSES:
            function = f"nvmlDeviceGet{name}RunningProcesses"
            entries = handle.query(function)
            if entries is None and (kind == "compute" or not handle.refuses(function)):
                return None
            for entry in entries or ():
                # A process can be in two lists: the first decides, unless only the second knows.
                first, memory = listed.get(entry.pid, (kind, None))
                listed[entry.pid] = first, _within(entry.usedGpuMemory, 0, _MOST_MEMORY) \
                    if memory is None else memory
        shares: dict[int, float | None] = {}
        if listed and not self.device.is_slice:
            # Real drivers also return entries of pid 0, and samples older than requested.
            samples = handle.query("nvmlDeviceGetProcessUtilization", self._seen_until, default=())
            newest = self._seen_until
            for sample in sorted(samples, key=lambda s: -s.timeStamp):
                if sample.pid and sample.timeStamp > self._seen_until:
                    shares.setdefault(sample.pid, _share(sample.smUtil))
                    newest = max(newest, sample.timeStamp)
            self._seen_until = newest
        return tuple(self._owners.process(pid, memory, kind, shares.get(pid))
                     for pid, (kind, memory) in listed.items())


def _values(handle: nvml.Handle, rows: Iterable[_Row]) -> dict[str, Any]:
    """The fields of a table, None where the driver gives nothing that can be true."""
    found = {}
    for field, function, args, least, most, unit in rows:
        value = _within(handle.query(function, *args), least, most)
        found[field] = None if value is None else unit(value)
    return found


def _remarks(values: Mapping[str, Any], remapped: Sequence[int] | None) -> dict[str, Any]:
    """What is wrong with the hardware, and what a person should know. `remapped`: the result of
    nvmlDeviceGetRemappedRows."""
    health, notes, mode = [], [], values["compute_mode"]
    if errors := values["ecc_uncorrected"]:
        health.append(f"{errors} uncorrected memory errors since the driver was loaded")
    if remapped and remapped[3]:
        health.append("a broken memory row could not be replaced: the card should be exchanged")
    if remapped and remapped[2]:
        health.append("a broken memory row waits to be replaced: the GPU must be reset")
    if mode == "prohibited":
        health.append("compute mode is prohibited: no process may use it")
    if values["persistence"] is False:
        notes.append("persistence mode is off: the first start on it takes seconds longer")
    if mode not in (None, "default"):
        notes.append(f"compute mode is {mode}")
    return {"health": tuple(health), "notes": tuple(notes)}


def _memory(handle: nvml.Handle) -> dict[str, Any]:
    """Memory used, total and, with drivers since 510, reserved, in bytes; unknown if the driver's
    figures contradict each other.

    GPUs that use the machine's memory (GB10, Jetson) have none of their own: the driver then does
    not support the query, or gives a total of 0.
    """
    info = handle.query("nvmlDeviceGetMemoryInfo")
    total = _within(info and info.total, 1, _MOST_MEMORY)
    used = total and _within(info.used, 0, total)
    hosts = not info.total if info is not None else handle.unsupported("nvmlDeviceGetMemoryInfo")
    return {"memory_used": used, "memory_total": total, "memory_is_hosts": hosts,
            "memory_reserved": None if not total or used is None else _within(
                getattr(info, "reserved", None), 0, total)}


def _within(value: int | None, least: int, most: int) -> int | None:
    return value if value is not None and least <= value <= most else None


def _share(percent: int | None) -> float | None:
    """A percentage as a share; None if it can't be true (4000000 was seen)."""
    share = _within(percent, 0, 100)
    return None if share is None else share / 100
