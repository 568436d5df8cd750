"""Other users of the machine, one of them hostile. What single moves come to is in
tests/devices/leases."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_engine.common import paths
from gpu_engine.devices import leases
from gpu_engine.devices.leases import shared
from gpu_engine.devices.records import Device
from gpu_engine.runs import folder as runs

from ..conftest import wait_for
from ..devices.conftest import _builder
from ..devices.leases.users import BOB, users
from .kit import Box, case

HOSTILE = """
box = shared.find()
about = {"run": "forged", "pid": PID, "shared": False, "user": "root", "uid": 0,
         "devices": [{"key": KEY, "label": "GPU 1"}]}
forged = held.make(box.claims, about)
name = lambda: f"{time.time_ns():019d}-{secrets.token_hex(4)}"
for at in (box.claims, box.line):
    for n in range(300):
        open(at / name(), "w").write(json.dumps(about))
    os.mkfifo(at / name())
    os.mkdir(at / name(), 0)
    os.symlink("/dev/tty", at / name())
signal.signal(signal.SIGIO, signal.SIG_IGN)
leased = os.open(box.claims / name(), os.O_CREAT | os.O_RDWR, 0o644)
fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)
"""
ON_WHAT_LIVES = """
theirs = [f.path for f in held.read(box.claims) if f.uid == 0]
for path in theirs:
    for move in (path.unlink, lambda: path.chmod(0), lambda: os.rename(path, box.claims / "x"),
                 lambda: os.open(path, os.O_WRONLY), box.claims.rmdir):
        try:
            move()
        except OSError:
            pass
        else:
            raise AssertionError("nothing of this may be possible")
"""


@contextlib.contextmanager
def shared_folder(box: Box) -> Iterator[shared.Shared]:
    """A folder that root has set up for all users, where all can come."""
    place = Path(tempfile.mkdtemp(prefix="gpu-panel-faults-"))
    place.chmod(0o755)
    box.patch.setenv(shared.VARIABLE, str(place / "shared"))
    try:
        yield shared.set_up()
    finally:
        box.patch.setenv(shared.VARIABLE, "")
        shutil.rmtree(place)


@case("Another user holds a GPU under a forged name, floods the shared folder with whatever can be "
      "made in it, and tries to change what others have there",
      "his GPU is refused by his own name, the other one is taken at once and refused to him; "
      "with his process his claim is gone", root=True)
def a_hostile_user(box: Box) -> None:
    try:
        library = _builder().build(box.tmp / "nvml")
    except RuntimeError as err:
        pytest.skip(str(err))
    machine = box.tmp / "machine"
    machine.mkdir()
    driver = _builder().Standin(library, machine)
    driver.set("count 2", "gpu * util 0")
    body = box.tmp / "launched.py"
    body.write_text("start()\nwhile not asked: time.sleep(0.02)\nfinish('stopped')")
    for name, value in (driver.env() | {"FAULT_BODY": str(body)}).items():
        box.patch.setenv(name, value)
    first, second = (d["uuid"] for d in json.loads(box.cli("devices", "--json").stdout)["devices"])
    words = ("run", "--json", "--set", "task.use=gpu_engine.tasks.bytes_gpt:BytesGPT", "--set",
             f"run.python={box.interpreter()}", "--set")
    with shared_folder(box) as there, users(BOB) as (mallory,):
        home = there.path.parent / "mallory"
        home.mkdir()
        os.chown(home, BOB, BOB)
        mallory.do(f"PID = {os.getpid()}\nKEY = {second!r}\n{HOSTILE}")
        refused = box.cli(*words, "devices.ids=1")
        assert refused.returncode == 2
        assert f"GPU 1 is held by run forged of uid {BOB} (since" in refused.stderr
        assert f"held by run forged of uid {BOB}" in box.cli("devices").stdout

        process = box.popen("-m", "gpu_engine", *words, "devices.ids=0", stdout=subprocess.PIPE)
        run = wait_for(lambda: next(iter(runs.all_runs()), None))
        box.running(run)
        mallory.do(ON_WHAT_LIVES)
        assert mallory.ask("len(theirs)") == 1
        assert f"is held by run {run.id} of root (pid {run.state().pid}" in mallory.refused(
            f"leases.acquire(pathlib.Path({str(home)!r}), "
            f"[Device('0', 'gpu', 'A100', index=0, uuid={first!r})], 'mine')")
        assert leases.holders(paths.leases_folder())[first].run == run.id
        run.stop()
        assert process.wait() == 130
        assert set(leases.holders(paths.leases_folder())) == {second}

        mallory.kill()
        assert leases.holders(paths.leases_folder()) == {}
        gpu = Device("1", "gpu", "A100", index=1, uuid=second)
        leases.acquire(paths.leases_folder(), [gpu], "mine").close()
