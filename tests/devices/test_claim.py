"""Between planning and start somebody else can come: a run looks once more, and says who it was."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.devices import leases
from gpu_engine.devices.discover import discover
from gpu_engine.devices.records import Device
from gpu_engine.places.verbs import prepare
from gpu_engine.places.verbs import start as launch
from gpu_engine.plan.records import DeviceUse, LaunchPlan, RankPlan
from gpu_engine.runs import folder as runs
from gpu_engine.spec.read import from_dict
from gpu_engine.supervisor import start

from ..conftest import wait_for
from ..plans import plan as made

GIB = 1 << 30


@pytest.fixture
def bob(tmp_path):
    """A process that somebody has on a GPU."""
    (tmp_path / "bobs_training.py").write_text("import time; time.sleep(60)")
    process = subprocess.Popen([sys.executable, "bobs_training.py"], cwd=tmp_path)
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def spec(home, tmp_path):
    """A spec of a plain script on the GPUs that are named."""

    def make(*ids, body="", share=False, pick=None, **sections):
        script = tmp_path / "script.py"
        script.write_text("import os, sys, time\n" + body)
        chosen = {"pick": pick} if pick else {"ids": list(ids)}
        return from_dict(
            {
                "task": {"command": [sys.executable, str(script)]},
                "devices": chosen | {"share": share},
                "parallel": {"mode": "ddp"},
            }
            | sections
        )

    return make


def ended(run: runs.Run) -> runs.State:
    return wait_for(lambda: (s := run.state()) and not s.live and s)


# --- when it is planned -------------------------------------------------------------------------


def test_a_named_gpu_that_another_computes_on_takes_a_word_more(as_this_machine, spec, bob):
    as_this_machine("count 2", f"gpu 1 proc {bob} {40 * GIB}")
    with pytest.raises(SpecError) as caught:
        prepare(spec("0", "1"))
    (problem,) = caught.value.problems
    assert (problem.key, problem.value) == ("devices.ids", "1")
    assert "bobs_training.py" in problem.message
    assert "40.0 GiB" in problem.message
    assert "devices.share = true" in problem.message
    prepare(spec("0"))
    prepare(spec("0", "1", share=True))


def test_a_run_right_after_another_waits_for_its_end(as_this_machine, spec, bob):
    machine = as_this_machine(f"gpu 0 proc {bob} {GIB}")
    threading.Timer(0.3, machine.set).start()
    prepare(spec("0"))


def test_what_is_in_doubt_is_said_and_goes(as_this_machine, spec):
    as_this_machine(
        "gpu 0 ecc_uncorrected 2",
        *(f"gpu 0 error nvmlDeviceGetComputeRunningProcesses_v{v} 3" for v in (2, 3)),
    )
    said = prepare(spec("0")).plan.warnings
    assert any("2 uncorrected" in w for w in said)
    assert any("GPU 0: the driver does not say which processes" in w for w in said)


def test_a_hold_says_who_is_on_the_card_that_it_names_and_refuses_a_lost_one(
        as_this_machine, home, bob):
    as_this_machine("count 3", f"gpu 1 proc {bob} {40 * GIB}", "gpu 2 lost 1")

    def hold(device):
        return subprocess.run([sys.executable, "-m", "gpu_engine", "hold", "--devices", device,
                               "--", "true"], capture_output=True, text=True, check=False)

    free, busy, lost = map(hold, "012")
    assert (free.returncode, busy.returncode, lost.returncode) == (0, 0, 2)
    assert "warning" not in free.stderr
    assert "GPU 1 is in use: " in busy.stderr
    assert "bobs_training.py · 40.0 GiB" in busy.stderr
    assert "-n 1 in place of --devices holds a free device" in busy.stderr
    assert "GPU 2 can't be used: lost: it fell off the bus" in lost.stderr
    assert "-n 1 takes the freest" in lost.stderr
    assert leases.holders(home / "leases") == {}


# --- right before the ranks start ---------------------------------------------------------------


def test_one_who_came_in_between_is_named_and_no_rank_starts(as_this_machine, spec, bob):
    machine = as_this_machine("count 2")
    prepared = prepare(spec("0", "1"))
    machine.add(f"gpu 1 proc {bob} {40 * GIB}")
    run = launch(prepared)
    state = ended(run)
    assert (state.state, state.exit_code) == ("failed", 1)
    for part in ("GPU 1 is no longer free", "bobs_training.py", "40.0 GiB", "devices.share"):
        assert part in state.reason
    assert state.cause.message == state.reason
    assert state.processes == ()
    assert not run.log(0).exists()


ALONE = """
def children():
    parent = os.getppid()
    return len(open(f"/proc/{parent}/task/{parent}/children").read().split())
end = time.time() + 20
while children() > 1 and time.time() < end:  # what was ended may take a moment to go
    time.sleep(0.02)
print(children())
"""


def test_it_starts_where_nobody_is_and_leaves_no_process(as_this_machine, spec):
    as_this_machine("count 2")
    run = launch(prepare(spec("1", body=ALONE)))
    assert ended(run).state == "completed"
    assert run.log(0).read_text() == "1\n", "the rank is the supervisor's only child"


def test_a_restart_is_not_kept_out_by_its_own_dying_ranks(as_this_machine, spec):
    """The driver lists a process for a moment longer than it lives."""
    machine = as_this_machine()
    body = f"""
