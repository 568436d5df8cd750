"""A driver that hangs, loses GPUs or goes away: nobody waits, and what is shown says so."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_engine.common import procs
from gpu_engine.devices import sampler
from gpu_engine.devices.discover import cpu_slots, discover
from gpu_engine.devices.sampler import Sampler

from .machines import take_once

LONG = 60.0
"""Seconds, where a fault would wait for ever: a busy machine may take some of them."""

CALM = 5.0
"""Seconds that a driver has which does not hang, however busy the machine is."""


def until(condition, seconds=LONG):
    """Wait for a condition; what it gave."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"not within {seconds} s")


@pytest.fixture
def running(as_this_machine):
    """`running(*lines)` is a sampler on such a machine, after its first snapshot."""
    started = []

    def start(*lines, interval=0.05, patience=0.3, **options):
        machine = as_this_machine(*lines)
        found = Sampler(discover(), interval=interval, patience=patience, **options)
        started.append(found)
        found.start()
        until(lambda: found.latest)
        return machine, found

    yield start
    for one in started:
        one.close()


def problem_of(found, device):
    return found.latest.of(device).problem


def test_one_gpu_that_hangs_leaves_the_others_readable(running):
    machine, found = running("count 2", "gpu 0 util 20", "gpu 1 util 30", patience=2.0)
    machine.add("gpu 0 hang 1", "gpu 1 util 60")
    until(lambda: problem_of(found, "0"))
    until(lambda: found.latest.of("1").utilization == 0.6)
    assert "has not answered about it for" in problem_of(found, "0")
    assert found.latest.of("0").utilization == 0.2, "the last figures stay, marked"
    assert problem_of(found, "1") is None
    assert found.latest.of("0").taken < found.latest.of("1").taken
    until(lambda: found.age() < 1)
    machine.add("gpu 0 hang 0", "gpu 0 util 40")
    until(lambda: problem_of(found, "0") is None)
    assert found.latest.of("0").utilization == 0.4


def test_the_others_do_not_wait_for_one_that_is_known_to_hang(running):
    # Were each look to wait for it, the five would take five times the patience.
    machine, found = running("count 2", patience=2.0)
    machine.add("gpu 0 hang 1")
    until(lambda: problem_of(found, "0"))
    before = len(found.recent)
    until(lambda: len(found.recent) - before >= 5, 9.0)


def test_a_driver_that_hangs_shows_its_age(running):
    machine, found = running("count 2", "gpu 0 util 20")
    machine.add("gpu * hang 1")
    until(lambda: found.latest.problem)
    until(lambda: found.age() > 0.5)
    before = time.monotonic()
    for _ in range(1000):
        assert found.latest.of("0").utilization == 0.2
    assert time.monotonic() - before < LONG
    assert "has not answered" in found.latest.problem
    assert found.latest.host.memory_used > 0, "the machine's own figures go on"
    machine.add("gpu * hang 0")
    until(lambda: found.latest.problem is None)
    until(lambda: found.age() < 1)


def test_a_gpu_that_vanishes_does_not_lend_its_number_to_another(running):
    machine, found = running("count 3", "gpu 0 util 10", "gpu 1 util 20", "gpu 2 util 30",
                             patience=CALM)
    machine.add("gpu 0 gone 1", "gpu 1 util 21", "gpu 2 util 31")
    until(lambda: problem_of(found, "0"))
    until(lambda: found.latest.of("2").utilization == 0.31)
    assert found.latest.of("1").utilization == 0.21
    machine.add("gpu 0 gone 0")
    until(lambda: problem_of(found, "0") is None)


def test_a_renumbered_machine_is_read_by_uuid(as_this_machine):
    """GPU 0 falls off between discovery and the first look: all handles are new."""
    machine = as_this_machine("count 3", "gpu 1 util 20", "gpu 2 util 30")
    inventory = discover()
    machine.add("gpu 0 gone 1")
    samples = take_once(inventory).samples
    assert "no longer lists it" in samples[0].problem
    assert [s.utilization for s in samples[1:]] == [0.2, 0.3]


