"""The same machine as other monitors see it: a real GPU by nvidia-smi, the stand-in by nvitop."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import shutil
import subprocess
import sys

import pytest

from gpu_engine import devices
from gpu_engine.devices import sampler

MIB = 1 << 20
SMI = (
    "index,uuid,name,memory.total,memory.used,temperature.gpu,power.draw,enforced.power.limit,"
    "clocks.sm,pstate,persistence_mode"
)


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no NVIDIA driver here")
def test_as_nvidia_smi_shows_it():
    command = ["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader,nounits"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = {row[1]: row for row in csv.reader(text.splitlines(), skipinitialspace=True)}
    found = devices.discover()
    assert found.source == "nvml"
    for sample in sampler.take_once(found).samples:
        if sample.device.kind != "gpu":
            continue
        row = rows[sample.device.uuid]
        assert sample.problem is None
        assert (sample.device.id, sample.device.name) == (row[0], row[2])
        assert sample.memory_total / MIB == pytest.approx(float(row[3]), rel=0.01)
        assert sample.memory_used / MIB == pytest.approx(float(row[4]), abs=256)
        for value, shown, off in (
            (sample.temperature, row[5], 5),
            (sample.power, row[6], 60),
            (sample.power_limit, row[7], 1),
        ):
            if "N/A" not in shown:
                assert value == pytest.approx(float(shown), abs=off)
        assert f"P{sample.performance_state}" == row[9] or sample.performance_state is None
        assert sample.persistence == (row[10] == "Enabled")


NVITOP = """
import json
from nvitop import Device, NA
def known(value):
    return None if value is NA or value != value else value
print(json.dumps([
    [known(v) for v in (
        d.uuid(), d.gpu_utilization(), d.memory_used(), d.memory_total(), d.temperature(),
        d.power_usage(), d.power_limit(), d.fan_speed(), d.sm_clock(), d.memory_clock(),
        d.total_volatile_uncorrected_ecc_errors(),
    )] + [sorted(
        [p.pid, known(p.gpu_memory()), p.username(), p.command()] for p in d.processes().values()
    )]
    for d in Device.all()
]))
"""


@pytest.mark.skipif(importlib.util.find_spec("nvitop") is None, reason="nvitop is not installed")
def test_as_nvitop_shows_it(as_this_machine):
    me, parent = os.getpid(), os.getppid()
    as_this_machine(
        "count 4", "gpu 0 util 37", "gpu 0 mem_used 36507222016", "gpu 0 temp 61",
        "gpu 0 power 301500", "gpu 0 fan 30", f"gpu 0 proc {me} 1073741824 compute 50",
        f"gpu 0 proc {parent} 2147483648", "gpu 1 util na", "gpu 1 power na",
        "gpu 1 ecc_uncorrected na", "gpu 2 lost 1", "gpu 3 clock_sm 1410",
        f"gpu 3 proc {me} na graphics",
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", NVITOP], capture_output=True, text=True, check=True
    )

    def scaled(value, factor):
        return value if value is None else round(value * factor)

    ours = [
        [
            s.device.uuid, scaled(s.utilization, 100), s.memory_used, s.memory_total,
            s.temperature, scaled(s.power, 1000), scaled(s.power_limit, 1000),
            scaled(s.fan, 100), scaled(s.clock_sm, 1e-6), scaled(s.clock_memory, 1e-6),
            s.ecc_uncorrected,
            sorted([p.pid, p.memory, p.user, p.command] for p in s.processes or ()),
        ]
        for s in sampler.take_once(devices.discover()).samples
    ]  # fmt: skip
    assert ours == json.loads(done.stdout)
