"""The processes of all GPUs as lines: one for each process, sorted, and only the command is cut."""

from __future__ import annotations

import pytest

from gpu_engine.devices.records import DeviceProcess, Sample, Snapshot
from gpu_panel.launch.device_source import Machine
from gpu_panel.launch.processes import ORDERS, build, gather, unlisted

from ....conftest import gpus
from ...panel_kit import NOW

ALICE = DeviceProcess(70, 30 << 30, user="alice", command="python train.py " + "--x " * 60,
                      started=NOW - 7300, host_memory=2 << 30, cpu=1.07, utilization=0.5)
BOB = DeviceProcess(80, 40 << 30, user="bob", command="python eval.py", started=NOW - 90, cpu=0.2)
HIDDEN = DeviceProcess(90, 1 << 30, visible=False)


def machine() -> Machine:
    """Alice is on GPU 0 and 2, bob on GPU 1; the driver lists nothing of GPU 3."""
    four = gpus(4)
    on = ((ALICE,), (BOB, HIDDEN), (ALICE,), None)
    samples = [Sample(d, processes=p) for d, p in zip(four.devices, on, strict=True)]
    return Machine(None, four, Snapshot(NOW, tuple(samples)))


def text(found, width=156, notes=()) -> list[str]:
    header, rows = build(found, notes, width, NOW)
    lines = ([header] if header else []) + [line for row in rows for line in row.lines]
    return ["".join(part for part, _ in line).rstrip() for line in lines]


def test_a_process_on_two_gpus_is_one_line_with_the_sum():
    head, first, second, third = text(gather([machine()], {80: "run 3f2a rank 1"}, "memory"))
    assert head.split() == ["pid", "user", "GPU", "run", "GPU", "mem", "SM", "CPU", "host", "mem",
                            "age", "command"]
    assert first.split()[:5] == ["70", "alice", "0", "2", "60.0"]
    assert "100 %" in first
    assert "2 h" in first
    assert second.split()[:7] == ["80", "bob", "1", "3f2a", "rank", "1", "40.0"]
    assert third.split()[0] == "90"
    assert "not visible from here" in third


@pytest.mark.parametrize("width", [64, 76, 90, 100, 116, 156])
def test_memory_and_age_are_never_cut(width):
    lines = text(gather([machine()], {70: "run 3f2a rank 1"}, "memory"), width)
    assert max(map(len, lines)) <= width
    assert "60.0 GiB" in lines[1]
    assert "2 h " in lines[1]
    assert lines[1].endswith("…")


@pytest.mark.parametrize(("order", "pids"), [
    ("memory", [70, 80, 90]), ("GPU", [70, 80, 90]), ("user", [70, 80, 90]),
    ("SM", [70, 80, 90]), ("CPU", [70, 80, 90]), ("age", [70, 80, 90]),
])
def test_every_order_has_the_most_or_the_first_on_top(order, pids):
    assert [p.process.pid for p in gather([machine()], {}, order)] == pids
    assert set(ORDERS) == {"memory", "GPU", "user", "SM", "CPU", "age"}


def test_orders_differ():
    four = gpus(2)
    one = DeviceProcess(1, 1 << 30, user="zoe", started=NOW - 9, cpu=3.0, utilization=0.1)
    two = DeviceProcess(2, 2 << 30, user="bob", started=NOW - 5, cpu=1.0, utilization=0.9)
    shot = Snapshot(NOW, (Sample(four.devices[0], processes=(one,)),
                          Sample(four.devices[1], processes=(two,))))
    first = {order: gather([Machine(None, four, shot)], {}, order)[0].process.pid
             for order in ORDERS}
    assert first == {"memory": 2, "GPU": 1, "user": 2, "SM": 2, "CPU": 1, "age": 1}


def test_a_host_s_processes_are_its_own():
    here = machine()
    there = Machine("gpu1", here.inventory, here.snapshot)
    found = gather([here, there], {70: "run 3f2a rank 0"}, "memory")
    assert [p.key for p in found] == ["70", "80", "90", "gpu1 70", "gpu1 80", "gpu1 90"]
    assert [p.ours for p in found] == ["run 3f2a rank 0", "", "", "", "", ""]
    lines = text(found)
    assert lines[0].split()[0] == "host"
    assert lines[4].split()[:2] == ["gpu1", "70"]
    assert unlisted([here, there]) == ["GPU 3: the driver does not list the processes",
                                       "GPU 3 on gpu1: the driver does not list the processes"]


def test_none_and_hostile_ones():
    assert text([]) == ["No processes on any GPU"]
    evil = "[bold]x\x1b]52;c;AAAA\x07\x9b31m\u202etxt\nnext"
    one = gpus(1)
    shot = Snapshot(NOW, (Sample(one.devices[0], processes=(
        DeviceProcess(7, user=evil, command=evil),)),))
    said = "".join(text(gather([Machine(evil, one, shot)], {}, "user")))
    assert all(c.isprintable() for c in said)
