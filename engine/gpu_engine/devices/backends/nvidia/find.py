"""Find NVIDIA GPUs and MIG slices through NVML.

This runs in the probe, never in the panel: any call here may hang.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import ModuleType
from typing import Any

from gpu_engine.devices.backends.nvidia import codes, visible
from gpu_engine.devices.backends.nvidia.calls import Calls, Trouble, code_of
from gpu_engine.devices.records import Device, Inventory


def load() -> ModuleType:
    """Import pynvml, which takes 46 ms. Raises ImportError, also if the package installed under
    that name is not NVIDIA's; the text says what to do."""
    import pynvml

    if hasattr(pynvml, "__path__"):  # NVIDIA's is a single file
        raise ImportError("the installed package 'pynvml' is not NVIDIA's: pip uninstall pynvml, "
                          "then pip install --force-reinstall nvidia-ml-py")
    return pynvml


def start() -> tuple[ModuleType | None, str | None]:
    """Start NVML. Returns (pynvml, None), or (None, why not). The reason is None too if the library
    is not installed: this machine then has no NVIDIA GPU.

    NVML is never shut down, as that crashes the process while another thread is inside a call. The
    system cleans up when the process ends.
    """
    try:
        nvml = load()
    except ImportError as error:
        return None, str(error)
    try:
        nvml.nvmlInit()
    except Exception as error:  # noqa: BLE001  pynvml makes its classes at run time
        code = code_of(error)
        return None, None if code == codes.LIBRARY_NOT_FOUND else codes.error(code)
    return nvml, None


def discover(nvml: ModuleType, nothing: Inventory, device_order: str | None, patience: float
             ) -> Inventory:
    """Find all GPUs and slices that may be offered. Returns `nothing` with them filled in.

    `device_order`: the value of CUDA_DEVICE_ORDER with which this program was started. A GPU that
    does not answer within `patience` seconds is listed with its number only.
    """
    inherited = nothing.inherited_visible
    calls = Calls(nvml)
    try:
        driver = text(calls.query("nvmlSystemGetDriverVersion"))
        version = calls.query("nvmlSystemGetCudaDriverVersion")
        count = calls.query("nvmlDeviceGetCount") or 0
    except Trouble as trouble:
        return replace(nothing, problem=str(trouble))
    problems: list[str] = []
    if not count and calls.last_error is not None:
        problems.append(codes.error(calls.last_error))
    found: list[Device] = []
    for index, (devices, problem) in enumerate(_all_at_once(nvml, count, patience)):
        found += devices
        if problem is not None:
            problems.append(f"GPU {index} {problem}")
    offered = visible.narrow(found, inherited)
    doubt = visible.order_doubt(found, inherited, device_order)
    if doubt:
        problems.append(doubt)
    if found and not offered:
        cure = "" if nothing.hidden else ": it takes numbers or UUIDs, as in 0,1"
        problems.append(f'CUDA_VISIBLE_DEVICES is "{inherited}" here, which makes none of the '
                        f"{len(found)} devices visible{cure}")
    over = visible.unread(offered, inherited)
    if over:
        problems.append(f'CUDA_VISIBLE_DEVICES is "{inherited}" here, and "{over}" of it is not '
                        "read: it takes numbers or UUIDs of devices that are there, as in 0,1")
    return replace(nothing, devices=offered, driver=driver,
                   cuda=f"{version // 1000}.{version % 1000 // 10}" if version else None,
                   problem="; ".join(problems) or None)


def handle_of(nvml: Any, device: Device) -> Any:
    """The driver's handle of a GPU; for a slice, that of its GPU. Raises `Trouble`.

    The UUID decides, as indices change when a card falls off the bus. NVML's search by UUID is not
    used: one lost GPU makes it fail for all others (nvml.h, nvmlDeviceGetHandleByUUID).
    """
    first = device.index or 0
    if device.uuid is None:
        return _handle_at(nvml, first)
    trouble: Trouble | None = None
    count = Calls(nvml).query("nvmlDeviceGetCount") or 0
    for index in (first, *(i for i in range(count) if i != first)):
        try:
            handle = _handle_at(nvml, index)
            if device.uuid in _uuids(nvml, device, handle):
                return handle
        except Trouble as own:
            if index == first or own.code in codes.START_AGAIN:
                trouble = own
    raise trouble or Trouble(codes.GONE)


