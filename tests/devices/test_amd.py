"""AMD GPUs by the kernel's files, on made machines that follow real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_engine.devices import availability
from gpu_engine.devices.backends import visible
from gpu_engine.devices.records import Device, Inventory, Sample
from gpu_engine.plan.build import plan
from gpu_engine.spec.read import from_dict

from .amdtree.trees import GIB, Card, Tree, instinct, integrated, radeon

HWMON = "hwmon/hwmon3"


@pytest.fixture
def here(tmp_path, as_amd):
    """`here(card, …)` makes a machine and returns it with the backend, which reads it in this
    process."""

    def machine(*cards: Card):
        as_amd(tmp_path)
        tree = Tree(tmp_path, *cards)
        from gpu_engine.devices.backends import registry

        return tree, registry.load("amd")

    return machine


def offered(backend, **environ: str) -> Inventory:
    return backend.discover(environ, 5.0)


def looks(backend) -> list[Sample]:
    """A sample of each device, by one reading."""
    devices = offered(backend).devices
    by_id = {s.device.id: s for r in backend.open(devices) for s in r.read()}
    return [by_id[d.id] for d in devices]


# --- what there is ------------------------------------------------------------------------------


def test_one_card(here):
    tree, backend = here(radeon())
    (device,) = offered(backend).devices
    assert device == Device("0", "gpu", "AMD GPU gfx1100", index=0,
                            uuid="GPU-d1f34b5a0c2e7788", memory_total=24 * GIB)
    tree.of(0, "gpu_busy_percent", 37)
    tree.of(0, "mem_info_vram_used", 3 * GIB)
    (sample,) = looks(backend)
    assert replace(sample, taken=None) == Sample(
        device, utilization=0.37, memory_used=3 * GIB, memory_total=24 * GIB, temperature=38.0,
        power=23.0, processes=())


def test_eight_of_a_server(here):
    """Node numbers beyond nine are in numerical order, and server cards name themselves."""
    tree, backend = here(*(instinct(i) for i in range(8)))
    for number in range(8, 0, -1):  # another processor: the nodes of the GPUs are 2 to 9, then 10
        nodes = tree.kfd / "topology/nodes"
        (nodes / str(number)).rename(nodes / str(number + 3))
    devices = offered(backend).devices
    assert [d.uuid for d in devices] == [f"GPU-{0x2251_0000_0000_0000 + i:016x}" for i in range(8)]
    assert {d.name for d in devices} == {"AMD Instinct MI300X OAM"}
    sample = looks(backend)[7]
    # No edge temperature and no average power on these.
    assert (sample.temperature, sample.power) == (41.0, 140.0)


def test_a_divided_card_beside_a_whole_one(here):
    """Partitions are not offered; the whole card keeps ROCm's number."""
    _, backend = here(instinct(0, parts=8), instinct(1))
    (device,) = offered(backend).devices
    assert (device.id, device.uuid) == ("8", "GPU-2251000000000001")


def test_a_desktop_with_a_gpu_in_its_processor(here):
    """ROCm counts it, so it is listed; it has no number."""
    _, backend = here(radeon(), integrated())
    first, second = offered(backend).devices
    assert (second.name, second.uuid) == ("AMD GPU gfx1036", "PCI-0000:10:00.0")
    assert backend.environment([second, first]) == {
        "ROCR_VISIBLE_DEVICES": "1,GPU-d1f34b5a0c2e7788"}
    assert looks(backend)[1].temperature == 35.0


# --- what is missing, refused, damaged ----------------------------------------------------------


def test_what_a_container_was_not_given(here):
    """ROCm leaves out what has no render node, and numbers the rest."""
    tree, backend = here(*(instinct(i) for i in range(4)))
    (tree.root / "dev/dri/renderD128").unlink()
    (tree.kfd / "topology/nodes/3/properties").write_text("errno EPERM")  # its device group
    found = offered(backend).devices
    assert [(d.index, d.uuid[-1]) for d in found] == [(0, "1"), (1, "3")]
    for minor in (129, 130, 131):
        (tree.root / f"dev/dri/renderD{minor}").unlink()
    inventory = offered(backend)
    assert inventory.devices == ()
    assert "--device=/dev/kfd" in inventory.problem


