"""Machines made up of records, as several of the panel's tests show them."""

from __future__ import annotations

from dataclasses import replace

from gpu_engine.devices.records import Device, DeviceProcess, Sample

from ..conftest import gpus
from .panel_kit import NOW, StillSampler

GPU = Device("0", "gpu", "NVIDIA A100-SXM4-80GB", 0, "GPU-00000000-0000", 80 << 30,
             capability=(8, 0))
BUSY = Sample(
    GPU, 0.74, 34 << 30, 80 << 30, 61.0, 301.0, 400.0, 1_410_000_000, 1_593_000_000, 0.3,
    ("power limit",), (
        DeviceProcess(7, 30 << 30, user="alice", command="python train.py", started=NOW - 7300,
                      host_memory=2 << 30, cpu=1.07, utilization=0.7),
        DeviceProcess(8, 3 << 30, visible=False),
        DeviceProcess(9, None, "graphics", user="gdm", command="Xorg", started=NOW - 9 * 86400)),
    taken=NOW, memory_reserved=600 << 20, memory_utilization=0.33,
    notes=("persistence mode is off",), clock_sm_max=1_410_000_000,
    clock_memory_max=1_593_000_000, performance_state=0, ecc_corrected=3, ecc_uncorrected=0,
    persistence=False, compute_mode="default", pcie_generation=4, pcie_width=16,
    pcie_sent=1.5 * 2**30, pcie_received=20.0 * 2**20)
"""A look with everything that a driver can tell."""


def shared_machine():
    """Four cards: two free, one of another person's, one lost."""
    machine = gpus(4)
    alice = DeviceProcess(9, 70 << 30, user="alice", command="python train.py",
                          started=NOW - 3 * 86400 - 60)
    d = machine.devices
    samples = (
        Sample(d[0], 0.0, 0, 80 << 30, 33.0, 54.0, 400.0, processes=()),
        Sample(d[1], 0.02, 0, 80 << 30, 34.0, 55.0, 400.0, processes=()),
        Sample(d[2], 0.99, 71 << 30, 80 << 30, 88.0, 398.0, 400.0, processes=(alice,)),
        Sample(d[3], problem="GPU is lost"),
    )
    return machine, StillSampler(machine, samples)


def busy_machine():
    """Four cards: on the first one everything that a look can tell, on the others nothing."""
    four = gpus(4)
    samples = (replace(BUSY, device=four.devices[0]),
               *(Sample(d, 0.0, 0, 80 << 30, 33.0, 54.0, 400.0, processes=(), taken=NOW)
                 for d in four.devices[1:]))
    return four, StillSampler(four, samples)
