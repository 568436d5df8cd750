"""Find NVIDIA GPUs and MIG slices through NVML, once.

Runs in the probe's process, never in the panel's: any call here may take for ever.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import ModuleType
from typing import Any

from gpu_engine.devices.backends.nvidia import visible, words
from gpu_engine.devices.backends.nvidia.calls import Calls, Trouble, code_of
from gpu_engine.devices.records import Device, Inventory


def load() -> ModuleType:
    """pynvml, imported on first need (46 ms). Raises ImportError in words for a wrong package."""
    import pynvml

    if not hasattr(pynvml, "_nvmlGetFunctionPointer"):
        raise ImportError(
            "the installed package 'pynvml' is not NVIDIA's: pip uninstall pynvml, then "
            "pip install --force-reinstall nvidia-ml-py"
        )
    return pynvml


def start() -> tuple[ModuleType | None, str | None]:
    """NVML, ready to be asked; or None, and why. Where the library is not installed there is
    nothing to say: this machine has no NVIDIA GPU.

    NVML is never shut down: the process ends, and the system takes it back. A shutdown while
    another thread is inside a call crashes the process.
    """
    try:
        nvml = load()
    except ImportError as error:
        return None, str(error)
    try:
        nvml.nvmlInit()
    except Exception as error:  # noqa: BLE001  pynvml makes its classes at run time
        code = code_of(error)
        return None, None if code == words.LIBRARY_NOT_FOUND else words.error(code)
    return nvml, None


def look(
    nvml: ModuleType, nothing: Inventory, device_order: str | None, patience: float
) -> Inventory:
    """All GPUs that may be offered: `nothing` with what was found.

    `device_order` is CUDA_DEVICE_ORDER as this program was started with. A GPU that does not
    answer within `patience` seconds is listed without what is not known of it, and holds up no
    other.
    """
    inherited = nothing.inherited_visible
    calls = Calls(nvml)
    try:
        driver = text(calls.ask("nvmlSystemGetDriverVersion"))
        version = calls.ask("nvmlSystemGetCudaDriverVersion")
        count = calls.ask("nvmlDeviceGetCount") or 0
    except Trouble as trouble:
        return replace(nothing, problem=str(trouble))
    problems: list[str] = []
    if not count and calls.last_error is not None:
        problems.append(words.error(calls.last_error))
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
        problems.append(
            f'CUDA_VISIBLE_DEVICES is "{inherited}" here, which lets through none of the '
            f"{len(found)} devices"
        )
    return replace(
        nothing,
        devices=offered,
        driver=driver,
        cuda=f"{version // 1000}.{version % 1000 // 10}" if version else None,
        problem="; ".join(problems) or None,
    )


def handle_of(nvml: Any, device: Device) -> Any:
    """The driver's handle of a GPU (of the parent for a slice); raises `Trouble`.

    An index changes when a card before it falls off the bus, so the UUID decides. Not asked by
    UUID, as one lost GPU makes that fail for all others (nvml.h, nvmlDeviceGetHandleByUUID).
    """
    first = device.index or 0
    if device.uuid is None:
        return _handle_at(nvml, first)
    trouble: Trouble | None = None
    count = Calls(nvml).ask("nvmlDeviceGetCount") or 0
    for index in (first, *(i for i in range(count) if i != first)):
        try:
            handle = _handle_at(nvml, index)
            if device.uuid in _uuids(nvml, device, handle):
                return handle
        except Trouble as own:
            if index == first or own.code in words.START_AGAIN:
                trouble = own
    raise trouble or Trouble(words.GONE)


def _handle_at(nvml: Any, index: int) -> Any:
    try:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    except Exception as error:  # noqa: BLE001  pynvml makes its classes at run time
        code = code_of(error)
        raise Trouble(words.GONE if code in (2, 6) else code)


def _uuids(nvml: Any, device: Device, handle: Any) -> list[str | None]:
    calls = Calls(nvml)
    if not device.is_slice:
        return [text(calls.ask("nvmlDeviceGetUUID", handle))]
    return [text(calls.ask("nvmlDeviceGetUUID", h)) for _, h in slices_of(calls, handle)]


def slices_of(calls: Calls, parent: Any) -> list[tuple[int, Any]]:
    """Ordinal and handle of the MIG slices of a GPU."""
    found = []
    for ordinal in range(calls.ask("nvmlDeviceGetMaxMigDeviceCount", parent) or 0):
        handle = calls.ask(
            "nvmlDeviceGetMigDeviceHandleByIndex", parent, ordinal, key=f"slice {ordinal}"
        )
        if handle is not None:
            found.append((ordinal, handle))
    return found


def text(value: str | bytes | None) -> str | None:
    """A driver's string; None for an empty one. Old pynvml versions give bytes."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return value or None


