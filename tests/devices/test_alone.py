"""Devices on which one process trains alone: Apple's GPU, and Intel's. No such hardware is seen
here: `sysctl` and the kernel's files are stand-ins, and so are torch's functions for them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.devices import availability
from gpu_engine.devices.backends import apple, intel, sysfs
from gpu_engine.devices.records import Device, Inventory, Sample
from gpu_engine.plan.build import plan
from gpu_engine.spec.read import from_dict

from .amdtree.trees import Tree

MAC = Inventory((Device("0", "gpu", "Apple M2 Max", index=0, uuid="apple-0", with_host=True),),
                "apple")
ARC = Inventory(tuple(Device(str(i), "gpu", "Intel GPU e20b", index=i, uuid=f"PCI-0000:0{i}:00.0")
                      for i in range(2)), "intel")


def spec(*ids: str, mode: str = "single", dtype: str = "off"):
    return from_dict({"task": {"use": "gpu_engine.tasks.digits:Digits"}, "amp": {"dtype": dtype},
                      "devices": {"ids": list(ids)}, "parallel": {"mode": mode}})


# --- Apple --------------------------------------------------------------------------------------


def test_a_mac(tmp_path, monkeypatch):
    """Its name and memory; nothing else is known, and it is free as the processor is."""
    sysctl = tmp_path / "sysctl"
    sysctl.write_text("#!/bin/sh\ncase $2 in hw.memsize) echo 68719476736;; "
                      "machdep.cpu.brand_string) echo 'Apple M2 Max';; *) exit 1;; esac\n")
    sysctl.chmod(0o755)
    monkeypatch.setattr(apple, "SYSCTL", str(sysctl))
    backend = apple.Apple()
    assert not backend.present()
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(apple.platform, "machine", lambda: "arm64")
    assert backend.present()
    found = backend.discover({}, 5.0)
    (device,) = found.devices
    assert (device.name, device.memory_total) == ("Apple M2 Max", 64 << 30)
    (sample,) = backend.open(found.devices)[0].read()
    assert replace(sample, taken=None) == Sample(device, memory_is_hosts=True)
    assert availability.judge([sample]).free
    assert availability.in_the_way(sample) is None
    assert availability.doubts(sample) == ()
    monkeypatch.setattr(apple, "SYSCTL", str(tmp_path / "nothing"))
    (device,) = backend.discover({}, 5.0).devices
    assert (device.name, device.memory_total) == ("Apple GPU", None)


def test_a_plan_on_a_mac():
    made = plan(spec("0", dtype="bf16"), MAC, python="python")
    assert (made.device_type, made.backend, made.source) == ("mps", "none", "apple")
    assert [d.torch for r in made.ranks for d in r.devices] == ["mps"]
    assert type(made).from_dict(made.to_dict()) == made
    for changed, words in ((spec("0", mode="ddp"), "DDP does not run on Apple's GPU: torch has no"),
                           (spec("0", mode="dp"), "DataParallel needs GPUs of NVIDIA or AMD"),
                           (spec("0", dtype="fp16"), "take bf16 or off")):
        with pytest.raises(SpecError, match=words):
            plan(changed, MAC, python="python")


# --- Intel --------------------------------------------------------------------------------------


def test_an_arc_beside_the_gpu_of_the_processor(tmp_path):
    """Only the discrete card has sensors. Power is energy over time."""
    machine = Tree(tmp_path)
    for address, sensors in (("0000:00:02.0", False), ("0000:03:00.0", True)):
        folder = tmp_path / "sys/devices" / address
        machine.write(folder / "vendor", "0x8086")
        machine.write(folder / "class", "0x030000")
        machine.write(folder / "device", "0xe20b")
        if sensors:
            for name, value in (("name", "xe"), ("energy1_input", 5_000_000),
                                ("power1_max", 190_000_000), ("temp2_input", 47_000)):
                machine.write(folder / "hwmon/hwmon4" / name, value)
        machine.link(folder, machine.pci / address)

    class Here(intel.Intel):
        tree = sysfs.Tree(tmp_path)

    backend = Here()
    assert not backend.present()
    (tmp_path / "sys/module/xe").mkdir(parents=True)
    assert backend.present()
    (device,) = backend.discover({}, 5.0).devices
    assert device == Device("0", "gpu", "Intel GPU e20b", index=0, uuid="PCI-0000:03:00.0")
    (reader,) = backend.open([device])
    (first,) = reader.read()
    assert (first.power, first.power_limit, first.temperature) == (None, 190.0, 47.0)
    machine.write(tmp_path / "sys/devices/0000:03:00.0/hwmon/hwmon4/energy1_input", 5_000_002)
    (second,) = reader.read()
    assert second.power is not None
    assert second.power > 0
    assert (second.utilization, second.memory_used, second.processes) == (None, None, None)
    machine.write(tmp_path / "sys/devices/0000:03:00.0/power/runtime_status", "suspended")
    assert reader.read()[0].notes == ("it sleeps",)
    (machine.pci / "0000:03:00.0").unlink()
    assert reader.read()[0].lost
    environment = backend.environment([device])
    assert environment == {"ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1", "ZE_AFFINITY_MASK": "0"}


def test_a_plan_on_intel():
    made = plan(spec("1", dtype="fp16"), ARC, python="python")
    assert (made.device_type, made.backend) == ("xpu", "none")
    assert [d.torch for r in made.ranks for d in r.devices] == ["xpu:0"]
    (process,) = made.processes
    assert process.env["ZE_AFFINITY_MASK"] == "1"
    assert process.unset == ("ONEAPI_DEVICE_SELECTOR",)
    with pytest.raises(SpecError, match="DDP does not run on Intel's GPUs: gpu-panel has no tried"):
        plan(spec("0", "1", mode="ddp"), ARC, python="python")


# --- the rank -----------------------------------------------------------------------------------


def test_what_a_rank_asks_torch(monkeypatch):
    """Memory, generators, and whether torch can use the device at all."""
    import torch

    from gpu_engine.training import precision, rng
    from gpu_engine.training.data import move
    from gpu_engine.worker import with_torch
    from gpu_engine.worker.rank import memory

    mps, xpu = torch.device("mps"), torch.device("xpu", 0)
    kept = {"mps": torch.tensor([1]), "xpu": torch.tensor([2])}
    seeds: list[tuple[str, int]] = []
    for name, functions in (
            ("mps", {"current_allocated_memory": lambda: 7, "driver_allocated_memory": lambda: 9,
                     "get_rng_state": lambda: kept["mps"],
                     "set_rng_state": lambda s: kept.update(mps=s),
                     "manual_seed": lambda s: seeds.append(("mps", s))}),
            ("xpu", {"memory_allocated": lambda d: 3, "memory_reserved": lambda d: 4,
                     "max_memory_allocated": lambda d: 5,
                     "get_rng_state": lambda d: kept["xpu"],
                     "set_rng_state": lambda s, d: kept.update(xpu=s),
                     "default_generators": [SimpleNamespace(
                         manual_seed=lambda s: seeds.append(("xpu", s)))]})):
        for function, value in functions.items():
            monkeypatch.setattr(getattr(torch, name), function, value, raising=False)
    of_mps, of_xpu = memory.in_use([mps]), memory.in_use([xpu])
    assert (of_mps.gpu_allocated, of_mps.gpu_reserved, of_mps.gpu_peak) == ((7,), (9,), ())
    assert (of_xpu.gpu_allocated, of_xpu.gpu_reserved, of_xpu.gpu_peak) == ((3,), (4,), (5,))
    saved = rng.capture([mps]) | {"xpu": rng.capture([xpu])["xpu"]}
    with rng.untouched([mps, xpu]):
        rng.seed_here(11, [mps, xpu])
        kept.update(mps=torch.tensor([8]), xpu=torch.tensor([9]))
    assert (int(kept["mps"]), int(kept["xpu"])) == (1, 2)
    assert seeds == [("mps", 11), ("xpu", 11)]
    kept.update(mps=torch.tensor([8]), xpu=torch.tensor([9]))
    rng.restore(saved, [mps, xpu])
    assert (int(kept["mps"]), int(kept["xpu"])) == (1, 2)
    rng.restore(rng.capture([]), [mps])  # of a checkpoint from another kind of device
    assert precision.widest(mps) == precision.widest(xpu) == torch.float32
    assert precision.widest(torch.device("cpu")) == torch.float64
    assert precision.wide(torch.zeros(2)).dtype == torch.float64
    waits = []
    batch = SimpleNamespace(to=lambda device, non_blocking: waits.append(not non_blocking))
    move(batch, mps)
    move(batch, torch.device("cuda"))
    assert waits == [True, False]
    for device, words in ((mps, "Apple's GPU"), (xpu, "whl/xpu")):
        with pytest.raises(UserError, match=words):
            with_torch.use(device)


def test_a_training_on_such_a_plan(home, tmp_path):
    """The whole way of a rank whose device is neither a processor nor cuda, but with the processor
    under it: losses, evaluation, checkpoints."""
    code = """
import os, sys, torch
from gpu_engine.worker import with_torch, without_supervisor
from gpu_engine.worker.rank import job
torch.backends.mps.is_available = lambda: True
with_torch.use = without_supervisor.use = lambda device: None
job.Job.devices = property(lambda self: ("cpu",))
from gpu_engine.worker.rank.leaving import exit_process
from gpu_engine.worker.start import main
exit_process(main(sys.argv[1:], os.environ))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "--set", "task.use=gpu_engine.tasks.digits:Digits", "--set",
         "train.steps=3", "--set", "train.workers=0"], capture_output=True, text=True, check=False,
        cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    (run,) = (path.parent for path in (home / "runs").glob("*/plan.json"))
    made = json.loads((run / "plan.json").read_text())
    assert (made["device_type"], made["ranks"][0]["devices"][0]["torch"]) == ("mps", "mps")
    assert json.loads((run / "state.json").read_text())["state"] == "completed"
