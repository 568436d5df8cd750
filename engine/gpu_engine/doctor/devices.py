"""Drivers and devices: what is there, and what is wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gpu_engine.common import units
from gpu_engine.devices import discover, sampler
from gpu_engine.devices.backends import registry
from gpu_engine.devices.records import HARDWARE_REASONS, Inventory, Sample
from gpu_engine.doctor.records import Finding, note, ok, problem
from gpu_engine.doctor.surroundings import in_container, text

VENDORS = {"10de": "NVIDIA", "1002": "AMD", "8086": "Intel"}
"""PCI's numbers of those who make GPUs."""


def inventories(patience: float) -> list[Inventory]:
    """What each backend for GPUs finds within so many seconds."""
    return [discover.discover_of(name, patience) for name in registry.BACKENDS if name != "cpu"]


def drivers(inventories: Sequence[Inventory], root: Path = Path("/")) -> list[Finding]:
    """The drivers. `inventories`: what each backend for GPUs has found; `root`: below which the
    kernel says what cards there are."""
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
        elif found.visible_variable and found.devices:
            out.append(note(f"{found.visible_variable}={found.inherited_visible} is set: only "
                            "these devices are offered", f"unset {found.visible_variable}"))
    seen = any(i.devices or i.problem or i.driver or i.hidden
               for i in inventories if i.source == "nvml")
    on_bus = cards(root)
    if "10de" in on_bus and not seen:
        out.append(_without_nvidia(on_bus.count("10de"), root))
    if len(on_bus) > 1 and _translates(root):
        out.append(note("the IOMMU translates what GPUs send each other: NCCL and RCCL may hang or "
                        "be slow, which gpu-engine check shows",
                        "boot with iommu=pt, or run with --set run.env.NCCL_P2P_DISABLE=1"))
    if not out:
        makers = sorted({VENDORS[v] for v in on_bus if v in ("1002", "8086")})
        out.append(note("no GPU driver that gpu-panel reads" + (
            f"; there are cards of {' and '.join(makers)} here" if makers else "")))
    return out


def _without_nvidia(count: int, root: Path) -> Finding:
    module = text(root / "sys/module/nvidia/version")
    there = f"{count} NVIDIA card{'s' if count > 1 else ''} in this machine, but "
    if in_container(root):
        return problem(there + "the driver's library libnvidia-ml.so.1 is not in this container",
                       "start the container with --gpus all (NVIDIA Container Toolkit)")
    if (root / "sys/module/nouveau").is_dir():
        return problem(there + "they run with nouveau, which can't compute",
                       "sudo ubuntu-drivers install, or your distribution's way")
    if module:
        return problem(there + "the driver's library libnvidia-ml.so.1 is not found, although the "
                       f"kernel module {module} is loaded",
                       f"sudo apt install libnvidia-compute-{module.partition('.')[0]}")
    return problem(there + "no driver is installed",
                   "sudo ubuntu-drivers install, or your distribution's way")


def cards(root: Path) -> list[str]:
    """The vendor's PCI number of each display controller and accelerator: "10de"."""
    found = sorted((root / "sys/bus/pci/devices").glob("*"))
    # 03: display controllers; 12: processing accelerators.
    return [text(device / "vendor").removeprefix("0x") for device in found
            if text(device / "class").startswith(("0x03", "0x12"))]


def _translates(root: Path) -> bool:
    """Whether an IOMMU is on that does not pass addresses through:
    docs.nvidia.com, NCCL, Troubleshooting, PCI Access Control Services."""
    kinds = [text(group / "type") for group in (root / "sys/kernel/iommu_groups").glob("*")]
    return any(kind.startswith("DMA") for kind in kinds)


def _vendor(source: str) -> str:
    return {"nvml": "NVIDIA", "amd": "AMD"}.get(source, source)


_CURES = (("not loaded", "sudo modprobe nvidia"), ("different versions", "sudo reboot"),
          ("must be reset", "sudo nvidia-smi --gpu-reset"), ("did not answer", "sudo dmesg | tail"),
          ("/dev/nvidia*", "ls -l /dev/nvidia*"), ("without GPU rights", "start the container "
           "with --gpus all"), ("dmesg", "sudo dmesg | grep -i xid"))
"""A part of what a driver's trouble is called, and what to type."""


def _cure(trouble: str) -> str | None:
    return next((cure for part, cure in _CURES if part in trouble), None)


def devices(found: Sequence[Inventory], patience: float) -> list[Finding]:
    """The devices that runs are offered, and what is wrong with each."""
    inventory = next((i for i in found if i.devices), None) or discover.cpu_slots()
    samples = () if inventory.is_cpu else \
        sampler.take_several(inventory, readings=0, timeout=patience)[-1].samples
    return of_samples(inventory, samples)


def of_samples(inventory: Inventory, samples: Sequence[Sample]) -> list[Finding]:
    """What a reading of the devices says."""
    names = Counter("CPU slot" if d.is_cpu else d.name for d in inventory.devices)
    said = ", ".join(f"{count} × {name}" for name, count in names.items())
    if not inventory.devices:
        return [problem("no devices to train on", "gpu-engine devices")]
    out = [note(f"no GPU to train on; {said} in place of it") if inventory.is_cpu else ok(said)]
    for sample in samples:
        label = sample.device.label
        if sample.problem:
            out.append(problem(f"{label}: {sample.problem}", _cure(sample.problem)))
        out += [problem(f"{label}: {why}", "nvidia-smi -q" if inventory.source == "nvml" else None)
                for why in sample.health]
        held = sorted(HARDWARE_REASONS.intersection(sample.throttle or ()))
        if held:
            out.append(problem(f"{label} is slowed down: {', '.join(held)}",
                               "look at its fans, its dust and its power cables"))
        out += [note(f"{label}: {why}", "sudo nvidia-smi -pm 1" if "persistence" in why else None)
                for why in sample.notes]
        if sample.memory_total is not None and sample.memory_used is not None \
                and not sample.device.is_cpu and not sample.processes \
                and sample.memory_used > 0.1 * sample.memory_total:
            out.append(note(f"{label}: {units.size(sample.memory_used)} are in use, and no process "
                            "is seen that holds them", "sudo fuser -v /dev/nvidia*"
                            if inventory.source == "nvml" else None))
    return out
