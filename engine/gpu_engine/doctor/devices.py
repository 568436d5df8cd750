"""Judging drivers and devices. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_engine.common import units
from gpu_engine.devices.records import HARDWARE_REASONS, Inventory, Sample
from gpu_engine.doctor.records import Finding, note, ok, problem

VENDORS = {"10de": "NVIDIA", "1002": "AMD", "8086": "Intel"}
"""PCI's numbers of those who make GPUs."""


@dataclass(frozen=True, slots=True)
class Cards:
    """What the kernel knows of the machine's cards, without a driver's library."""

    on_bus: tuple[str, ...] = ()
    """The vendor's PCI number of each display controller or accelerator: "10de"."""
    modules: tuple[str, ...] = ()
    """The loaded kernel modules among nvidia, nouveau, amdgpu, i915 and xe."""
    nvidia: str | None = None
    """The version of the loaded NVIDIA kernel module."""
    container: bool = False
    """Whether this is inside a container."""


def judge_drivers(cards: Cards, inventories: Sequence[Inventory]) -> list[Finding]:
    """The drivers. `inventories`: what each backend for GPUs has found."""
    out: list[Finding] = []
    for found in inventories:
        if found.problem:
            out.append(problem(f"{_vendor(found.source)}: {found.problem}", _cure(found.problem)))
        if found.driver or found.devices:
            said = [f"driver {found.driver}" if found.driver else "its driver works"]
            said += [f"takes CUDA up to {found.cuda}"] if found.cuda else []
            out.append(ok(f"{_vendor(found.source)}: {', '.join(said)}"))
        if found.hidden:
            out.append(note(f"{found.visible_variable}={found.inherited_visible!r} hides all GPUs",
                            f"unset {found.visible_variable}"))
        elif found.visible_variable:
            out.append(note(f"{found.visible_variable}={found.inherited_visible} is set: only "
                            "these devices are offered", f"unset {found.visible_variable}"))
    seen = any(i.devices or i.problem or i.driver or i.hidden
               for i in inventories if i.source == "nvml")
    if "10de" in cards.on_bus and not seen:
        out.append(_without_nvidia(cards))
    if not out:
        makers = sorted({VENDORS[v] for v in cards.on_bus if v in ("1002", "8086")})
        out.append(note("no GPU driver that gpu-panel reads" + (
            f"; there are cards of {' and '.join(makers)} here" if makers else "")))
    return out


def _without_nvidia(cards: Cards) -> Finding:
    count = cards.on_bus.count("10de")
    there = f"{count} NVIDIA card{'s' if count > 1 else ''} in this machine, but "
    if cards.container:
        return problem(there + "the driver's library libnvidia-ml.so.1 is not in this container",
                       "start the container with --gpus all (NVIDIA Container Toolkit)")
    if "nouveau" in cards.modules:
        return problem(there + "they run with nouveau, which can't compute",
                       "sudo ubuntu-drivers install, or your distribution's way")
    if cards.nvidia:
        return problem(there + "the driver's library libnvidia-ml.so.1 is not found, although the "
                       f"kernel module {cards.nvidia} is loaded",
                       f"sudo apt install libnvidia-compute-{cards.nvidia.partition('.')[0]}")
    return problem(there + "no driver is installed",
                   "sudo ubuntu-drivers install, or your distribution's way")


def _vendor(source: str) -> str:
    return {"nvml": "NVIDIA", "amd": "AMD"}.get(source, source)


_CURES = (("not loaded", "sudo modprobe nvidia"), ("different versions", "sudo reboot"),
          ("must be reset", "sudo nvidia-smi --gpu-reset"), ("did not answer", "sudo dmesg | tail"),
          ("/dev/nvidia*", "ls -l /dev/nvidia*"), ("without GPU rights", "start the container "
           "with --gpus all"), ("dmesg", "sudo dmesg | grep -i xid"))
"""A part of what a driver's trouble is called, and what to type."""


def _cure(text: str) -> str | None:
    return next((cure for part, cure in _CURES if part in text), None)


def judge_devices(inventory: Inventory, samples: Sequence[Sample]) -> list[Finding]:
    """The devices that runs are offered, and what is wrong with each."""
    names = Counter("CPU slot" if d.is_cpu else d.name for d in inventory.devices)
    said = ", ".join(f"{count} × {name}" for name, count in names.items())
    if not inventory.devices:
        return [problem("no devices to train on", "gpu-engine devices")]
    out = [note(f"no GPU to train on; {said} in place of it") if inventory.is_cpu else ok(said)]
    for sample in samples:
        label = sample.device.label
        if sample.problem:
            out.append(problem(f"{label}: {sample.problem}", _cure(sample.problem)))
        out += [problem(f"{label}: {text}", "nvidia-smi -q" if inventory.source == "nvml" else None)
                for text in sample.health]
        held = sorted(HARDWARE_REASONS.intersection(sample.throttle or ()))
        if held:
            out.append(problem(f"{label} is slowed down: {', '.join(held)}",
                               "look at its fans, its dust and its power cables"))
        out += [note(f"{label}: {text}", "sudo nvidia-smi -pm 1" if "persistence" in text else None)
                for text in sample.notes]
        if sample.memory_total is not None and sample.memory_used is not None \
                and not sample.device.is_cpu and not sample.processes \
                and sample.memory_used > 0.1 * sample.memory_total:
            out.append(note(f"{label}: {units.size(sample.memory_used)} are in use, and no process "
                            "is seen that holds them", "sudo fuser -v /dev/nvidia*"
                            if inventory.source == "nvml" else None))
    return out