@pytest.mark.parametrize(("name", "words"), [("dev/kfd", "may not use /dev/kfd"),
                                             ("dev/dri/renderD128", "may not use /dev/dri/render")])
def test_a_user_without_the_right_group(here, name, words):
    tree, backend = here(instinct(0))
    (tree.root / name).chmod(0)
    (sample,) = looks(backend)
    assert sample.lost
    assert words in sample.problem
    assert "usermod -aG render" in sample.problem
    (tree.root / name).chmod(0o600)
    assert looks(backend)[0].problem is None


def test_every_file_may_be_missing_refused_or_garbage(here):
    """Nothing but what the topology needs is needed, and what is not known is None."""
    tree, backend = here(radeon())
    device = (tree.pci / tree.places[0][0].address).resolve()
    files = [p for p in device.rglob("*") if p.is_file()]
    for content in (None, "", "N/A", "-1", "9" * 40, "\x00\xff", "errno EOPNOTSUPP",
                    "errno EBUSY", "errno EACCES"):
        tree.make()
        for path in files:
            if content is None:
                path.unlink()
            else:
                path.write_text(content, encoding="latin-1")
        (sample,) = looks(backend)
        values = {name: getattr(sample, name) for name in (
            "utilization", "memory_used", "memory_total", "temperature", "power", "problem")}
        assert values == dict.fromkeys(values), content
    tree.make()
    (reader,) = backend.open(offered(backend).devices)
    for path in files:
        path.write_text("errno EIO")
    (sample,) = reader.read()
    assert (sample.lost, "lost" in sample.problem) == (True, True)
    tree.make()
    assert reader.read()[0].utilization == 0.0


# --- asleep -------------------------------------------------------------------------------------


def test_a_sleeping_card_is_not_woken(here):
    tree, backend = here(radeon(), instinct(1))
    devices = offered(backend).devices
    readers = backend.open(devices)
    assert [r.read()[0].temperature for r in readers] == [38.0, 41.0]
    tree.of(0, "power/runtime_status", "suspended")
    tree.process(os.getpid(), {1: GIB})
    tree.was_read()
    (sleeping,) = readers[0].read()
    read = [name for name in tree.was_read() if name.startswith("sys/bus/pci/devices/0000:03")]
    # The driver counts its memory itself (ttm_resource_manager_usage), and asks no hardware for it.
    assert [Path(name).name for name in read] == [
        "mem_info_vram_total", "mem_info_vram_used", "runtime_status"]
    assert (sleeping.problem, sleeping.utilization, sleeping.processes) == (None, 0.0, ())
    assert (sleeping.power, sleeping.temperature, sleeping.memory_used) == (None, None, 20 << 20)
    assert availability.judge([sleeping] * 3).free
    assert [p.memory for p in looks(backend)[1].processes] == [GIB]
    tree.of(0, "power/runtime_status", "active")
    (awake,) = readers[0].read()
    assert awake.temperature == 38.0


# --- processes ----------------------------------------------------------------------------------


def test_processes_are_on_the_devices_they_use(here):
    """The driver lists each process on every GPU; a queue or real memory tells which it uses."""
    tree, backend = here(*(instinct(i) for i in range(3)))
    tree.process(os.getpid(), {0: 9 * GIB, 1: 2 << 20, 2: 100 << 20}, queues=(0,))
    tree.process(4194303, {1: GIB})
    tree.write(tree.kfd / "proc/not-a-pid", "x")
    first, second, third = (s.processes for s in looks(backend))
    assert [(p.pid, p.memory, p.visible) for p in first] == [(os.getpid(), 9 * GIB, True)]
    assert first[0].command
    assert [(p.pid, p.memory, p.visible) for p in second] == [(4194303, GIB, False)]
    assert [p.memory for p in third] == [100 << 20]


# --- which of them ------------------------------------------------------------------------------

THREE = tuple(Device(str(i), "gpu", "AMD", index=i, uuid=f"GPU-{u}") for i, u in
              enumerate(("00000000000000aa", "00000000000000ab", "1100000000000000")))


