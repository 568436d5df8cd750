"""`gpu-engine devices --wait-free`: on the stand-in driver, whose GPUs come and go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

from gpu_engine.common import paths
from gpu_engine.devices import leases
from gpu_engine.devices.availability import Availability, Steady
from gpu_engine.devices.discover import discover

from ..command_line import called
from ..conftest import patience

GIB = 1 << 30
FREE, BUSY = Availability("free", "free"), Availability("busy", "x")


def test_a_device_must_stay_free_for_some_looks():
    seen = Steady(3)
    a, b = {"a": FREE, "b": BUSY}, {"a": BUSY, "b": FREE}
    assert [set(seen.update(f)) for f in (a, a, a, a, b, b, b, a)] == [
        set(), set(), {"a"}, {"a"}, set(), set(), {"b"}, set()]
    assert seen.update({}) == frozenset()
    assert not any(seen.update({"a": Availability("unknown", "")}) for _ in range(4))


def waiting(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "gpu_engine", "devices", *words], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_it_waits_until_enough_are_free_and_prints_their_ids(home, as_this_machine):
    """A device that a run holds is not free, whatever the driver says."""
    busy = f"gpu 2 proc {os.getpid()} {GIB}"
    machine = as_this_machine("count 3", busy)
    held = leases.acquire(paths.leases_folder(), [discover().devices[0]], "3f2a")
    child = waiting("--wait-free", "2")
    try:
        said = child.stderr.readline()
        assert said == "waiting for 2; free now: 1\n"
        machine.set("count 3")
        assert child.stdout.readline() == "1,2\n"
        assert child.wait(patience()) == 0
    finally:
        held.close()
        child.kill()
        child.communicate()


def test_free_memory_is_asked_for_and_an_interrupt_says_so(home, as_this_machine):
    as_this_machine("count 2", f"gpu 0 mem_total {8 * GIB}", f"gpu 0 mem_used {GIB >> 3}",
                    f"gpu 1 mem_total {80 * GIB}", f"gpu 1 mem_used {GIB >> 3}")
    done = called("devices", "--wait-free", "1", "--free-gib", "20", "--json")
    assert (json.loads(done.stdout), done.returncode) == ({"ids": ["1"]}, 0)
    done = called("devices", "--wait-free", "2", "--free-gib", "20")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--wait-free 2: this machine has 1 devices with 20.0 GiB of memory" in done.stderr
    assert called("devices", "--free-gib", "20").returncode == 2
    assert called("devices", "--wait-free", "0").returncode == 2
    child = waiting("--wait-free", "2", "--free-gib", "7.95")  # never: 128 MiB of the 8 are used
    timer = threading.Timer(patience(), child.kill)
    timer.start()
    assert "waiting for 2; free now: 0, 1" in child.stderr.readline()
    child.send_signal(signal.SIGINT)
    assert (child.wait(), child.stdout.read()) == (130, "")
    timer.cancel()
    child.communicate()
