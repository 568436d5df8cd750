"""Runs that make room for others: real supervisors and ranks on CPU slots; the rule for GPUs."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from gpu_engine.common import paths
from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.devices import leases
from gpu_engine.devices.discover import discover
from gpu_engine.devices.records import Device, DeviceProcess, Sample
from gpu_engine.launching import launcher
from gpu_engine.queue import give_way, serve, submit
from gpu_engine.queue.give_way import Room
from gpu_engine.queue.turns import When
from gpu_engine.runs import waiting
from gpu_engine.runs.state import AttemptRecord
from gpu_engine.spec.read import from_dict
from gpu_engine.supervisor import start
from gpu_engine.supervisor.supervise import Supervisor

from ..conftest import wait_for
from ..devices.conftest import as_this_machine, standin, standin_library  # noqa: F401
from ..e2e.kit import events, losses
from .kit import over, queue, reason, spec, state
from .test_gpus import gpus  # noqa: F401

SLOWLY = '''
import os, time
import torch, gpu_engine
class Slowly(gpu_engine.Task):
    """Takes its time until there is a file "go"."""
    def model(self):
        return torch.nn.Linear(4, 1)
    def train_data(self):
        x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
        return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    def loss(self, model, batch):
        time.sleep(0 if os.path.exists("go") else 0.03)
        x, y = batch
        noise = torch.rand(())  # so that a generator that is not restored is seen
        return ((model(x) - y) ** 2).mean() + noise
'''
STEPS = 2000
SAVES = '''
import pathlib, signal, sys, time
def save(*_):
    pathlib.Path(sys.argv[1], "saved").touch()
    sys.exit(0)
signal.signal(signal.SIGINT, save)
pathlib.Path("begun").touch()
while True:
    time.sleep(0.1)
'''


def training(*, slot=0, give=True, every=5, **run):
    Path("slowly.py").write_text(SLOWLY)
    return submit.submit(from_dict({
        "name": "t", "task": {"use": "slowly.py:Slowly"}, "devices": {"ids": [f"cpu:{slot}"]},
        "batch": {"size": 16},
        "train": {"steps": STEPS, "checkpoint_every": every, "workers": 0},
        "run": {"give_way": give, "give_way_back": 0.0} | run}), When())


def saved(run):
    return any(run.checkpoints.glob("step-*"))


def outcomes(run):
    return [a.outcome for a in run.state().attempts]


def test_it_saves_for_who_waits_stands_in_line_again_and_goes_on_to_the_bit(line):
    run = training()
    wait_for(lambda: saved(run))
    after = queue("true", slot=1, when=When(after=run.id))
    other = queue("sh", "-c", "until [ -e go ]; do sleep 0.1; done")
    wait_for(lambda: state(other) == "running")
    assert outcomes(run) == ["made room"]
    assert run.state().attempts[0].reason == f"made room for run {other.id}"
    wait_for(lambda: f"it made room for run {other.id} at " in reason(run))
    assert state(run) == state(after) == "queued"
    Path("go").touch()
    quiet = training(slot=1, give=False)
    over(other, run, quiet, after)
    assert [state(r) for r in (other, run, quiet, after)] == ["completed"] * 4
    assert outcomes(run) == ["made room", "completed"]
    again = run.state().attempts[1]
    assert again.started >= other.state().ended
    assert again.first_step == next(e["step"] - e["n"] + 1 for e in events(run, 0)
                                    if e["kind"] == "step" and e["t"] > again.started)
    assert len(losses(run)) == STEPS
    assert losses(run) == losses(quiet)
    assert waiting.ids(paths.queue_folder()) == []


def test_killed_while_it_makes_room_it_waits_and_goes_on_from_what_it_had_saved(line):
    run = training(give_way_after=0.0)  # nobody waits for what it says
    wait_for(lambda: saved(run))
    rank = run.state().processes[0].pid
    os.kill(rank, signal.SIGSTOP)  # so that the save does not come
    other = queue("true")
    wait_for(lambda: state(run) == "stopping" and other.id in reason(run))
    os.kill(run.state().pid, signal.SIGKILL)
    over(other)
    assert state(run) == "queued"
    Path("go").touch()
    serve.ensure()
    over(run)
    assert (state(run), outcomes(run)) == ("completed", ["made room", "completed"])
    first = run.state().attempts[0]
    assert first.reason == f"made room for run {other.id}, and its supervisor was killed,"
    assert first.started < first.ended <= other.state().started
    quiet = training(slot=1, give=False)
    over(quiet)
    assert losses(run)[-1] == losses(quiet)[-1]


def test_killed_before_its_state_says_that_it_makes_room_it_waits_and_goes_on(line):
    run = queue("true", run={"give_way": True, "give_way_again": True, "give_way_back": 0.0},
                begin=False)
    run.write_state(replace(run.state(), state="running", pid=None, reason=None,
                            attempts=(AttemptRecord(1, time.time()),)))
    assert state(run) == "queued"
    serve.ensure()
    over(run)
    assert (state(run), outcomes(run)) == ("completed", ["made room", "completed"])


def test_a_stop_while_it_makes_room_or_waits_again_ends_it(line):
    a, b = training(give_way_after=0.0), training(slot=1, give_way_after=0.0)
    wait_for(lambda: saved(a) and saved(b))
    for run, slot in ((a, 0), (b, 1)):
        os.kill(run.state().processes[0].pid, signal.SIGSTOP)
        queue("sleep", "60", slot=slot)
    wait_for(lambda: state(a) == state(b) == "stopping")
    a.stop()
    for run in (a, b):
        os.kill(run.state().processes[0].pid, signal.SIGCONT)
    wait_for(lambda: state(b) == "queued")
    b.stop()
    over(a, b)
    assert (state(a), outcomes(a)) == ("stopped", ["stopped"])
    assert (state(b), outcomes(b)) == ("stopped", ["made room"])
    assert {*waiting.ids(paths.queue_folder())}.isdisjoint({a.id, b.id})


def test_its_time_counts_over_the_attempts_since_a_person_began_it(line):
    run = queue("true", run={"limit": 600.0, "give_way": True, "give_way_again": True},
                begin=False)
    run.write_state(replace(run.state(), attempt=5, attempts=tuple(
        AttemptRecord(n, begun, begun + 10.0 * n, outcome) for n, begun, outcome in (
            (1, 1000.0, "made room"), (2, 2000.0, "stopped"), (3, 3000.0, "made room"),
            (4, 4000.0, "made room")))))
    assert Supervisor(run, 0o22, way=SimpleNamespace()).limit == 600.0 - 30 - 40
    run.write_state(replace(run.state(), attempt=6))  # it was stopped while it waited
    assert Supervisor(run, 0o22, way=SimpleNamespace()).limit == 600.0


def test_however_long_it_may_train_first_others_believe_that_it_makes_room(gpus, line):  # noqa: F811
    within = start.room_within(from_dict({"run": {"give_way": True, "give_way_after": "9d"}}))
    with leases.acquire(paths.leases_folder(), discover().devices[:1], "77aa", gives_way=within):
        [holder] = leases.holders(paths.leases_folder()).values()
        assert holder.makes_room


def test_nobody_waits_for_those_that_share_a_device(gpus, line):  # noqa: F811
    """None of them makes room: one that leaves alone makes none."""
    gpu, folder = discover().devices[:1], paths.leases_folder()
    with leases.acquire(folder, gpu, "77aa", True, gives_way=9.0), \
            leases.acquire(folder, gpu, "99bb", True, gives_way=9.0), \
            pytest.raises(SpecError, match=r"GPU 0 is held by run 77aa .* and run 99bb "):
        launcher.prepare(spec("true", devices={"ids": ["0"]}))


def test_one_that_gives_way_waits_for_another_and_keeps_nothing_from_who_does_not(line):
    run = training(give_way_after=0.0)
    wait_for(lambda: state(run) == "running")
    second = training()
    wait_for(lambda: f"held by run {run.id}" in reason(second))
    third = queue("true")
    over(third)  # it came last, and starts before both
    assert state(third) == "completed"
    wait_for(lambda: [run.id, second.id].count(next(
        (h.run for h in leases.holders(paths.leases_folder()).values()), None)))
    assert outcomes(run)[0] == "made room"
    run.stop()
    second.stop()
    over(run, second)


def test_where_it_could_not_make_room_it_is_refused(line):
    with pytest.raises(SpecError, match="add --queue"):
        launcher.prepare(from_dict({"task": {"command": ["true"]}, "run": {"give_way": True},
                                    "devices": {"ids": ["cpu:0"]}}))
    with pytest.raises(SpecError, match=r"begins anew .* write \{run.dir\}"):
        queue("python", "train.py", run={"give_way": True})
    with pytest.raises(SpecError, match="queue of its own machine"):
        queue("true", run={"give_way": True}, devices={"hosts": ["gpu1:0"]})
    with pytest.raises(SpecError, match="-o qos="):
        queue("true", run={"give_way": True}, devices={"hosts": ["slurm:0"]})
    again = queue("true", run={"give_way": True, "give_way_again": True}, begin=False)
    assert waiting.read(again.path).give_way


@pytest.mark.parametrize("asked", [{"ids": ["0"]}, {"pick": 3}])
def test_a_launch_starts_once_the_run_on_its_gpu_has_saved(asked, gpus, line):  # noqa: F811
    Path("train.py").write_text(SAVES)
    run = queue(sys.executable, "train.py", "{run.dir}", devices={"ids": ["0"]},
                run={"give_way": True, "give_way_after": 0.0})
    wait_for(Path("begun").exists)
    prepared = launcher.prepare(spec("true", devices=asked, parallel={"mode": "dp"}))
    assert any("which makes room first" in said for said in prepared.plan.warnings)
    launched = launcher.start(prepared)
    wait_for(lambda: reason(launched) == f"waits for run {run.id} to make room")
    over(launched)
    assert state(launched) == "completed", reason(launched)
    assert (run.path / "saved").exists()
    assert run.state().attempts[0].reason == f"made room for run {launched.id}"
    run.stop()


def test_a_launch_that_waits_for_room_can_be_stopped_and_no_error_ends_who_makes_it(
        gpus, line):  # noqa: F811
    with leases.acquire(paths.leases_folder(), discover().devices[:1], "77aa", gives_way=60.0):
        launched = launcher.start(launcher.prepare(spec("true", devices={"ids": ["0"]})))
        wait_for(lambda: reason(launched) == "waits for run 77aa to make room")
        launched.stop()
        over(launched)
    assert (state(launched), reason(launched)) == ("stopped", "before its ranks started")
    run = queue("true", run={"give_way": True, "give_way_again": True}, begin=False)
    supervisor = Supervisor(run, 0o22, way=Mock(side_effect=OSError("no more files")))
    supervisor._watch_way(Mock(deadline=None, events={}))
    assert (supervisor.room_for, supervisor.stop_asked) == (None, False)


# --- the rule, for GPUs ---------------------------------------------------------------------------

GPUS = tuple(Device(str(i), "gpu", "H200", i, uuid=f"GPU-{i}", memory_total=80 << 30)
             for i in range(2))


@pytest.fixture
def room(home, monkeypatch):
    """A run that gives way on GPU 0 of two, after five minutes or a save, and what it answers."""
    monkeypatch.setattr(give_way, "EVERY", 0.0)
    folder = paths.leases_folder()
    plan = SimpleNamespace(
        device_type="cuda", spec=from_dict({"run": {"give_way": True}}),
        ranks=[SimpleNamespace(devices=[GPUS[0]])])
    made = Room(SimpleNamespace(id="77aa"), SimpleNamespace(), plan)
    with leases.acquire(folder, [GPUS[0]], "77aa", gives_way=30.0):
        def ask(*readings, saved=True, began=0.0):
            said = None
            for processes in readings or ([],):
                seen = tuple(Sample(d, memory_used=0, processes=tuple(processes) if d is GPUS[0]
                                    else ()) for d in GPUS)
                said = made(SimpleNamespace(found=GPUS, seen=seen), began, saved)
            return said
        yield SimpleNamespace(ask=ask, folder=folder)


def waits(room, *ids, **more):
    return leases.wait(room.folder, {"run": "3f2a", "queue": "/q", "ids": list(ids),
                                     "cpu": False} | more, leases.new_name())


def test_after_a_save_or_five_minutes_for_a_run_that_needs_its_device(room):
    assert room.ask() is None
    with waits(room, "GPU-0"):
        assert room.ask() == "run 3f2a"
        assert room.ask(saved=False, began=time.time() - 290) is None
        assert room.ask(saved=False, began=time.time() - 310) == "run 3f2a"
    with waits(room, "GPU-1"), waits(room, "GPU-0", give_way=True), waits(room, "GPU-0", cpu=True):
        assert room.ask() is None
    with waits(room, count=1):
        assert room.ask() is None  # GPU 1 is free
        with leases.acquire(room.folder, [GPUS[1]], "99bb"):
            assert room.ask() == "run 3f2a"


def test_for_a_stranger_s_process_that_two_readings_have_found_at_once(room):
    ours, theirs = DeviceProcess(11, run="77aa"), DeviceProcess(12, user="ann", command="python x")
    assert room.ask([ours], [ours]) is None
    assert room.ask([ours, theirs], saved=False, began=time.time()) is None
    assert room.ask([ours], [theirs], saved=False, began=time.time()) is None
    assert room.ask([theirs], saved=False, began=time.time()) == "python x (pid 12) of ann"
    drawing = DeviceProcess(13, kind="graphics")
    assert room.ask([drawing], [drawing]) is None


def test_what_may_be_its_own_is_no_stranger_s_process(room):
    """In a container the driver may tell the machine's pids, which others have there by chance; and
    what a command has docker run is not below the run."""
    chance, hidden = DeviceProcess(12, command="sh"), DeviceProcess(4711, visible=False)
    assert room.ask([chance, hidden], [chance, hidden]) is None
    inside, ours = DeviceProcess(12, container="docker trainer"), DeviceProcess(11, run="77aa")
    assert room.ask([inside], [inside]) is None
    assert room.ask([inside, ours], [inside, ours]) == "a process (pid 12)"


def test_a_launch_that_names_the_device_waits_for_it_and_is_seen(room):
    got, told = [], []

    def take():
        with leases.acquire(room.folder, [GPUS[0]], "3f2a",
                            waits=lambda who: bool(told.append(who))):
            got.append(leases.holders(room.folder)["GPU-0"].run)

    held = leases.acquire(room.folder, [GPUS[1]], "99bb")  # gives no way
    with pytest.raises(UserError, match="GPU 1 is held by run 99bb"):
        leases.acquire(room.folder, GPUS, "3f2a", waits=lambda who: bool(told.append(who)))
    assert told == []
    held.close()
    launch = threading.Thread(target=take)
    launch.start()
    wait_for(lambda: room.ask() == "run 3f2a")
    assert told[0] == "run 77aa to make room"
    for file in leases.read(room.folder):
        leases.let_go(room.folder, file.path.name)
    launch.join()
    assert got == ["3f2a"]
    assert leases.waiting(room.folder) == []