@pytest.mark.parametrize(("environ", "indices"), [
    ({}, [0, 1, 2]),
    ({"ROCR_VISIBLE_DEVICES": "2,0"}, [2, 0]),
    ({"ROCR_VISIBLE_DEVICES": " gpu-11 , 1"}, [2, 1]),
    ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000a,1"}, []),  # ambiguous: ends the list
    ({"ROCR_VISIBLE_DEVICES": "1,7,0"}, [1]),
    ({"ROCR_VISIBLE_DEVICES": "1,1,0"}, [1]),
    ({"ROCR_VISIBLE_DEVICES": ""}, []),
    ({"ROCR_VISIBLE_DEVICES": "-1"}, []),
    ({"ROCR_VISIBLE_DEVICES": "2,0", "HIP_VISIBLE_DEVICES": "1"}, [0]),  # the second of those
    ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2"}, [1]),
    ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "2"}, [2]),
    ({"CUDA_VISIBLE_DEVICES": "2"}, [2]),
    ({"CUDA_VISIBLE_DEVICES": ""}, []),
])
def test_the_rules_of_rocms_variables(environ, indices):
    found = visible.rocm(THREE, environ)
    assert [d.index for d in found] == indices
    assert [d.visible_index for d in found] == (list(range(len(indices))) if environ
                                                else [None] * 3)


def spec(*ids: str, command: bool = False, mode: str = "ddp"):
    task = {"command": ["train"]} if command else {"use": "gpu_engine.tasks.digits:Digits"}
    batch = {} if command else {"meaning": "per_gpu"}
    return from_dict({"task": task, "devices": {"ids": list(ids)}, "parallel": {"mode": mode},
                      "batch": batch})


def test_the_plan_says_what_is_set_and_what_is_taken_away():
    inventory = Inventory(THREE, "amd")
    made = plan(spec("2", "0", command=True), inventory, python="python")
    assert [p.env["ROCR_VISIBLE_DEVICES"] for p in made.processes] == \
        ["GPU-1100000000000000,GPU-00000000000000aa"] * 2
    assert all(p.unset == ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
               and "CUDA_VISIBLE_DEVICES" not in p.env for p in made.processes)
    assert [r.devices[0].torch for r in made.ranks] == ["cuda:0", "cuda:1"]
    assert (made.device_type, made.backend, made.source) == ("cuda", "nccl", "amd")
    (line,) = made.lines
    assert line.startswith(
        "env -u HIP_VISIBLE_DEVICES -u CUDA_VISIBLE_DEVICES -u GPU_DEVICE_ORDINAL "
        "ROCR_VISIBLE_DEVICES=GPU-1100000000000000,GPU-00000000000000aa torchrun ")
    again = type(made).from_dict(made.to_dict())
    assert again.processes[0].unset == made.processes[0].unset


def test_a_run_on_them(here, home, tmp_path, monkeypatch):
    """Through the command line: its supervisor and probe are processes of their own. What the
    person's shell has set for HIP is gone from the ranks."""
    here(instinct(0), instinct(1))
    (tmp_path / "script.py").write_text(
        "import os; print(os.environ['LOCAL_RANK'], os.environ['ROCR_VISIBLE_DEVICES'], "
        "[v for v in ('HIP_VISIBLE_DEVICES', 'CUDA_VISIBLE_DEVICES') if v in os.environ])")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1,0")
    done = subprocess.run(
        [sys.executable, "-m", "gpu_engine", "run", "--devices", "0,1", "--mode", "ddp", "--",
         sys.executable, "script.py"], text=True, capture_output=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = (home / "runs").iterdir()
    said = sorted((run / "ranks" / f"{r:05d}.log").read_text().strip() for r in (0, 1))
    both = "GPU-2251000000000000,GPU-2251000000000001"
    assert said == [f"0 {both} []", f"1 {both} []"]


def test_amds_own_library_is_never_imported(here):
    """It makes ROCm's torch find no GPU (pytorch/pytorch#186516)."""
    here(instinct(0))
    code = ("import sys\nsys.modules['amdsmi'] = None\n"
            "import json\nfrom gpu_engine.devices.backends import registry\n"
            "b = registry.load('amd'); found = b.discover({}, 5.0).devices\n"
            "print(len(found), b.open(found)[0].read()[0].utilization)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "0.0"]
    import gpu_engine

    for file in Path(gpu_engine.__file__).parent.rglob("*.py"):
        assert "import amdsmi" not in file.read_text()
