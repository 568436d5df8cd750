"""Machines made of records, for the panel's tests."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from gpu_engine.devices.availability import judge_all
from gpu_engine.devices.records import Device, DeviceProcess, Inventory, Sample, Snapshot
from gpu_engine.remote.reach.hosts import Host
from gpu_engine.remote.reach.protocol import Welcome
from gpu_engine.remote.reach.watcher import HostSeen

from ..conftest import gpus
from .panel_kit import NOW, StillHosts, StillSampler

NOT_THERE = "gpu-panel was not found there. Bring it there (gpu-engine hosts setup gpu3)"
"""What a host without our program says."""

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
    persistence=False, compute_mode="default", pcie_generation=4, pcie_width=16)
"""A look with everything that a driver can tell."""


def shared_machine():
    """Four cards: two free, one used by another person, one lost."""
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
    """Four cards: the first with every figure there is, the others idle."""
    four = gpus(4)
    samples = (replace(BUSY, device=four.devices[0]),
               *(Sample(d, 0.0, 0, 80 << 30, 33.0, 54.0, 400.0, processes=(), taken=NOW)
                 for d in four.devices[1:]))
    return four, StillSampler(four, samples)


def seen(host: Host, inventory: Inventory, *samples: Sample) -> HostSeen:
    """A host as it has described itself, and goes on to however long a test takes."""
    shot = Snapshot(NOW, samples or tuple(
        Sample(d, 0.0, 0, d.memory_total, 33.0, 54.0, 400.0, processes=())
        for d in inventory.devices))
    welcome = Welcome("0.1.0", "/there/bin/python", "3.11.2", host.name, "alice", "/h",
                      "/f", "boot", host.name, host.name, NOW, ("10.0.0.7",))
    return HostSeen(host, "seen", inventory, shot, (shot,), judge_all((shot,) * 3, {}),
                    math.inf, welcome)


def away(of: HostSeen, reason: str, age: float = 75.2) -> HostSeen:
    return replace(of, state="away", reason=reason, heard=time.monotonic() - age)


def lab() -> StillHosts:
    """A host that answers, one that no longer does, one without our program, one never reached."""
    first, second = gpus(2), gpus(1)
    alice = DeviceProcess(9, 70 << 30, user="alice", command="python train.py",
                          started=NOW - 3 * 86400 - 60)
    d = first.devices
    one = seen(Host("gpu1", label="left"), first,
               Sample(d[0], 0.0, 0, 80 << 30, 33.0, 54.0, 400.0, processes=()),
               Sample(d[1], 0.99, 71 << 30, 80 << 30, 77.0, 398.0, 400.0, processes=(alice,)))
    two = away(seen(Host("alice@gpu2"), second), "no answer: it is off, or a firewall is between")
    three = HostSeen(Host("gpu3"), "away", reason=NOT_THERE)
    return StillHosts(one, two, three, HostSeen(Host("gpu4")))
