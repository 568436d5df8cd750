"""What every backend keeps to: the same tests over NVIDIA (the stand-in driver), AMD (the kernel's
files) and the processor."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from gpu_engine.devices import discover as discovery
from gpu_engine.devices.backends import nvidia, registry
from gpu_engine.devices.backends.registry import Backend
from gpu_engine.devices.discover import cpu_slots, discover, discover_of
from gpu_engine.devices.records import Device, Inventory, Sample
from gpu_engine.devices.sampler import Sampler
from gpu_engine.plan.build import plan
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.schema import RunSpec
from gpu_engine.supervisor import start

from ..conftest import wait_for
from .machines import GIB, AmdMachine, Machine, NvidiaMachine, take_once


@pytest.fixture
def amd(tmp_path, monkeypatch, as_amd) -> AmdMachine:
    """A machine with three AMD cards and no other."""
    monkeypatch.setattr(nvidia, "NVML", "libnvidia-ml.so.of-no-machine")
    as_amd(tmp_path / "amd")
    return AmdMachine(tmp_path / "amd")


@pytest.fixture(params=["nvml", "amd"])
def machine(request, monkeypatch) -> Machine:
    """One whose devices a driver shows, for each vendor."""
    if request.param == "amd":
        return request.getfixturevalue("amd")
    return NvidiaMachine(request.getfixturevalue("as_this_machine")(), monkeypatch)


@pytest.fixture(params=["nvml", "amd", "cpu"])
def name(request, monkeypatch) -> str:
    """Each backend, on a machine that has its devices and no other."""
    if request.param == "cpu":
        monkeypatch.setattr(nvidia, "NVML", "libnvidia-ml.so.of-no-machine")
    elif request.param == "amd":
        request.getfixturevalue("amd")
    else:
        NvidiaMachine(request.getfixturevalue("as_this_machine")(), monkeypatch)
    return request.param


def seen_by_a_process(name: str, devices: Sequence[Device], of: str | None = None
                      ) -> list[tuple[str | None, list[int]]]:
    """UUID and cores of the devices that a process finds which is started for `devices`."""
    code = ("import json\nfrom gpu_engine.devices.discover import discover_of\n"
            f"found = discover_of({of or name!r}).devices\n"
            "print(json.dumps([(d.uuid, d.cores) for d in found]))")
    cores = {c for d in devices for c in d.cores}
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or mine)  # as the supervisor holds a rank to its slots
    try:
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True,
                              env=os.environ | registry.environment(name, devices), text=True)
    finally:
        os.sched_setaffinity(0, mine)
    return json.loads(done.stdout)


# --- every backend ------------------------------------------------------------------------------


def test_it_is_found_by_its_name_alone(name):
    found = discover()
    assert (found.source, found.problem) == (name, None)
    assert found == discover_of(name)
    assert isinstance(registry.load(name), Backend)
    assert registry.load(name).name == name
    assert len({d.id for d in found.devices}) == len(found.devices) > 0
    for device in found.devices:
        assert device.memory_total is None or device.memory_total > 0
        assert device.is_cpu is (name == "cpu")
        assert found.find(device.id) == device
        assert found.find(device.uuid or device.id) == device


def test_a_look_at_some_of_them(name):
    """In the order in which they were asked for, and what is not known is None."""
    found = discover_of(name)
    some = found.devices[:0:-1] or found.devices
    snapshot = take_once(replace(found, devices=some))
    assert [s.device for s in snapshot.samples] == list(some)
    assert snapshot.problem is None
    for sample in snapshot.samples:
        assert (sample.problem, sample.lost) == (None, False)
        assert 0 <= sample.utilization <= 1
        assert 0 <= sample.memory_used <= sample.memory_total
        assert sample.processes == (None if name == "cpu" else ())
        assert abs(time.time() - sample.taken) < 60
        assert isinstance(sample.health, tuple)


def test_a_process_sees_what_was_chosen_for_it_and_no_more(name):
    found = discover_of(name).devices
    first, last = found[0], found[-1]
    for chosen in ([last], [last, first] if last != first else [first]):
        seen = seen_by_a_process(name, chosen)
        assert [uuid for uuid, _ in seen if uuid] == [d.uuid for d in chosen if d.uuid]
        assert {c for _, cores in seen for c in cores} == {c for d in chosen for c in d.cores}


# --- those with a driver ------------------------------------------------------------------------


def test_each_order_of_choosing_is_kept(machine):
    own = registry.load(machine.name)
    found = discover_of(machine.name).devices
    for chosen in [c for n in (1, 2, 3) for c in permutations(found, n)]:
        with pytest.MonkeyPatch.context() as patch:
            for key, value in own.environment(chosen).items():
                patch.setenv(key, value)
            narrowed = discover_of(machine.name)
        assert [d.uuid for d in narrowed.devices] == [d.uuid for d in chosen]
        assert [d.visible_index for d in narrowed.devices] == list(range(len(chosen)))
        assert narrowed.visible_variable == own.variables[0]
        assert not narrowed.hidden


def test_a_process_for_the_processor_sees_none(machine):
    assert seen_by_a_process("cpu", cpu_slots().devices, of=machine.name) == []


def test_hidden_on_purpose(machine, monkeypatch):
    for key, value in registry.load(machine.name).environment(()).items():
        monkeypatch.setenv(key, value)
    found = discover()
    assert (found.source, found.hidden, found.inherited_visible) == ("cpu", True, "")


def test_figures_and_processes(machine):
    machine.busy(1, 40, 3 * GIB)
    child = subprocess.Popen([sys.executable, "-c", "input()", "a training"],
                             stdin=subprocess.PIPE)
    with child:
        machine.hold(1, child.pid, 2 * GIB)
        machine.hold(2, 4194303, GIB)
        first, second, third = take_once(discover()).samples
        assert (first.utilization, first.processes) == (0, ())
        assert (second.utilization, second.memory_used) == (0.4, 3 * GIB)
        (process,) = second.processes
        assert (process.pid, process.memory, process.visible) == (child.pid, 2 * GIB, True)
        assert process.command.endswith("a training")
        assert process.user
        (other,) = third.processes
        assert (other.visible, other.user, other.command) == (False, None, None)
        child.stdin.close()


def until(found: Sampler, holds: Callable[[Sample, Sample, Sample], bool]) -> list[Sample]:
    """The samples of the three devices as soon as `holds` of them: on a busy machine any of them
    may be late for a moment."""
    return wait_for(lambda: (latest := found.latest) and holds(*latest.samples)
                    and list(latest.samples))


def fine(*samples: Sample) -> bool:
    return not any(s.problem for s in samples)


def test_what_is_lost_says_so_and_comes_back(machine):
    with Sampler(discover(), interval=0.05, patience=2.0) as found:
        until(found, fine)
        machine.lose(1)
        _, lost, _ = until(found, lambda a, b, c: b.lost and fine(a, c))
        assert "lost" in lost.problem
        machine.mend()
        assert not any(s.lost for s in until(found, fine))


def test_one_that_hangs_keeps_nobody_waiting(machine):
    with Sampler(discover(), interval=0.05, patience=0.3) as found:
        until(found, fine)
        machine.hang(1)
        machine.busy(2, 70, GIB)
        _, late, _ = until(found, lambda a, b, c: b.problem and c.utilization == 0.7 and fine(a, c))
        assert "not answered" in late.problem
        assert not late.lost


def test_a_driver_that_is_unloaded_and_loaded_again(machine):
    with Sampler(discover(), interval=0.05, patience=2.0) as found:
        until(found, fine)
        machine.unload()
        wait_for(lambda: "not loaded" in (found.latest.problem or ""))
        without = discover()
        assert without.source == "cpu"
        assert "not loaded" in without.problem
        machine.mend()
        until(found, fine)


def spec_of(*ids: str) -> RunSpec:
    """A run of a person's own command, a rank a device."""
    return from_dict({"task": {"command": ["train"]}, "devices": {"ids": list(ids)},
                      "parallel": {"mode": "ddp"}})