_Found = tuple[list[Device], str | None]
"""The devices that one GPU is offered as, and what a person should know about that."""


def _all_at_once(nvml: Any, count: int, patience: float) -> list[_Found]:
    """What is at each index. Each GPU is asked in a thread of its own: waking one can take seconds,
    and a call about one that hangs never returns."""
    found: dict[int, _Found] = {}

    def ask(index: int) -> None:
        try:
            found[index] = _devices_at(nvml, index)
        except Exception as error:  # noqa: BLE001  one GPU's oddity is not the others'
            found[index] = [_unread(index)], f"could not be read: {error!r}"

    threads = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + patience
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    late = f"has not answered for {patience:g} s (its driver may hang: see dmesg)"
    return [found.get(i) or ([_unread(i)], late) for i in range(count)]


def _unread(index: int) -> Device:
    """A GPU of which nothing is known but its number."""
    return Device(str(index), "gpu", "NVIDIA GPU", index=index)


def _devices_at(nvml: Any, index: int) -> _Found:
    """The GPU at `index`, or its slices where it is cut into some (CUDA can't use both)."""
    calls = Calls(nvml)
    lost = _unread(index)
    try:
        handle = _handle_at(nvml, index)
        uuid = text(calls.ask("nvmlDeviceGetUUID", handle))
        name = text(calls.ask("nvmlDeviceGetName", handle)) or lost.name
        capability = calls.ask("nvmlDeviceGetCudaComputeCapability", handle)
        mig = calls.ask("nvmlDeviceGetMigMode", handle)
        capability = tuple(capability) if capability else None
        if not (mig and mig[0] == 1):
            return [
                Device(
                    str(index),
                    "gpu",
                    name,
                    index=index,
                    uuid=uuid,
                    memory_total=memory_total(calls, handle),
                    capability=capability,
                )
            ], None
        slices = []
        for ordinal, part in slices_of(calls, handle):
            own = Calls(nvml)
            part_uuid = text(own.ask("nvmlDeviceGetUUID", part))
            if part_uuid is None:
                continue
            part_name = text(own.ask("nvmlDeviceGetName", part)) or f"{name} MIG"
            slices.append(
                Device(
                    part_uuid,
                    "mig",
                    f"{part_name} {index}:{ordinal}",  # the label is the last word
                    index=index,
                    uuid=part_uuid,
                    memory_total=memory_total(own, part),
                    capability=capability,
                )
            )
        none = (
            "is in MIG mode and has no slice that may be used "
            "(make one with nvidia-smi mig, or switch MIG off)"
        )
        return slices, None if slices else none
    except Trouble:
        return [lost], None  # the sampler says what is wrong with it, and sees it come back


def memory_total(calls: Calls, handle: Any) -> int | None:
    """Bytes; None where the driver does not say, or there is no memory of its own."""
    info = memory(calls, handle)
    return (info.total or None) if info is not None else None


def memory(calls: Calls, handle: Any) -> Any:
    """Total, used, free and, from drivers since 510, what the driver keeps for itself."""
    return calls.ask(
        "nvmlDeviceGetMemoryInfo@nvmlMemory_v2",
        handle,
        names=("nvmlDeviceGetMemoryInfo",),
        key="memory",
    )
