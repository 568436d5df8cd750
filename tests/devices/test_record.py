"""A run's devices are recorded while it runs: from the driver's calls to the line in the file."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from gpu_engine.common.paths import leases_folder
from gpu_engine.devices.availability import judge_all
from gpu_engine.devices.discover import discover
from gpu_engine.devices.leases import holders
from gpu_engine.devices.records import Device
from gpu_engine.events import schema
from gpu_engine.events.paths import DEVICES
from gpu_engine.events.reader import Tail
from gpu_engine.runs.folder import Run
from gpu_engine.supervisor import device_record
from gpu_engine.supervisor.device_record import DeviceRecord

from ..conftest import wait_for
from ..observe.kit import PYTHON, Ran, engine_run, start
from .machines import take_once


def written(run: Run) -> list[schema.Devices]:
    found = Tail(run.path / DEVICES).read()
    assert all(isinstance(e, schema.Devices) for e in found)
    return [e for e in found if isinstance(e, schema.Devices)]


def told(run: Run, record: DeviceRecord) -> list[schema.Devices]:
    """Look until there is a line."""
    def look() -> list[schema.Devices]:
        record.sample()
        return written(run)

    return wait_for(look)


def test_gpus_are_read_by_the_probe(as_this_machine, tmp_path: Path) -> None:
    machine = as_this_machine("count 2", "gpu 0 util 37", "gpu 0 power 301500", "gpu 0 temp 61",
                              "gpu 1 util na", "gpu 1 power na", "gpu 1 temp na")
    run, found = Run(tmp_path), discover()
    record = DeviceRecord(run, found.source, found.devices, every=0.05)
    began = time.time()
    first = told(run, record)[0]
    assert (first.ids, first.utilization, first.temperature, first.power) == (
        ("0", "1"), (0.37, None), (61.0, None), (301.5, None))
    assert began - 1 < first.t < time.time() + 1
    machine.add("gpu * util na", "gpu * temp na", "gpu * power na")
    # A list of which nothing is known is left out: unknown, and not 0.
    wait_for(lambda: (record.sample(), written(run)[-1].utilization == ())[1])
    probe = record._probe
    record.close()
    wait_for(probe.ended)
    many = len(written(run))
    record.sample()
    assert len(written(run)) == many


def test_what_reads_the_gpus_is_not_what_a_command_has_left_running(home, as_this_machine) -> None:
    as_this_machine("count 1")
    # The command ends once the first reading is there, however late a busy machine makes it.
    until = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.1)"
    run, state = engine_run("--devices", "0", "--", PYTHON, "-c", until, f"{{run.dir}}/{DEVICES}")
    seen = Ran(run, state, None)
    assert state["state"] == "completed", seen.log()
    assert written(run)
    assert not [e for e in seen.of("warning") if "running was ended" in e["message"]]


def test_a_run_on_a_gpu_that_it_does_not_hold_is_named_there_and_a_stop_leaves_the_probe_alone(
        home, as_this_machine) -> None:
    machine = as_this_machine("count 4")
    other = subprocess.Popen(["sleep", "1000"])
    seen = start("sleep", "1000", devices="0")
    try:
        (process,) = wait_for(lambda: seen.run.state().processes)
        machine.add(f"gpu 0 proc {process.pid} 1 compute", f"gpu 1 proc {other.pid} 1 compute",
                    f"gpu 2 proc {process.pid} 1 graphics", f"gpu 3 proc {process.pid} 1 compute")
        (notice,) = wait_for(lambda: seen.run.state().warnings)
        shot = take_once(discover())
    finally:
        other.kill()
        other.wait()
    assert (notice.code, notice.message) == (
        "other-device", "the run computes on GPU 3, but holds GPU 0")
    assert notice.cure[1].startswith("gpu-engine run --devices 3 ")
    states = judge_all([shot], holders(leases_folder()))
    owner = states["1"].reason.partition(" · ")[0]
    assert states["3"].reason.startswith(f"run {seen.run.path.name} of {owner} · sleep 1000")
    assert {e.ids for e in written(seen.run)} == {("0",)}
    seen.run.stop()
    state = wait_for(lambda: (s := seen.run.state()) and not s.live and s)
    assert state.state == "stopped"
    assert "no longer recorded" not in (seen.run.path / "supervisor.log").read_text()


def test_why_a_clock_is_held_down_and_who_else_computes_there(as_this_machine, tmp_path: Path,
                                                              ) -> None:
    ours = subprocess.Popen(["sleep", "3600"])
    below = subprocess.Popen(["sh", "-c", "sleep 3600; :"],  # has one below itself
                             start_new_session=True)
    try:
        [grandchild] = wait_for(lambda: Path(
            f"/proc/{below.pid}/task/{below.pid}/children").read_text().split())
        as_this_machine(
            "count 5", "gpu * clock_sm 705", f"gpu 0 proc {ours.pid} 1 compute 40",
            f"gpu 0 proc {grandchild} 1 compute 30", f"gpu 0 proc {os.getppid()} 1 compute 25",
            f"gpu 1 proc {ours.pid} 1 compute 90", f"gpu 2 proc {os.getppid()} 1 compute 10",
            "gpu 2 proc 4194303 1 compute 10", f"gpu 3 proc {os.getppid()} 1 mps 20",
            "gpu 4 proc 1 1 compute 15",  # has nothing above it, as what `docker exec` starts
            "gpu 1 reasons 72", "gpu 2 reasons na")
        run, found = Run(tmp_path), discover()
        record = DeviceRecord(run, found.source, found.devices, every=0.05)
        told(run, record)
        last = wait_for(lambda: (record.sample(), [e for e in written(run) if e.others])[1])[-1]
        record.close()
    finally:
        ours.kill()
        os.killpg(below.pid, signal.SIGKILL)
        for one in (ours, below):
            one.wait()
    assert last.clock == (0.5,) * 5
    assert last.throttle == ("", "too hot (hardware)", None, "", "")
    # Of a process that can't be seen from here, or that uses MPS, nobody knows whose the time is.
    assert last.others == (0.25, 0.0, None, None, 0.15)


def test_slots_are_read_without_a_probe_and_not_before_the_ranks_have_started(
        tmp_path: Path, monkeypatch) -> None:
    core = min(os.sched_getaffinity(0))
    slot = Device("cpu:0", "cpu", "CPU 0", index=0, cores=(core,))
    now = 100.0
    monkeypatch.setattr(device_record.time, "monotonic", lambda: now)
    run = Run(tmp_path)
    record = DeviceRecord(run, "cpu", [slot], every=5.0)
    record.sample()
    now = 105.0
    record.sample()  # the first reading, with nothing to compare
    assert not (tmp_path / DEVICES).exists()
    now = 110.0
    record.sample()
    record.sample()  # it is not due again
    (line,) = written(run)
    assert line.ids == ("cpu:0",)
    assert line.memory_used[0] is not None
    assert line.power == ()
    record.close()


def test_what_goes_wrong_harms_no_run(tmp_path: Path, caplog) -> None:
    slot = Device("cpu:0", "cpu", "CPU 0", index=0, cores=(0,))
    record = DeviceRecord(Run(tmp_path / "gone"), "cpu", [slot], every=0.0)
    record.sample()
    with caplog.at_level("INFO"):
        record.sample()
        record.sample()
    assert caplog.text.count("no longer recorded") == 1
    DeviceRecord(Run(tmp_path), "a vendor of another version", [slot], every=0.0).sample()
    DeviceRecord(Run(tmp_path), "cpu", []).sample()
