"""What one look says: right where the driver answers, unknown where it does not."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from gpu_engine.devices.availability import judge
from gpu_engine.devices.backends import nvml
from gpu_engine.devices.discover import discover
from gpu_engine.devices.records import Sample

from .machines import take_once


def look(machine_lines, as_this_machine, **kinds) -> Sample:
    as_this_machine(*machine_lines, **kinds)
    return take_once(discover()).samples[0]


@pytest.fixture
def other_process():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "train.py"])
    yield process
    process.kill()
    process.wait()


def test_what_nvitop_does_not_show(as_this_machine):
    """The rest: test_agreement.py."""
    sample = look(["gpu 0 reasons 4", "gpu 0 ecc_corrected 3"], as_this_machine)
    assert (sample.problem, sample.memory_reserved) == (None, 650000000)
    assert sample.throttle == ("power limit",)
    assert (sample.ecc_corrected, sample.ecc_uncorrected, sample.health) == (3, 0, ())
    assert (sample.pcie_generation, sample.pcie_width) == (4, 16)
    assert abs(sample.taken - time.time()) < 5


KEYS = {
    "util": ("utilization",),
    "mem_used": ("memory_used",),
    "mem_total": ("memory_used", "memory_total"),
    "temp": ("temperature",),
    "power": ("power",),
    "power_limit": ("power_limit",),
    "clock_sm": ("clock_sm",),
    "clock_mem": ("clock_memory",),
    "fan": ("fan",),
    "persistence": ("persistence",),
    "compute_mode": ("compute_mode",),
    "pstate": ("performance_state",),
    "ecc_uncorrected": ("ecc_uncorrected",),
}


def test_what_the_driver_does_not_give_is_none(as_this_machine):
    sample = look([f"gpu 0 {key} na" for key in KEYS], as_this_machine)
    assert {f: getattr(sample, f) for fields in KEYS.values() for f in fields} == {
        f: None for fields in KEYS.values() for f in fields
    }
    assert sample.problem is None
    assert sample.processes == ()


def test_what_can_not_be_true_is_none(as_this_machine):
    absurd = {
        "util": 4000000, "mem_util": 101, "temp": 4294967295, "power": 4294967295,
        "power_limit": 4294967295, "clock_sm": 4294967295, "fan": 4294967295, "pstate": 32,
        "mem_used": 1 << 60, "pcie_gen": 4294967295, "compute_mode": 77,
    }  # fmt: skip
    sample = look([f"gpu 0 {key} {value}" for key, value in absurd.items()], as_this_machine)
    for name in (
        "utilization", "memory_utilization", "temperature", "power", "power_limit", "clock_sm",
        "fan", "performance_state", "memory_used", "pcie_generation", "compute_mode",
    ):  # fmt: skip
        assert getattr(sample, name) is None, name
    assert sample.problem is None


def test_memory_shared_with_the_machine_is_unknown(as_this_machine):
    sample = look(["gpu 0 mem_total 0", "gpu 0 mem_used 0"], as_this_machine)
    assert (sample.memory_used, sample.memory_total) == (None, None)
    assert discover().devices[0].memory_total is None
    assert sample.memory_is_hosts


def test_a_gpu_without_memory_of_its_own_is_not_one_that_hides_it(as_this_machine):
    own = look(["gpu 0 mem_total na"], as_this_machine)
    assert own.memory_is_hosts
    assert judge([own] * 3).free
    hidden = look(
        [f"gpu 0 error nvmlDeviceGetMemoryInfo{v} 4" for v in ("", "_v2")], as_this_machine
    )
    assert not hidden.memory_is_hosts
    assert judge([hidden] * 3).state == "unknown"


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0, ()),
        (0x1, ()),
        (0x4, ("power limit",)),
        (0x48, ("too hot (hardware)",)),
        (0x8, ("hardware slowdown",)),
        (0x20 | 0x4, ("power limit", "too hot")),
        (0x88, ("power brake (power supply)",)),
        (1 << 40, ()),
    ],
)
def test_throttle_reasons(bits, expected):
    assert nvml.throttle(bits) == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("gpu 0 ecc_uncorrected 2", "2 uncorrected memory errors"),
        ("gpu 0 remap_pending 1", "must be reset"),
        ("gpu 0 remap_failure 1", "exchanged"),
        ("gpu 0 compute_mode 2", "prohibited"),
    ],
)
def test_health(as_this_machine, line, said):
    assert said in look([line], as_this_machine).health[0]


def test_notes(as_this_machine):
    sample = look(["gpu 0 persistence 0", "gpu 0 compute_mode 3"], as_this_machine)
    assert sample.health == ()
    assert "persistence mode is off" in sample.notes[0]
    assert "exclusive process" in sample.notes[1]


def test_processes_of_every_kind(as_this_machine, other_process):
    me, other = os.getpid(), other_process.pid
    sample = look(
        [
            f"gpu 0 proc {me} 1073741824 compute 55",
            f"gpu 0 proc {other} 2097152 mps",
            "gpu 0 proc 1 4096 graphics",
            f"gpu 0 proc {me} 4096 graphics",
        ],
        as_this_machine,
    )
    by_pid = {p.pid: p for p in sample.processes}
    assert set(by_pid) == {me, other, 1}
    assert (by_pid[me].kind, by_pid[me].memory) == ("compute", 1 << 30)
    assert by_pid[me].utilization == 0.55
    assert by_pid[other].kind == "mps"
    assert by_pid[1].kind == "graphics"


@pytest.mark.parametrize("code", [3, 4, 13, 999])
def test_a_process_list_that_is_refused_is_unknown_and_not_empty(as_this_machine, code):
    sample = look(
        [f"gpu 0 error nvmlDeviceGetComputeRunningProcesses_v{v} {code}" for v in (2, 3)],
        as_this_machine,
    )
    assert sample.processes is None
    assert sample.problem is None
