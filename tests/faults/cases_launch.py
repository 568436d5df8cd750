"""Launches that are interrupted, made twice, refused, or find that something has changed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time

import pytest

from gpu_engine.common import paths
from gpu_engine.devices import leases as lease
from gpu_engine.runs import folder as runs

from ..conftest import wait_for
from ..devices.conftest import _builder
from .kit import Box, case

LAUNCH = """
import sys
from gpu_engine.places.verbs import launch
from gpu_engine.spec import from_dict
launch(from_dict({"task": {"use": "gpu_engine.tasks.bytes_gpt:BytesGPT"},
                  "devices": {"ids": ["cpu:0"]}, "run": {"python": sys.argv[1]}}))
print("launched", flush=True)
import time
time.sleep(60)
"""


def body(box: Box, text: str) -> None:
    path = box.tmp / "launched.py"
    path.write_text(text)
    box.patch.setenv("FAULT_BODY", str(path))


@case("SIGKILL to the launching program at many moments of a launch",
      "there is a live run that can be stopped, or a run that is shown as lost, or none")
def the_launcher_is_killed(box: Box) -> None:
    body(box, "start(); train()")
    for round_ in range(24 if box.full else 6):
        process = box.popen("-c", LAUNCH, str(box.interpreter()), stdout=subprocess.PIPE)
        if round_ == 0:
            process.stdout.readline()
        else:
            time.sleep(0.10 + 0.30 * ((round_ * 0.37) % 1))
        process.send_signal(signal.SIGKILL)
        process.wait()
    box.killed_launchers = True
    time.sleep(0.3)
    for run in runs.all_runs():
        state = wait_for(lambda run=run: (s := run.state()).state != "queued" and s)
        if state.live:
            run.stop(now=True)
            assert box.ended(run).state == "stopped"
        else:
            assert state.state == "lost", state
            assert "ended before the supervisor could start" in state.reason
    assert any(r.state().state == "stopped" for r in runs.all_runs())
    for path in paths.runs_folder().glob(".new-*"):
        os.utime(path, (1, 1))
    box.ended(box.go("start(); train(1)"))
    assert not list(paths.runs_folder().glob(".new-*"))


@case("Two launches for one GPU at the same moment", "one runs; the other names it and ends with 1 "
      "or 2")
def two_launches_for_one_gpu(box: Box) -> None:
    try:
        library = _builder().build(box.tmp / "nvml")
    except RuntimeError as err:
        pytest.skip(str(err))
    folder = box.tmp / "machine"
    folder.mkdir()
    driver = _builder().Standin(library, folder)
    driver.set("gpu 0 util 0")
    body(box, "start()\nwhile not asked: time.sleep(0.02)\nfinish('stopped')")
    env = driver.env() | {"FAULT_BODY": str(box.tmp / "launched.py")}
    for _ in range(4 if box.full else 2):
        both = [box.popen("-m", "gpu_engine", "run", "--json", "--set", "devices.ids=0", "--set",
                          "task.use=gpu_engine.tasks.bytes_gpt:BytesGPT", "--set",
                          f"run.python={box.interpreter()}", env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) for _ in range(2)]
        wait_for(lambda both=both: any(p.poll() is not None for p in both))
        loser = next(p for p in both if p.poll() is not None)
        winner = next(p for p in both if p is not loser)
        out, err = loser.communicate()
        assert loser.returncode in (1, 2), (out, err)
        assert re.search(r"is held by (run \w+|another run)", out + err), (out, err)
        # Which run it is is written a moment after the lease is taken.
        (holder,) = wait_for(lambda: all(held := [
            h.run for h in lease.holders(paths.leases_folder()).values()]) and held)
        holder = runs.find(holder)
        assert holder.state().live
        holder.stop()
        assert winner.wait() == 130
        winner.communicate()


@case("resume of a run that runs, and two resumes of one at the same moment",
      "refused with 2; one attempt more, not two")
def a_run_started_twice(box: Box) -> None:
    go_on = box.tmp / "go on"
    run = box.go("start(); step(1)\n"
                 f"while not os.path.exists({str(go_on)!r}): beat(); time.sleep(0.1)\n"
                 "train(60)")
    box.running(run)
    assert box.cli("resume", run.id).returncode == 2
    go_on.touch()
    box.ended(run)
    wait_for(lambda: not run.supervised())
    both = [box.popen("-m", "gpu_engine", "resume", run.id, "--json", stdout=subprocess.PIPE,
                      stderr=subprocess.PIPE) for _ in range(2)]
    for process in both:
        process.communicate(timeout=600)
    codes = sorted(process.returncode for process in both)
    assert codes in ([0, 2], [0, 0]), codes
    assert run.state().attempt == 1 + codes.count(0)
    assert len(run.state().attempts) == 1 + codes.count(0)


@case("Many processes read the list and its runs all the time, while runs start and end",
      "no state is ever read half-written, and reading never makes a run seem lost")
def looked_at_all_the_time(box: Box) -> None:
    done = threading.Event()
    seen: set[str] = set()

    def look() -> None:
        while not done.is_set():
            for run in runs.all_runs():
                seen.add(run.state().state)
            time.sleep(0.01)

    threads = [threading.Thread(target=look) for _ in range(20 if box.full else 6)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4):
            state = box.ended(box.go("start(); train(20)"))
            assert state.state == "completed"
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert seen <= {"queued", "starting", "running", "completed"}, seen