if os.environ["GPU_PANEL_ATTEMPT"] == "1":
    open({str(machine.state)!r}, "a").write(f"gpu 0 proc {{os.getpid()}} {GIB}\\n")
    sys.exit(1)
"""
    run = launch(prepare(spec("0", body=body, train={"restarts": 1})))
    wait_for(lambda: run.state().attempt == 2)
    threading.Timer(1.0, machine.set).start()
    state = ended(run)
    assert [a.outcome for a in state.attempts] == ["failed", "completed"]


def test_a_stop_does_not_wait_for_a_driver_that_hangs(as_this_machine, spec):
    machine = as_this_machine()
    prepared = prepare(spec("0"))
    machine.add("gpu * hang 1")
    run = launch(prepared)
    wait_for(lambda: run.state().state == "starting" and run.supervised()
             and run.state().attempts)
    run.stop()
    state = ended(run)
    assert state.state == "stopped"
    assert not run.log(0).exists()


# --- the look itself ----------------------------------------------------------------------------


def plan_of(*devices: Device) -> LaunchPlan:
    used = tuple(DeviceUse(d.id, d.label, d.uuid, "cuda:0") for d in devices)
    return made(cpu=False, ranks=(RankPlan(0, 0, 0, used),))


def blocked(plan, again_on_them=False):
    return start.blocked(plan, again_on_them=again_on_them)


def test_a_driver_that_hangs_blocks_and_holds_nobody(as_this_machine, monkeypatch):
    monkeypatch.setattr(start, "TIMEOUT", 0.6)
    machine = as_this_machine("count 2")
    plan = plan_of(*discover().devices[:1])
    before = threading.active_count()
    for line in ("gpu * hang 1", "init_hang 1"):
        machine.set("count 2", line)
        said = blocked(plan)
        assert "not answer" in said
    assert blocked(replace(plan, spec=from_dict({"devices": {"share": True}}))) is None
    assert threading.active_count() == before, "a parent-death signal follows the thread"


@pytest.mark.parametrize(("lines", "said"), [
    (("count 2", "gpu 1 gone 1"), "no longer lists it"),
    (("count 2", "gpu 1 lost 1"), "lost: it fell off the bus"),
    (("count 2", "init 18"), "different versions"),
    (("count 2", "crash 1"), "signal 11"),
    (("count 0",), "no longer lists it"),
])
def test_what_became_of_it_since_is_said(as_this_machine, monkeypatch, lines, said):
    monkeypatch.setattr(start, "PATIENCE", 0.0)
    machine = as_this_machine("count 2")
    plan = plan_of(discover().devices[1])
    machine.set(*lines)
    assert said in blocked(plan)


def test_a_card_is_known_by_its_uuid_and_not_by_its_number(as_this_machine, monkeypatch, bob):
    monkeypatch.setattr(start, "PATIENCE", 0.0)
    machine = as_this_machine("count 3")
    first, _, last = discover().devices
    machine.add("gpu 1 gone 1", f"gpu 1 proc {bob} {GIB}")
    assert blocked(plan_of(first)) is None
    # The ranks would be told 2, which is no card now, or another one.
    assert "it is GPU 1 now" in blocked(plan_of(last))
    machine.set("count 3", f"gpu 2 proc {bob} {GIB}")
    assert blocked(plan_of(first)) is None
    assert "bobs_training.py" in blocked(plan_of(last))


def test_slices_of_two_gpus(as_this_machine, monkeypatch, bob):
    monkeypatch.setattr(start, "PATIENCE", 0.0)
    machine = as_this_machine(
        "count 2", *(f"gpu {n} mig 1" for n in (0, 1)),
        "gpu 0 slice 0 MIG-aaaa1111", "gpu 1 slice 2 MIG-bbbb2222",
    )  # fmt: skip
    plan = plan_of(*discover().devices)
    assert blocked(plan) is None
    machine.add(f"gpu 1 slice 2 proc {bob} {GIB}")
    said = blocked(plan)
    assert "bobs_training.py" in said
    assert "MIG 1:2 is no longer free" in said


def test_one_that_goes_by_itself_is_waited_for(as_this_machine, monkeypatch, bob):
    machine = as_this_machine(f"gpu 0 proc {bob} {GIB}")
    plan = plan_of(*discover().devices)
    monkeypatch.setattr(start, "PATIENCE_AGAIN", 20.0)
    threading.Timer(0.5, machine.set).start()
    assert blocked(plan, again_on_them=True) is None




# --- no GPU where some were meant ---------------------------------------------------------------


def test_a_run_for_gpus_does_not_begin_on_the_processor_unasked(as_this_machine, spec, monkeypatch):
    as_this_machine("init 18")
    with pytest.raises(UserError, match=r"different versions.*devices\.ids=cpu:0"):
        prepare(spec(pick=1))
    assert prepare(spec("cpu:0")).plan.device_type == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert prepare(spec(pick=1)).plan.device_type == "cpu"