def test_a_slice_that_is_cut_anew_is_gone(running):
    machine, found = running("gpu 0 mig 1", "gpu 0 slice 0 MIG-a", patience=CALM)
    machine.set("gpu 0 mig 1", "gpu 0 slice 0 MIG-b", "gpu 0 lost 1")
    until(lambda: problem_of(found, "MIG-a"))
    machine.set("gpu 0 mig 1", "gpu 0 slice 0 MIG-b")
    until(lambda: "no longer lists" in (problem_of(found, "MIG-a") or ""))


def test_a_crash_in_the_drivers_library_is_survived(running):
    machine, found = running("gpu 0 util 10", patience=CALM)
    machine.add("crash 1")
    until(lambda: found.latest.problem)
    assert "signal 11" in found.latest.problem
    machine.set("gpu 0 util 20")
    until(lambda: found.latest.of("0").utilization == 0.2)


def test_no_second_process_where_the_first_can_not_be_ended(running, monkeypatch):
    """In uninterruptible sleep a kill has no effect; each new one would only join it."""
    from gpu_engine.devices import probe

    machine, found = running("gpu 0 util 10")
    monkeypatch.setattr(probe.Probe, "ended", lambda _: False)
    machine.add("crash 1")
    until(lambda: "the process that reads it" in (found.latest.problem or ""))
    started = machine.calls()["nvmlInitWithFlags"]
    machine.set("gpu 0 util 20")
    time.sleep(0.3)
    assert machine.calls()["nvmlInitWithFlags"] == started
    monkeypatch.undo()


PROGRAM = """
import os, sys, time
from gpu_engine.devices.discover import discover
from gpu_engine.devices.sampler import Sampler
inventory = discover()
if sys.argv[1] == "start":
    open(os.environ["NVML_STANDIN_STATE"], "a").write("init_hang 1\\n")
found = Sampler(inventory, interval=0.05, patience=0.3)
found.start()
while found.latest is None:
    time.sleep(0.01)
print(found._probe.pid, flush=True)
if sys.argv[1] != "exit":
    time.sleep(60)
while found.latest.problem is None:
    time.sleep(0.01)
print("hangs", flush=True)
"""


@pytest.mark.parametrize("how", ["exit", "wait", "start"])
def test_a_hanging_driver_holds_no_exit_and_leaves_nothing(standin, how):
    """A program that never closes its sampler ends at once, also by SIGKILL; so does the probe."""
    machine = standin("count 2")
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how],
        env=machine.env(),
        stdout=subprocess.PIPE,
        text=True,
    )
    probe = int(program.stdout.readline())
    if how != "start":
        machine.add("gpu * hang 1")
    if how != "exit":
        time.sleep(0.2)
        program.send_signal(signal.SIGKILL)
    else:
        assert program.stdout.readline() == "hangs\n"
    program.wait(LONG)
    until(lambda: not procs.start_ticks(probe))
    program.stdout.close()


def test_cpu_slots_are_sampled_alike():
    inventory = cpu_slots()
    with Sampler(inventory, Path.cwd(), interval=60.0) as found:
        assert found.age() is None
        until(lambda: found.latest)
        sample = found.latest.samples[0]
        assert 0 <= sample.utilization <= 1
        assert 0 < sample.memory_used < sample.memory_total
        assert found.latest.host.disk_free > 0
        assert found.age() < LONG
        began = time.monotonic()
    assert time.monotonic() - began < LONG  # not the interval


def test_some_looks_for_a_program_without_a_screen(as_this_machine, monkeypatch):
    def late(self):
        last = self.latest
        until(lambda: self.latest is not last)
        close(self)

    close = Sampler.close
    monkeypatch.setattr(Sampler, "close", late)  # as on a busy machine
    as_this_machine("count 2", "gpu 0 util 5")
    looks = sampler.take_several(discover(), readings=3)
    assert len(looks) == 3
    assert looks[-1].host.cpu is not None
    assert all(s.of("0").utilization == 0.05 for s in looks)
