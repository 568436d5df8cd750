"""plan.json: what is written is read as the same plan, and of what is damaged what is left."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common.errors import SpecError
from gpu_engine.plan.batch import Batch, Layout, LearningRate
from gpu_engine.plan.build import plan
from gpu_engine.plan.check import check
from gpu_engine.plan.records import (
    Code,
    DeviceUse,
    Interpreter,
    LaunchPlan,
    Process,
    RankPlan,
    ResumeFrom,
    Sending,
)
from gpu_engine.spec import modes
from gpu_engine.spec.read import from_dict

from ..conftest import gpus, slots
from ..plans import plan as made


def through_json(of: LaunchPlan) -> LaunchPlan | None:
    return LaunchPlan.from_dict(json.loads(json.dumps(of.to_dict(), allow_nan=False)))


@given(mode=st.sampled_from(modes.names()), devices=st.integers(1, 4),
       each=st.integers(1, 9), cpu=st.booleans(), own=st.booleans(), chosen=st.booleans(),
       scale=st.sampled_from(["none", "linear", "sqrt"]))
def test_from_dict_is_the_inverse_of_to_dict(mode, devices, each, cpu, own, chosen, scale):
    devices = 1 if mode == "single" else devices
    cpu = cpu and mode != "dp"
    machine = slots(devices, cores=2) if cpu else gpus(devices)
    task = {"command": ["python", "t.py", "{batch.per_gpu}", "{lr}"]} if own else {"use": "a:B"}
    spec = from_dict({"task": task, "devices": {"ids": [d.id for d in machine.devices]},
                      "parallel": {"mode": mode, "nodes": 2 if mode == "multinode" else 1},
                      "batch": {"size": each, "meaning": "per_gpu"},
                      "train": {"lr_scale": scale, "lr_reference_batch": 16}})
    whole = plan(spec, machine, python="python")
    whole = replace(whole, id="3f2a", cwd="/somewhere",
                    resume_from=ResumeFrom("step-00000005", 2) if chosen else None)
    assert through_json(whole) == whole


def test_the_file_has_the_keys_that_it_always_had():
    """Other people's scripts read it (`show --json`)."""
    found = json.loads(json.dumps(replace(made(2), id="3f2a", cwd="/").to_dict()))
    assert set(found) == {
        "id", "cwd", "version", "name", "mode", "backend", "device_type", "source", "world_size",
        "local_world_size", "nodes", "node_rank", "replicas", "master_addr", "master_port", "unit",
        "batch", "lr", "ranks", "processes", "lines", "warnings", "spec"}
    assert found["ranks"][1] == {"rank": 1, "local_rank": 1, "node": 0, "host": None, "devices": [
        {"id": "cpu:1", "label": "CPU 1", "uuid": None, "torch": "cpu", "cores": [],
         "memory": None}]}
    assert found["batch"] == {"size": 256, "meaning": "global", "accumulate": 1, "replicas": 2,
                              "global_size": 256, "per_gpu": 128}


def test_another_versions_mode_and_keys_leave_the_rest():
    data = made(2).to_dict() | {"mode": "fsdp", "future": 1}
    data["spec"]["parallel"]["mode"] = "fsdp"
    found = LaunchPlan.from_dict(data)
    assert (found.mode, found.ranks) == ("fsdp", made(2).ranks)


def test_a_rank_that_a_launcher_has_started_is_planned_by_the_same_function():
    """One rank of three on two machines, with the GPU that is its own there."""
    second = replace(gpus(2), devices=(replace(gpus(2).devices[1], visible_index=1),))
    layout = Layout(first_rank=2, first_local_rank=1, ranks=1, world_size=3, local_world_size=2,
                    node=1, nodes=2, master_addr="10.0.0.1", master_port=1234,
                    launched_by="torchrun")
    spec = from_dict({"task": {"use": "a:B"}, "parallel": {"mode": "ddp"}, "batch": {"size": 24}})
    found = plan(spec, second, python="python", layout=layout)
    assert [(r.rank, r.local_rank, r.node) for r in found.ranks] == [(2, 1, 1)]
    assert [d.torch for r in found.ranks for d in r.devices] == ["cuda:1"]
    assert (found.batch.per_gpu, found.batch.replicas, found.world_size) == (8, 3, 3)
    assert (found.master_addr, found.master_port, found.processes) == ("10.0.0.1", 1234, ())
    with pytest.raises(SpecError, match="must divide by 3 replicas"):
        plan(replace(spec, batch=replace(spec.batch, size=25)), second, python="", layout=layout)
    single = replace(spec, parallel=replace(spec.parallel, mode="single"))
    with pytest.raises(SpecError, match="but torchrun started 3"):
        plan(single, second, python="", layout=layout)


