"""Devices that a person holds without a run, on CPU slots."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_engine.common import procs
from gpu_engine.devices import leases

from ..command_line import called
from ..conftest import wait_for
from ..remote.run.kit import make_hosts

WIDE = "import os, sys; print(os.environ['CUDA_VISIBLE_DEVICES'] == '', flush=True); "


def engine(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "gpu_engine", *words], capture_output=True,
                          text=True, stdin=subprocess.DEVNULL, timeout=100, check=False)


def states() -> dict[str, str]:
    devices = json.loads(engine("devices", "--json").stdout)["devices"]
    return {d["id"]: f"{d['state']}: {d['reason']}" for d in devices if d["id"] in ("cpu:0",)}


def keepers() -> list[int]:
    """The processes of this test that keep a hold."""
    home = os.environ["GPU_PANEL_HOME"].encode()
    found = []
    for pid in (int(p.name) for p in Path("/proc").iterdir() if p.name.isdecimal()):
        try:
            if b"hold" in procs.arguments(pid) and b"GPU_PANEL_HOME=" + home in \
                    procs.environment(pid):
                found.append(pid)
        except OSError:
            continue
    return found


def test_a_device_is_held_for_a_time_by_nobody_s_run_and_let_go(home):
    done = engine("hold", "--devices", "cpu:0", "--for", "1h", "--why", "reading")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("CPU 0 held until ")
    assert len(keepers()) == 1
    assert ": reading" in states()["cpu:0"]
    assert states()["cpu:0"].startswith("leased: held by ")
    again = engine("hold", "--devices", "cpu:0", "--for", "1h")
    assert again.returncode == 2
    assert "CPU 0 is held by" in again.stderr
    assert "reading. Take other devices, or wait until it ends\n" in again.stderr
    assert "say which device" not in engine("release").stdout
    assert leases.holds(home / "leases") == []
    assert not states()["cpu:0"].startswith("leased")
    wait_for(lambda: not keepers())
    assert "you hold nothing" in engine("release").stderr


def test_a_device_of_a_host_is_held_there(home):
    make_hosts(home, "a")
    done = engine("hold", "--devices", "a:cpu:0", "--for", "1h", "--why", "reading")
    assert done.stdout.startswith("a: CPU 0 held until "), done.stderr
    assert [str(leased).partition(": ")[2]
            for leased in leases.holders(home.parent / "a/leases").values()] == ["reading"]
    assert ": reading" in engine("devices", "--hosts").stdout
    again = engine("hold", "-n", "1", "--devices", "a:cpu:0", "--for", "1h")
    assert again.returncode == 2
    again = engine("hold", "--devices", "a:cpu:0", "--for", "1h")
    assert (again.returncode, "CPU 0 is held by" in again.stderr) == (2, True)
    assert engine("release", "a:cpu:0").stdout == "a: CPU 0 released\n"
    assert not leases.holders(home.parent / "a/leases")


def test_a_hold_ends_by_itself_and_with_its_keeper(home):
    engine("hold", "--devices", "cpu:0", "--for", "1s", "--why", "short")
    wait_for(lambda: not keepers())
    assert not states()["cpu:0"].startswith("leased")
    engine("hold", "--devices", "cpu:0", "--for", "1h")
    os.kill(keepers()[0], 9)  # as a reboot does
    wait_for(lambda: not states()["cpu:0"].startswith("leased"))


def test_a_command_has_the_device_while_it_runs(home):
    look = f"{WIDE} os.system('{sys.executable} -m gpu_engine devices'); sys.exit(3)"
    done = engine("hold", "--devices", "cpu:0", "--", sys.executable, "-c", look)
    assert done.returncode == 3
    assert done.stdout.startswith("True\n")
    assert "leased: held by" in done.stdout
    assert leases.holds(home / "leases") == []
    late = engine("hold", "--devices", "cpu:0", "--for", "1s", "--", "sleep", "1000")
    assert late.returncode == 128 + 15
    assert "the time is up" in late.stderr
    assert "no-such: No such file" in engine(
        "hold", "--devices", "cpu:0", "--", "no-such").stderr
    assert leases.holds(home / "leases") == []


@pytest.mark.parametrize("which", [0, 1])
def test_a_command_does_not_outlive_its_hold(home, tmp_path, which):
    """Whichever of the two processes is killed; the command has a child, and an orphan."""
    pids = tmp_path / "pids"
    script = (f"(sleep 1000 & echo $! >> {pids}); sleep 1000 & echo $! >> {pids}; "
              f"echo $$ >> {pids}; wait")
    hold = subprocess.Popen([sys.executable, "-m", "gpu_engine", "hold", "--devices", "cpu:0", "--",
                             "sh", "-c", script])
    wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 3)
    below = [int(pid) for pid in pids.read_text().split()]
    ours = [hold.pid, *(pid for pid in keepers() if pid != hold.pid and pid not in below)]
    assert len(ours) == 2
    assert states()["cpu:0"].startswith("leased")
    os.kill(ours[which], signal.SIGKILL)
    wait_for(lambda: not any(map(procs.start_ticks, below)))
    assert hold.wait() in (-9, 128 + 9)
    wait_for(lambda: not keepers())
    assert leases.holds(home / "leases") == []


@pytest.mark.parametrize(("words", "wrong"), [
    ((), "say for how long"), (("--for", "soon"), "--for soon: no length of time"),
    (("--for", f"{10**30}h"), "no length of time within a year"),
    (("--for", "1h", "--devices", "99"), "there is no device 99"),
    (("--for", "1h", "-n", "1", "--devices", "cpu:0"), "give one of them"),
    (("--devices", "slurm:0"), "salloc --gpus=1"),
    (("--for", "1h", "--devices", "a:cpu:0,b:cpu:0"), "devices of one machine are held")])
def test_what_can_not_be_held(home, words, wrong):
    done = called("hold", *words)
    assert done.returncode == 2
    assert wrong in done.stderr
    assert "Traceback" not in done.stderr
