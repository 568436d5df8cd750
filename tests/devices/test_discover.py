"""Which devices are found, and what is said where none is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_engine.devices import probe, sampler
from gpu_engine.devices.backends import nvidia
from gpu_engine.devices.discover import discover, discover_of
from gpu_engine.devices.records import Device
from gpu_engine.doctor import machine as doctor

from ..conftest import wait_for
from .machines import take_once

SLICES = (
    "count 2",
    "gpu 1 name NVIDIA A100-SXM4-80GB",
    "gpu 1 mig 1",
    "gpu 1 slice 0 MIG-aaaaaaaa-1111-5222-8333-444444444444",
    "gpu 1 slice 0 name NVIDIA A100-SXM4-80GB MIG 1g.10gb",
    "gpu 1 slice 2 MIG-bbbbbbbb-1111-5222-8333-444444444444",
    "gpu 1 slice 2 name NVIDIA A100-SXM4-80GB MIG 2g.20gb",
)


def test_one_gpu_with_its_facts(as_this_machine):
    as_this_machine("gpu 0 name NVIDIA H100", "gpu 0 uuid GPU-1", "gpu 0 major 9", "cuda 12080")
    found = discover()
    assert found.devices == (
        Device("0", "gpu", "NVIDIA H100", index=0, uuid="GPU-1", memory_total=85899345920,
               capability=(9, 0)),
    )  # fmt: skip
    assert (found.source, found.driver, found.cuda) == ("nvml", "580.159.03", "12.8")
    assert found.problem is None
    assert found.inherited_visible is None


def test_many_gpus_in_the_drivers_order(as_this_machine):
    count = 64
    as_this_machine(f"count {count}")
    found = discover()
    assert [d.id for d in found.devices] == [str(i) for i in range(count)]
    assert len({d.uuid for d in found.devices}) == count
    snapshot = take_once(found)
    assert [s.device.id for s in snapshot.samples] == [str(i) for i in range(count)]
    assert all(s.problem is None for s in snapshot.samples)


def test_without_a_driver_the_cores_are_offered(monkeypatch):
    monkeypatch.setattr(nvidia, "NVML", "libnvidia-ml.so.of-no-machine")
    found = discover()
    assert found.source == "cpu"
    assert found.problem is None
    assert {c for d in found.devices for c in d.cores} == os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("code", "words"),
    [(9, "not loaded"), (18, "different versions"), (4, "permissions"), (999, "dmesg")],
)
def test_a_driver_that_does_not_start_is_explained(as_this_machine, code, words):
    as_this_machine(f"init {code}")
    found = discover()
    assert found.source == "cpu"
    assert words in found.problem


def test_the_doctor_says_that_a_driver_hangs(as_this_machine):
    as_this_machine("init_hang 1")
    found = doctor.drivers([discover_of("nvml", 0.5)])
    assert [(f.level, f.cure) for f in found] == [("problem", "sudo dmesg | tail")]
    assert "did not answer in 0.5 s" in found[0].text


def test_one_gpu_that_hangs_holds_up_no_other(as_this_machine):
    machine = as_this_machine("count 3", "gpu 1 hang 1")
    found = discover(timeout=12.0)  # the probe's own start is part of it
    assert [(d.id, d.uuid is None) for d in found.devices] == [
        ("0", False), ("1", True), ("2", False),
    ]  # fmt: skip
    assert "GPU 1 has not answered for 9 s" in found.problem
    samples = take_once(found, timeout=12.0).samples
    assert [s.problem is None for s in samples] == [True, False, True]
    machine.add("gpu 1 hang 0")
    assert discover().devices[1].uuid is not None


def test_an_old_driver_gives_what_it_can(as_this_machine):
    as_this_machine("gpu 0 util 20", f"gpu 0 proc {os.getpid()} 1000", flags=("-DOLD",))
    found = discover()
    sample = take_once(found).samples[0]
    assert found.devices[0].memory_total == 85899345920
    assert sample.utilization == 0.2
    assert sample.memory_used == 4718592 + 650000000  # old drivers count the reserved part in
    assert sample.memory_reserved is None
    assert sample.temperature == 33
    assert sample.processes is None, "no driver before 510 has NVML's present names"


def test_a_lost_gpu_is_listed_and_the_others_are_fine(as_this_machine):
    as_this_machine("count 3", "gpu 1 lost 1")
    found = discover()
    assert [(d.id, d.uuid is None) for d in found.devices] == [
        ("0", False), ("1", True), ("2", False),
    ]  # fmt: skip
    problems = [s.problem for s in take_once(found).samples]
    assert problems[0] is problems[2] is None
    assert "lost: it fell off the bus" in problems[1]


def test_a_gpu_that_this_user_may_not_open(as_this_machine):
    as_this_machine("count 2", "gpu 0 error nvmlDeviceGetHandleByIndex_v2 4")
    samples = take_once(discover()).samples
    assert "permissions of /dev/nvidia" in samples[0].problem
    assert samples[1].problem is None


def test_mig_slices_are_devices_and_their_gpu_is_not(as_this_machine):
    as_this_machine(*SLICES)
    found = discover().devices
    assert [(d.kind, d.id, d.index) for d in found] == [
        ("gpu", "0", 0),
        ("mig", "MIG-aaaaaaaa-1111-5222-8333-444444444444", 1),
        ("mig", "MIG-bbbbbbbb-1111-5222-8333-444444444444", 1),
    ]
    assert [d.label for d in found] == ["GPU 0", "MIG 1:0", "MIG 1:2"]
    assert found[1].name == "NVIDIA A100-SXM4-80GB MIG 1g.10gb 1:0"
    assert found[1].memory_total == 10200547328


def test_mig_without_slices_is_said(as_this_machine):
    as_this_machine("count 2", "gpu 1 mig 1")
    found = discover()
    assert [d.id for d in found.devices] == ["0"]
    assert "GPU 1 is in MIG mode and has no slice" in found.problem


def test_only_what_was_allotted_is_offered(as_this_machine, monkeypatch):
    as_this_machine("count 4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    found = discover()
    assert [(d.id, d.visible_index) for d in found.devices] == [("3", 0), ("1", 1)]
    assert found.inherited_visible == "3,1"
    assert found.problem is None
    assert [s.device.id for s in take_once(found).samples] == ["3", "1"]


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles", "7"])
def test_nothing_allotted(as_this_machine, monkeypatch, value):
    as_this_machine("count 4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    found = discover()
    assert found.source == "cpu"
    assert found.inherited_visible == value
    assert "which makes no device visible" in found.problem


def test_importing_is_cheap():
    """The panel's first frame waits for no driver, no psutil and no ctypes."""
    code = (
        "import sys; from gpu_engine.devices import sampler, availability, leases; "
        "heavy = {'pynvml', 'psutil', 'torch'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_module_of_the_folder_one_stands_in_is_not_taken(as_this_machine, tmp_path, monkeypatch):
    as_this_machine("count 2")
    (tmp_path / "queue.py").write_text("raise SystemExit('a file of somebody else')\n")
    monkeypatch.chdir(tmp_path)
    found = discover()
    assert (found.source, found.problem) == ("nvml", None)


def test_a_package_that_only_looks_like_pynvml_is_named(as_this_machine, tmp_path: Path):
    machine = as_this_machine()
    (tmp_path / "pynvml").mkdir()
    (tmp_path / "pynvml" / "__init__.py").write_text("def nvmlInit(): pass\n")
    code = "from gpu_engine.devices.discover import discover; print(discover().problem)"
    env = machine.env() | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True
    )
    assert "nvidia-ml-py" in done.stdout


def test_the_driver_is_loaded_once_for_the_list_and_the_readings(as_this_machine):
    """Waking GPUs without persistence mode takes seconds."""
    machine = as_this_machine("count 2")
    assert len(discover().devices) == 2
    begun = probe._spare
    assert begun is not None
    with sampler.Sampler(discover(), interval=0.05) as running:
        wait_for(lambda: running.latest)
        assert running._probe is begun
    assert "nvmlShutdown" not in machine.calls()