@pytest.mark.parametrize(("words", "accumulate", "says"), [
    (None, 2, ["256 global = 64 per slot × 2 slots × 2", "lr 0.0003, not scaled"]),
    (["x", "{lr}", "{batch.global}"], 1,
     ["256 global = 128 per slot × 2 slots × 1", "lr 0.0003, not scaled"]),
    (["x", "{batch.per_gpu}"], 2, ["your command is told batch.per_gpu"]),
    (["x", "{batch.per_gpu}", "{batch.accumulate}"], 2,
     ["256 global = 64 per slot × 2 slots × 2"]),
    (["x", "{steps}", "{seed}"], 1, ["your command is told seed, steps"]),
    (["x"], 1, ["your command sets its own batch size and lr"])])
def test_what_is_said_of_batch_and_rate_is_what_reaches_the_ranks(words, accumulate, says):
    task = {"command": words} if words else {"use": "a:B"}
    planned = made(2, spec={"task": task}, unit="slot", batch=Batch(
        256, "global", accumulate, 2, 256, 128 // accumulate))
    assert planned.sentences() == says


def test_secrets_are_not_shown_and_a_log_stays_in_its_place():
    planned = made(1, processes=(Process(("x", "--api-key", "sk-a"), {"API_TOKEN": "t"}, (0,)),))
    [shown] = planned.for_people().processes
    assert (shown.argv, shown.env) == (("x", "--api-key", "***"), {"API_TOKEN": "***"})
    data = planned.to_dict()
    assert data["version"] == 1
    assert through_json(planned) == planned
    data["processes"][0]["log"] = "../x"
    assert LaunchPlan.from_dict(data) is None


def test_sentences():
    for rule, said in (("none", "lr 0.1, not scaled"),
                       ("sqrt", "lr 0.2 = 0.1 × 2 (sqrt, reference batch 1,024)")):
        assert LearningRate(0.1, rule, 1024, 2.0, 0.2).sentence() == said
    assert Batch(4, "per_gpu", 1, 1, 4, 4).sentence() == "4 global = 4 per GPU × 1 GPU × 1"
    two = tuple(DeviceUse(str(n), f"GPU {n}", None, f"cuda:{n}") for n in (0, 1))
    assert RankPlan(3, 0, 1, two, host="b").sentence() == (
        "GPU 0 → cuda:0, GPU 1 → cuda:1 rank 3 on b")
    for files, there, said in ((1, False, "a: would be sent 1 file, 2.0 KiB, into /c"),
                               (3, False, "a: would be sent 3 files, 2.0 KiB, into /c"),
                               (3, True, "a: has it, in /c")):
        assert Sending("a", "/c", there, files, 2048).sentence() == said
    assert Code("/c", 1, 2048, "a" * 40).sentence() == f"code: 1 file, 2.0 KiB ({'a' * 12}) from /c"
    for known, said in (((), "not asked what it has"), (("3.12.4", None), "Python 3.12.4"),
                        (("3.12.4", "2.13.0", "13.0"), "Python 3.12.4, torch 2.13.0 for CUDA 13.0"),
                        (("3.12.4", "2.13.0", None, "7.0"),
                         "Python 3.12.4, torch 2.13.0 for ROCm 7.0")):
        assert Interpreter("/x/python", "run.python", *known).sentence() == (
            f"/x/python: {said} (run.python)")


@pytest.mark.parametrize(("mode", "task", "world", "says"), [
    ("single", {"use": "a:B"}, 1, {}), ("ddp", {"use": "a:B"}, 2, {}),
    ("single", {"use": "a:B"}, 2, {
        "parallel.mode": "is one process, but srun started 2; add --set parallel.mode=ddp"}),
    ("ddp", {"command": ["x"]}, 2, {
        "task.use": "name a task; a command of your own needs no gpu_engine.worker"}),
    ("ddp", {}, 2, {"task.use": "name a task (module:Class or path/to/file.py:Class), or give your "
                                "own command in task.command"})])
def test_what_a_launcher_of_ones_own_can_not_start(mode, task, world, says):
    layout = Layout(0, 0, 1, world, world, 0, 1, "", 0, "srun")
    found = check(from_dict({"task": task, "parallel": {"mode": mode}}), gpus(1), layout)
    assert {problem.key: problem.message for problem in found.problems} == says