def _handle_at(nvml: Any, index: int) -> Any:
    try:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    except Exception as error:  # noqa: BLE001  pynvml makes its classes at run time
        code = code_of(error)
        raise Trouble(codes.GONE if code in (2, 6) else code)


def _uuids(nvml: Any, device: Device, handle: Any) -> list[str | None]:
    calls = Calls(nvml)
    if not device.is_slice:
        return [text(calls.query("nvmlDeviceGetUUID", handle))]
    return [text(calls.query("nvmlDeviceGetUUID", h)) for _, h in slices_of(calls, handle)]


def slices_of(calls: Calls, parent: Any) -> list[tuple[int, Any]]:
    """(ordinal, handle) of each MIG slice of a GPU."""
    found = []
    for ordinal in range(calls.query("nvmlDeviceGetMaxMigDeviceCount", parent) or 0):
        handle = calls.query("nvmlDeviceGetMigDeviceHandleByIndex", parent, ordinal,
                             key=f"slice {ordinal}")
        if handle is not None:
            found.append((ordinal, handle))
    return found


def text(value: str | bytes | None) -> str | None:
    """A string from the driver, which is bytes in old versions of pynvml; None if it is empty."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return value or None


_Found = tuple[list[Device], str | None]
"""The devices that one GPU is offered as, and a problem that a person should know about."""


def _all_at_once(nvml: Any, count: int, patience: float) -> list[_Found]:
    """The devices at each index. Each GPU is read in a thread of its own: waking one can take
    seconds, and a call about one that hangs never returns."""
    found: dict[int, _Found] = {}

    def find_at(index: int) -> None:
        try:
            found[index] = _devices_at(nvml, index)
        except Exception as error:  # noqa: BLE001  the other GPUs must still be found
            found[index] = [_unread(index)], f"could not be read: {error!r}"

    threads = [threading.Thread(target=find_at, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + patience
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    late = f"has not answered for {patience:g} s (its driver may hang: see dmesg)"
    return [found.get(i) or ([_unread(i)], late) for i in range(count)]


def _unread(index: int) -> Device:
    """A GPU about which only its number is known."""
    return Device(str(index), "gpu", "NVIDIA GPU", index=index)


def _devices_at(nvml: Any, index: int) -> _Found:
    """The GPU at `index`; in MIG mode its slices instead, as CUDA can't use the whole GPU then."""
    calls = Calls(nvml)
    lost = _unread(index)
    try:
        handle = _handle_at(nvml, index)
        uuid = text(calls.query("nvmlDeviceGetUUID", handle))
        name = text(calls.query("nvmlDeviceGetName", handle)) or lost.name
        capability = calls.query("nvmlDeviceGetCudaComputeCapability", handle)
        mig = calls.query("nvmlDeviceGetMigMode", handle)
        capability = tuple(capability) if capability else None
        if not (mig and mig[0] == 1):
            return [Device(str(index), "gpu", name, index=index, uuid=uuid,
                           memory_total=memory_total(calls, handle), capability=capability)], None
        slices = []
        for ordinal, part in slices_of(calls, handle):
            own = Calls(nvml)
            part_uuid = text(own.query("nvmlDeviceGetUUID", part))
            if part_uuid is None:
                continue
            part_name = text(own.query("nvmlDeviceGetName", part)) or f"{name} MIG"
            slices.append(Device(  # the label is the name's last word
                part_uuid, "mig", f"{part_name} {index}:{ordinal}", index=index, uuid=part_uuid,
                memory_total=memory_total(own, part), capability=capability))
        return slices, None if slices else (
            "is in MIG mode and has no slice that can be used (create one with nvidia-smi mig, or "
            "switch MIG off)")
    except Trouble:
        return [lost], None  # the sampler will say what is wrong with it, and notice its return


def memory_total(calls: Calls, handle: Any) -> int | None:
    """Memory in bytes; None if the driver does not say, or the GPU has no memory of its own."""
    info = memory(calls, handle)
    return (info.total or None) if info is not None else None


def memory(calls: Calls, handle: Any) -> Any:
    """NVML's memory record: total, used, free and, with drivers since 510, reserved bytes."""
    return calls.query("nvmlDeviceGetMemoryInfo@nvmlMemory_v2", handle,
                       names=("nvmlDeviceGetMemoryInfo",), key="memory")
