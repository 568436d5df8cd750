"""The stand-in driver as nvitop shows it; tests/gpu has a real GPU as nvidia-smi shows it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

from gpu_engine.devices.discover import discover

from .machines import take_once

NVITOP = """
import json
from nvitop import Device, MigDevice, NA
def known(value):
    return None if value is NA or value != value else value
def processes(d):
    return sorted([p.pid, known(p.gpu_memory()), known(p.gpu_sm_utilization()), p.username(),
                   p.command(), p.create_time(), p.host_memory()]
                  for p in d.processes().values())
print(json.dumps([
    [known(v) for v in (
        d.index, d.name(), d.uuid(), d.gpu_utilization(), d.memory_utilization(),
        d.memory_used(), d.memory_total(), d.temperature(), d.power_usage(), d.power_limit(),
        d.fan_speed(), d.sm_clock(), d.memory_clock(), d.max_sm_clock(), d.max_memory_clock(),
        d.performance_state(), d.persistence_mode(), d.compute_mode(),
        d.total_volatile_uncorrected_ecc_errors(),
    )] + [processes(d)]
    for d in Device.all()
]))
print(json.dumps([[m.uuid(), m.memory_used(), m.memory_total(), processes(m)]
                  for m in MigDevice.all()]))
"""
needs_nvitop = pytest.mark.skipif(
    importlib.util.find_spec("nvitop") is None, reason="nvitop is not installed"
)


def as_nvitop() -> tuple[list, list]:
    """GPUs and MIG slices as it shows them."""
    done = subprocess.run(
        [sys.executable, "-c", NVITOP], capture_output=True, text=True, check=True
    )
    gpus, slices = done.stdout.splitlines()
    return json.loads(gpus), json.loads(slices)


def scaled(value, factor):
    return value if value is None else round(value * factor)


def ours(sample):
    """A sample in nvitop's units and words."""
    s = sample
    return [
        s.device.index, s.device.name, s.device.uuid, scaled(s.utilization, 100),
        scaled(s.memory_utilization, 100), s.memory_used, s.memory_total, s.temperature,
        scaled(s.power, 1000), scaled(s.power_limit, 1000), scaled(s.fan, 100),
        scaled(s.clock_sm, 1e-6), scaled(s.clock_memory, 1e-6), scaled(s.clock_sm_max, 1e-6),
        scaled(s.clock_memory_max, 1e-6),
        None if s.performance_state is None else f"P{s.performance_state}",
        {True: "Enabled", False: "Disabled", None: None}[s.persistence],
        None if s.compute_mode is None else s.compute_mode.title(),
        s.ecc_uncorrected, processes(s),
    ]  # fmt: skip


def processes(sample):
    return sorted(
        [p.pid, p.memory, scaled(p.utilization, 100) or 0, p.user, p.command,
         pytest.approx(p.started, abs=0.05), pytest.approx(p.host_memory, rel=0.2)]
        for p in sample.processes or ()
    )  # fmt: skip


@pytest.fixture
def asleep():
    """The pids of two processes whose figures hold still."""
    processes = [subprocess.Popen(["sleep", "3600"]) for _ in range(2)]
    yield [process.pid for process in processes]
    for process in processes:
        process.kill()
        process.wait()


@needs_nvitop
def test_as_nvitop_shows_it(as_this_machine, asleep):
    as_this_machine(
        "count 8", "gpu * mem_util 12", "gpu 0 util 37", "gpu 0 mem_used 36507222016",
        "gpu 0 temp 61", "gpu 0 power 301500", "gpu 0 fan 30", "gpu 0 pstate 2",
        f"gpu 0 proc {asleep[0]} 1073741824 compute 50", f"gpu 0 proc {asleep[1]} 2147483648",
        "gpu 1 util na", "gpu 1 power na", "gpu 1 ecc_uncorrected na", "gpu 1 persistence 0",
        "gpu 2 ecc_uncorrected 3", "gpu 3 clock_sm 1410", f"gpu 3 proc {asleep[0]} na graphics",
        "gpu 4 power_limit na", "gpu 4 temp na", "gpu 5 clock_sm na", "gpu 5 clock_sm_max na",
        "gpu 6 pstate na", "gpu 7 compute_mode na", "gpu 7 persistence na",
    )  # fmt: skip
    theirs, _ = as_nvitop()
    assert [ours(s) for s in take_once(discover()).samples] == theirs


@needs_nvitop
def test_of_a_lost_gpu_nothing_is_known_to_both(as_this_machine):
    as_this_machine("count 3", "gpu 1 lost 1")
    theirs, _ = as_nvitop()
    found = [ours(s) for s in take_once(discover()).samples]
    assert [found[0], found[2]] == [theirs[0], theirs[2]]
    assert theirs[1][3:-1] == found[1][3:-1] == [None] * len(found[1][3:-1])


@needs_nvitop
def test_slices_as_nvitop_shows_them(as_this_machine, asleep):
    as_this_machine(
        "count 2", "gpu 1 mig 1", "gpu 1 slice 0 MIG-aaaaaaaa-1111-5222-8333-444444444444",
        "gpu 1 slice 0 mem_used 123456789", f"gpu 1 slice 0 proc {asleep[0]} 1000",
        "gpu 1 slice 1 MIG-bbbbbbbb-1111-5222-8333-444444444444",
    )  # fmt: skip
    _, theirs = as_nvitop()
    samples = take_once(discover()).samples
    found = [
        [s.device.uuid, s.memory_used, s.memory_total, processes(s)]
        for s in samples
        if s.device.kind == "mig"
    ]
    assert found == theirs