def blocked(name: str, devices: Sequence[Device]) -> str | None:
    made = plan(spec_of(*(d.id for d in devices)), Inventory(tuple(devices), name), python="python")
    return start.blocked(made, again_on_them=False)


def test_the_look_right_before_a_start(machine, monkeypatch):
    monkeypatch.setattr(start, "PATIENCE", 0.0)
    devices, own = discover().devices, registry.load(machine.name)
    assert blocked(machine.name, devices) is None
    machine.hold(1, os.getpid(), 2 * GIB)
    assert blocked(machine.name, devices[:1]) is None
    assert "GPU 1 is no longer free" in blocked(machine.name, devices)
    machine.mend()
    machine.remove(2)
    assert blocked(machine.name, devices[:2]) is None
    assert own.gone in blocked(machine.name, devices)
    machine.unload()
    assert "not loaded" in blocked(machine.name, devices)
    machine.uninstall()
    with pytest.raises(discovery.NoAnswer, match=own.missing):
        next(discovery.readings(machine.name, devices, 10.0))


# --- a vendor is one backend and its name in one list -------------------------------------------


def test_devices_of_a_vendor_that_this_version_does_not_know():
    with pytest.raises(discovery.NoAnswer, match=r"no device backend 'abacus'; .* nvml, .*cpu"):
        next(discovery.readings("abacus", (), 1.0))


def test_no_other_file_names_a_vendor():
    """Nobody imports a backend: `registry` finds each by its name."""
    import gpu_engine
    import gpu_panel

    roots = [Path(m.__file__).parent for m in (gpu_engine, gpu_panel)]
    backends = roots[0] / "devices" / "backends"
    vendors = {re.search(r"backends\.(\w+)", where)[1] for where in registry.BACKENDS.values()}
    assert vendors >= {"nvidia", "cpu"}
    named = {file for root in roots for file in root.rglob("*.py")
             if re.search(rf"backends(\.| import )({'|'.join(vendors)})\b", file.read_text())}
    assert named == {f for f in named if backends in f.parents}
    assert backends / "registry.py" in named
