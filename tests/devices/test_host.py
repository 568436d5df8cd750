"""CPU slots, the machine's own figures, and who a process is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common import cgroups
from gpu_engine.devices import host
from gpu_engine.devices.backends import cpu
from gpu_engine.devices.host import Owners


@given(st.lists(st.integers(0, 255), min_size=1, unique=True).map(sorted))
def test_slots_are_equal_groups_of_all_cores(cores):
    found = cpu.slots(cores, 1 << 30)
    assert [c for d in found for c in d.cores] == cores
    assert len(found) == min(8, len(cores))
    sizes = [len(d.cores) for d in found]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    assert [d.id for d in found] == [f"cpu:{i}" for i in range(len(found))]
    assert [d.label for d in found] == [f"CPU {i}" for i in range(len(found))]


@pytest.mark.parametrize(("quota", "count"), [(None, 8), (2.5, 2), (0.5, 1), (64.0, 8)])
def test_a_container_gets_no_more_slots_than_time(quota, count):
    found = cpu.slots(list(range(32)), quota=quota)
    assert len(found) == count
    assert sum(len(d.cores) for d in found) == 32


def test_slots_take_the_cores_of_this_process():
    mine = sorted(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, {{{mine[-1]}}}); "
        "from gpu_engine.devices.discover import cpu_slots; "
        "print([d.cores for d in cpu_slots().devices])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"[({mine[-1]},)]"


STAT = """cpu  100 0 100 800 0 0 0 0 0 0
cpu0 50 0 50 400 0 0 0 0 0 0
cpu3 50 0 50 300 100 0 0 0 0 0
intr 1
"""


def test_cores_keep_their_numbers_where_some_are_off(tmp_path):
    (tmp_path / "stat").write_text(STAT)
    found = host.core_times(tmp_path / "stat")
    assert set(found) == {-1, 0, 3}
    assert found[3] == host.CoreTimes(100, 500), "waiting for a disk is idle"


def test_the_machines_figures(tmp_path):
    reader = host.HostReader(tmp_path / "not" / "made" / "yet")
    time.sleep(0.2)
    found = reader.read()
    import psutil

    assert 0 <= found.cpu <= 1
    assert found.memory_total <= psutil.virtual_memory().total
    assert 0 < found.memory_used < found.memory_total
    assert found.disk_free == pytest.approx(psutil.disk_usage(str(tmp_path)).free, rel=0.05)
    assert host.HostReader(None).read().disk_free is None


def test_a_disk_that_hangs_holds_nobody(tmp_path, monkeypatch):
    release, real = threading.Event(), os.statvfs
    monkeypatch.setattr(host.os, "statvfs", lambda path: release.wait() and real(path))
    reader = host.HostReader(tmp_path)
    began = time.monotonic()
    for _ in range(3):
        assert reader.read().disk_free is None
    assert time.monotonic() - began < 20  # it would hang for ever
    assert sum(t.name == "disk" and t.is_alive() for t in threading.enumerate()) == 1
    release.set()


def group(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_a_containers_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroups, "_cgroup_folders", lambda root: [root / "a" / "b", root / "a"])
    group(tmp_path / "a" / "b", memory__max="max\n", memory__current="300\n")
    group(
        tmp_path / "a",
        memory__max="1000\n",
        memory__current="700\n",
        memory__stat="anon 5\ninactive_file 100\n",
    )
    assert cgroups.memory_limit(tmp_path) == (1000, 600)
    group(tmp_path / "a" / "b", memory__max="500\n")
    assert cgroups.memory_limit(tmp_path) == (500, 300)


def test_a_containers_cpu_time(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroups, "_cgroup_folders", lambda root: [root, root / "above"])
    assert cgroups.cpus(tmp_path) is None
    group(tmp_path, cpu__max="max 100000\n")
    assert cgroups.cpus(tmp_path) is None
    group(tmp_path, cpu__max="250000 100000\n")
    assert cgroups.cpus(tmp_path) == 2.5
    group(tmp_path / "above", cpu__max="150000 100000\n")
    assert cgroups.cpus(tmp_path) == 1.5


def test_who_a_process_is():
    owners = Owners()
    assert owners.find(os.getpid()).cpu is None
    began, spent = time.monotonic(), time.process_time()
    while time.process_time() - spent < 0.3:  # however long that takes on a busy machine
        pass
    mine = owners.find(os.getpid())
    share = (time.process_time() - spent) / (time.monotonic() - began)
    assert mine.cpu == pytest.approx(share, rel=0.2)
    # Of this Python, or the title that pytest-xdist gives it where it can.
    words = Path("/proc/self/cmdline").read_text().split("\0")
    assert words[0].rpartition("/")[2] in mine.command
    assert owners.find(0) is None
    assert owners.find(1 << 22) is None


def test_a_pid_that_is_used_again_is_somebody_else(tmp_path):
    (tmp_path / "stat").write_text("btime 1000\n")
    (tmp_path / "7").mkdir()

    def process(name, ticks, cpu):
        fields = ["S", *["0"] * 10, str(cpu), "0", *["0"] * 6, str(ticks), "0", "10"]
        (tmp_path / "7" / "stat").write_text(f"7 ({name}) {' '.join(fields)}\n")
        (tmp_path / "7" / "cmdline").write_bytes(name.encode() + b"\0--lr\0001\0")

    now = [0.0]
    owners = Owners(tmp_path, clock=lambda: now[0])
    process("one", 100, 500)
    assert owners.find(7).command == "one --lr 1"
    now[0] = 2.0
    process("two ) x", 900, 0)
    second = owners.find(7)
    assert (second.command, second.cpu) == ("two ) x --lr 1", None)
    assert second.started == 1000 + 900 / os.sysconf("SC_CLK_TCK")
    now[0] = 4.0
    process("two ) x", 900, os.sysconf("SC_CLK_TCK"))
    assert owners.find(7).cpu == 0.5
