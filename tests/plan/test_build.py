"""Plans: batch arithmetic, refusals, processes and lines, over many shapes."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common.errors import SpecError
from gpu_engine.devices.backends.registry import BACKENDS, load
from gpu_engine.devices.records import Device, Inventory
from gpu_engine.plan import check as check_module
from gpu_engine.plan.batch import batch_of, batch_untold, layout_of, nearest_batches, replicas_of
from gpu_engine.plan.build import plan
from gpu_engine.plan.check import check
from gpu_engine.plan.own_command import HOOK
from gpu_engine.plan.records import RUN_DIR
from gpu_engine.spec.read import apply_set, from_dict
from gpu_engine.spec.write import to_dict

from ..conftest import gpus, slots

USE = "gpu_engine.tasks.bytes_gpt:BytesGPT"


def spec_of(mode="single", ids=("0",), **rest):
    data = {"task": {"use": USE}, "devices": {"ids": list(ids)}, "parallel": {"mode": mode}}
    for key, value in rest.items():
        section, _, name = key.partition("__")
        data.setdefault(section, {})[name] = value
    if data["task"].get("command"):
        del data["task"]["use"]
    return from_dict(data)


def made(spec, inventory, **more):
    return plan(spec, inventory, python="/venv/bin/python", **more)


def problems(spec, inventory) -> dict[str, str]:
    return {p.key: p.message for p in check(spec, inventory).problems}


# --- batch arithmetic --------------------------------------------------------------------------

shapes = st.tuples(st.sampled_from(["single", "dp", "ddp", "multinode"]), st.integers(1, 8),
                   st.integers(2, 4), st.integers(1, 4096), st.integers(1, 16),
                   st.sampled_from(["global", "per_gpu"]))


def test_ranks_count_on_over_nodes_of_any_size():
    """As torchrun does: rank over all nodes, local_rank on its own."""
    each = [2, 4, 1]
    found = []
    for node, devices in enumerate(each):
        spec = spec_of("multinode", [str(i) for i in range(devices)], parallel__nodes=3,
                       parallel__node_devices=each, parallel__node_rank=node,
                       parallel__master_addr="gpu1", batch__size=70)
        planned = made(spec, gpus(8))
        assert (planned.world_size, planned.local_world_size) == (7, devices)
        found += [(r.node, r.rank, r.local_rank) for r in planned.ranks]
    assert found == [(0, 0, 0), (0, 1, 1), (1, 2, 0), (1, 3, 1), (1, 4, 2), (1, 5, 3), (2, 6, 0)]


def test_a_command_that_uses_no_batch_need_not_divide_it():
    for size, share in ((10, 3), (9, 3), (2, 1)):
        assert batch_untold(spec_of("ddp", ["0", "1", "2"], batch__size=size), 3).per_gpu == share


@given(shapes)
def test_global_is_per_gpu_times_replicas_times_accumulation(shape):
    mode, devices, nodes, size, accumulate, meaning = shape
    devices = 1 if mode == "single" else devices
    spec = spec_of(mode, [str(i) for i in range(devices)], batch__size=size,
                   batch__meaning=meaning, batch__accumulate=accumulate,
                   parallel__nodes=nodes if mode == "multinode" else 1)
    replicas = replicas_of(spec, layout_of(spec, devices), devices)
    assert replicas == {"single": 1, "multinode": devices * nodes}.get(mode, devices)
    batch = batch_of(spec, replicas)
    if batch is None:
        assert meaning == "global"
        assert size % (replicas * accumulate)
        message = problems(spec, gpus(8))["batch.size"]
        below, above = nearest_batches(size, replicas * accumulate)
        assert f"{below} or {above} would" in message
        for good in (below, above):
            assert batch_of(spec_of(mode, [str(i) for i in range(devices)], batch__size=good,
                                    batch__accumulate=accumulate,
                                    parallel__nodes=nodes if mode == "multinode" else 1),
                            replicas)
        return
    assert batch.global_size == batch.per_gpu * batch.replicas * batch.accumulate
    assert batch.per_gpu >= 1
    assert (batch.global_size if meaning == "global" else batch.per_gpu) == size
    made_plan = made(spec, gpus(8))
    assert made_plan.batch == batch
    assert made_plan.replicas == replicas
    assert made_plan.world_size == {"single": 1, "dp": 1, "ddp": devices,
                                    "multinode": devices * nodes}[mode]


def test_the_sentence_reads_as_the_panel_shows_it():
    spec = spec_of("ddp", ["0", "1"], batch__size=256)
    assert made(spec, gpus(2)).batch.sentence() == "256 global = 128 per GPU × 2 GPUs × 1"


# --- refusals ----------------------------------------------------------------------------------

@pytest.mark.parametrize(("spec", "inventory", "key", "says"), [
    (spec_of("ddp", ["0", "1", "2"], batch__size=256), gpus(4), "batch.size", "255 or 258"),
    (spec_of("single", ["0", "1"]), gpus(2), "parallel.mode", "one device"),
    (spec_of("dp", ["cpu:0"]), slots(2), "parallel.mode", "needs GPUs"),
    (spec_of("ddp", ["cpu:0"], amp__dtype="fp16"), slots(2), "amp.dtype", "bf16 or off"),
    (spec_of("ddp", ["9"]), gpus(2), "devices.ids", "this machine has GPUs 0, 1"),
    (spec_of("ddp", ["1"]), replace(gpus(1), inherited_visible="0-3",
                                    visible_variable="CUDA_VISIBLE_DEVICES"), "devices.ids",
     'this machine has GPU 0, as CUDA_VISIBLE_DEVICES is "0-3"'),
    (spec_of("ddp", []), gpus(2), "devices.ids", "choose at least one"),
    (spec_of("ddp", ["0", "0"]), gpus(2), "devices.ids", "gloo"),
    (spec_of("dp", ["0", "0"]), gpus(2), "devices.ids", "once"),
    (spec_of("ddp", ["cpu:0", "cpu:0"]), slots(2), "devices.ids", "once"),
    (spec_of("ddp", ["cpu:0"], parallel__backend="nccl"), slots(1), "parallel.backend", "gloo"),
    (spec_of("ddp", ["0"], parallel__nodes=2), gpus(1), "parallel.nodes", "multinode"),
    (spec_of("multinode", ["0"]), gpus(1), "parallel.nodes", "2 or more"),
    (spec_of("multinode", ["0"], parallel__nodes=2, parallel__node_rank=2), gpus(1),
     "parallel.node_rank", "0 to 1"),
    (spec_of("multinode", ["0"], parallel__nodes=2, parallel__master_port=0), gpus(1),
     "parallel.master_port", "29500"),
    (spec_of("multinode", ["0"], parallel__nodes=2, parallel__master_addr="a b;c"), gpus(1),
     "parallel.master_addr", "numeric"),
    (spec_of("single", parallel__launcher="torchrun"), gpus(1), "parallel.launcher", "no launcher"),
    (spec_of("single", train__lr_scale="linear"), gpus(1), "train.lr_reference_batch", "batch"),
    (spec_of("single", train__best="accuracy:max"), gpus(1), "train.best", "max:name"),
    (spec_of("single", task__use=None), gpus(1), "task.use", "name a task"),
    (spec_of("single", task__command=["python", "{batch.sizes}"]), gpus(1), "task.command",
     "no such placeholder"),
    (spec_of("single", task__use=None, task__command=["python", "--steps={steps}"]), gpus(1),
     "train.steps", "the command has {steps}"),
    (spec_of("single", run__env={"CUDA_VISIBLE_DEVICES": "3"}), gpus(1),
     "run.env.CUDA_VISIBLE_DEVICES", "devices.ids"),
    (spec_of("single", run__env={"RANK": "3"}), gpus(1), "run.env.RANK", "for each rank"),
    (spec_of("single", run__env={"GPU_PANEL_HOME": "/x"}), gpus(1), "run.env.GPU_PANEL_HOME",
     "for each rank"),
    (spec_of("single", run__env={"A": "\0"}), gpus(1), "run.env.A", "NUL"),
    (spec_of("single", run__env={"a-b": "1"}), gpus(1), "run.env", "no name of a variable"),
])
def test_what_does_not_fit_is_said_at_its_key(spec, inventory, key, says):
    assert says in problems(spec, inventory)[key]
    with pytest.raises(SpecError):
        made(spec, inventory)


def test_pick_beyond_what_there_is_is_refused():
    spec = from_dict({"task": {"use": USE}, "devices": {"pick": 3}, "parallel": {"mode": "ddp"}})
    assert "this machine has 2: cpu:0, cpu:1" in problems(spec, slots(2))["devices.pick"]


def test_a_command_gets_the_learning_rate_with_all_its_digits():
    p = made(spec_of("single", task__use=None, task__command=["python", "{lr}", "{steps}"],
                     train__lr=0.00123456789, train__steps=7), gpus(1))
    assert p.processes[0].argv == ("python", "0.00123456789", "7")


# --- processes ---------------------------------------------------------------------------------

def test_ddp_is_started_rank_by_rank_with_torchruns_variables():
    p = made(spec_of("ddp", ["2", "0"]), gpus(4))
    assert [r.sentence() for r in p.ranks] == ["GPU 2 → cuda:0 rank 0", "GPU 0 → cuda:1 rank 1"]
    first, second = p.processes
    for name, values in {"RANK": "01", "LOCAL_RANK": "01", "WORLD_SIZE": "22",
                         "LOCAL_WORLD_SIZE": "22"}.items():
        assert first.env[name] + second.env[name] == values
    assert first.env["MASTER_ADDR"] == "127.0.0.1"
    assert first.env["MASTER_PORT"] == "0"  # the supervisor takes a free one
    assert first.env["CUDA_VISIBLE_DEVICES"] == "2,0"
    assert first.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "torch.distributed.run" not in first.argv
    assert p.backend == "nccl"


def test_a_uuid_names_the_card_and_its_index_goes_out():
    uuid = gpus(4).devices[3].uuid
    p = made(spec_of("single", [uuid]), gpus(4))
    assert p.processes[0].env["CUDA_VISIBLE_DEVICES"] == "3"
    assert p.ranks[0].devices[0].uuid == uuid


def test_mig_slices_go_out_as_uuids_one_a_process():
    mig = Inventory(tuple(Device(f"MIG-{i}", "mig", f"A100 MIG 0:{i}", 0, f"MIG-{i}")
                          for i in range(2)), "nvml")
    p = made(spec_of("ddp", ["MIG-0", "MIG-1"]), mig)
    assert [q.env["CUDA_VISIBLE_DEVICES"] for q in p.processes] == ["MIG-0", "MIG-1"]
    assert [r.devices[0].torch for r in p.ranks] == ["cuda:0", "cuda:0"]
    assert "MIG slice" in problems(spec_of("dp", ["MIG-0", "MIG-1"]), mig)["parallel.mode"]


def test_two_ranks_share_a_gpu_over_gloo():
    p = made(spec_of("ddp", ["0", "0"], parallel__backend="gloo"), gpus(1))
    assert [r.devices[0].torch for r in p.ranks] == ["cuda:0", "cuda:0"]
    assert p.processes[0].env["CUDA_VISIBLE_DEVICES"] == "0"


def test_ranks_on_cpu_slots_keep_to_the_runs_cores_and_see_no_gpu():
    p = made(spec_of("ddp", ["cpu:0", "cpu:1"]), slots(2, cores=3))
    assert [q.cores for q in p.processes] == [(0, 1, 2, 3, 4, 5)] * 2
    assert {q.env["OMP_NUM_THREADS"] for q in p.processes} == {"3"}
    assert {q.env["CUDA_VISIBLE_DEVICES"] for q in p.processes} == {""}
    assert (p.backend, p.device_type, p.unit) == ("gloo", "cpu", "slot")


def test_several_ranks_on_gpus_get_a_thread_each_as_from_torchrun():
    """With all cores for each, ranks take them from each other."""
    several, alone = made(spec_of("ddp", ["0", "1"]), gpus(2)), made(spec_of(), gpus(2))
    assert [q.env.get("OMP_NUM_THREADS") for q in several.processes] == ["1", "1"]
    assert [q.env.get("OMP_NUM_THREADS") for q in alone.processes] == [None]


def test_a_thread_count_that_the_person_set_stays():
    p = made(spec_of("ddp", ["0", "1"]), gpus(2), environ={"OMP_NUM_THREADS": "7"})
    assert "OMP_NUM_THREADS" not in p.processes[0].env


def test_every_process_gets_the_variables_of_the_run():
    env = {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "3", "PYTHONPATH": "/mine"}
    for spec in (spec_of("ddp", ["0", "1"], run__env=env),
                 spec_of("ddp", ["0", "1"], run__env=env, parallel__launcher="torchrun"),
                 spec_of("dp", ["0", "1"], run__env=env)):
        p = made(spec, gpus(2), environ={"PYTHONPATH": "/inherited"})
        assert all({**q.env, **env} == q.env for q in p.processes)
    own = made(spec_of("ddp", ["0", "1"], run__env=env, task__command=["python", "t.py"]), gpus(2),
               environ={"PYTHONPATH": "/inherited"})
    assert own.processes[1].env["PYTHONPATH"] == f"{HOOK}{os.pathsep}/mine"
    assert "NCCL_DEBUG=INFO OMP_NUM_THREADS=3 PYTHONPATH=/mine CUDA" in own.lines[0]


def test_the_variables_that_choose_devices_are_refused_for_every_vendor():
    for name in BACKENDS:
        chosen = {*load(name).variables, *load(name).environment(())}
        assert not chosen - check_module._DEVICES, name


def test_dp_is_one_process_that_sees_all():
    p = made(spec_of("dp", ["1", "3"], batch__size=64), gpus(4))
    assert len(p.processes) == p.world_size == 1
    assert [d.torch for d in p.ranks[0].devices] == ["cuda:0", "cuda:1"]
    assert p.batch.per_gpu == 32


def test_multinode_goes_through_torchrun_with_static_rendezvous():
    p = made(spec_of("multinode", ["0", "1"], parallel__nodes=2, parallel__node_rank=1,
                     parallel__master_addr="10.0.0.1"), gpus(2))
    (process,) = p.processes
    line = shlex.join(process.argv)
    for part in ("-m torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--node-rank=1",
                 "--master-addr=10.0.0.1", "--master-port=29500", RUN_DIR):
        assert part in line
    assert "rdzv-backend" not in line  # the default, static: no pickle on the port
    assert "--rdzv-conf=timeout=300" in line
    assert [r.rank for r in p.ranks] == [2, 3]
    assert process.role == "launcher"
    assert len(p.lines) == 2
    assert "--node-rank=0" in p.lines[0]
    assert "--node-rank=1" in p.lines[1]
    p = made(spec_of("multinode", ["0", "1"], parallel__nodes=2, parallel__node_devices=[2, 1],
                     batch__size=96), gpus(2))
    assert ["--nproc-per-node=1" in line for line in p.lines] == [False, True]


# --- the line to type --------------------------------------------------------------------------

def typed_back(line: str, presets: dict) -> object:
    """What `gpu-engine run …` would read from a line."""
    words = shlex.split(line)
    assert words[:2] == ["gpu-engine", "run"]
    rest = words[2:]
    data = to_dict(presets[rest.pop(0)], defaults=False) if rest[0] != "--set" else {}
    assert rest[::2] == ["--set"] * (len(rest) // 2)
    for assignment in rest[1::2]:
        apply_set(data, assignment)
    return from_dict(data)


def test_the_line_builds_on_the_preset_and_gives_this_spec():
    base = spec_of("ddp", ["0"], train__steps=5)
    spec = spec_of("ddp", ["0", "1"], train__epochs=2, batch__size=32)
    p = made(spec, gpus(2), base=("my preset", base))
    assert p.lines[0].startswith("gpu-engine run 'my preset' --set ")
    assert typed_back(p.lines[0], {"my preset": base}) == spec


def test_a_preset_that_holds_too_much_is_not_built_on():
    base = spec_of("ddp", ["0"], task__params={"width": 3}, train__best="loss")
    spec = spec_of("ddp", ["0"])
    p = made(spec, gpus(2), base=("p", base))
    assert typed_back(p.lines[0], {}) == spec


def test_an_own_command_needs_no_gpu_panel():
    spec = spec_of("ddp", ["0", "1"], task__command=["python", "train.py", "--bs",
                                                     "{batch.per_gpu}", "{{x}}"], batch__size=8)
    p = made(spec, gpus(2))
    assert p.lines[0] == ("CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,1 "
                          "python -m torch.distributed.run --standalone --nproc-per-node=2 "
                          "-- train.py --bs 4 '{x}'")
    assert p.processes[0].argv == ("python", "train.py", "--bs", "4", "{x}")


@pytest.mark.parametrize("command", [["torchrun", "--nproc-per-node=2", "t.py"],
                                     ["bash", "run.sh"], ["accelerate", "launch", "t.py"],
                                     ["python", "-m", "torch.distributed.run", "t.py"]])
def test_a_command_that_starts_its_own_ranks_runs_once(command):
    p = made(spec_of("ddp", ["0", "1"], task__command=command), gpus(2))
    assert len(p.processes) == 1
    assert p.processes[0].argv == tuple(command)
    assert p.processes[0].ranks == (0, 1)
    assert "RANK" not in p.processes[0].env


@pytest.mark.parametrize(("line", "others"), [
    ("env CUDA_VISIBLE_DEVICES=0,1 python t.py", None),
    ("env ROCR_VISIBLE_DEVICES=0 python t.py", None),
    ("python t.py CUDA_VISIBLE_DEVICES=2", None), ("deepspeed --num_gpus 2 t.py", None),
    ("deepspeed --include localhost:0,1 t.py --num_gpus=3", None),
    ("accelerate launch --gpu_ids all t.py", None),
    ("env CUDA_VISIBLE_DEVICES=2,3 python t.py", "2,3"),
    ("nohup env A=1 CUDA_VISIBLE_DEVICES=0 nice python t.py", "0"),
    ("sh -c 'export CUDA_VISIBLE_DEVICES=\"1,2\"; python t.py | tee x'", "1,2"),
    ("env CUDA_VISIBLE_DEVICES= python t.py", "cpu:0"),
    ("accelerate launch --gpu_ids=1,2 t.py", "1,2"), ("deepspeed --num_gpus 3 t.py", "0,1,2"),
    ("yolo train device=2,3", "2,3"), ("yolo train device=0,1", None),
    ("python -m deepspeed.launcher.runner --include=localhost:2 t.py", "2")])
def test_a_command_takes_no_other_devices_than_its_run(line, others):
    spec = spec_of("dp", ["0", "1"], task__command=shlex.split(line))
    found = problems(spec, gpus(4)).get("task.command", "")
    assert bool(found) == (others is not None)
    if others:
        assert "the run has GPU 0, GPU 1" in found
        assert f"by --devices {others} " in found


def test_on_slots_a_command_may_hide_the_gpus_and_choose_none():
    for value, fine in (("-1", True), ("0", False)):
        spec = spec_of("single", ["cpu:0"], task__command=[
            "env", f"CUDA_VISIBLE_DEVICES={value}", "python", "t.py"])
        assert ("task.command" not in problems(spec, slots(2))) is fine


@pytest.mark.parametrize(("line", "ranks"), [
    ("torchrun --nproc-per-node=4 t.py", 4), ("torchrun --nproc_per_node 1 t.py", 1),
    ("env A=1 python -u -m torch.distributed.run --nproc-per-node 4 t.py", 4),
    ("sh -c 'cd x && torchrun --nproc-per-node=4 t.py'", 4),
    ("accelerate launch --num_processes 4 t.py", 4), ("tune run --nproc_per_node 4 full", 4),
    ("torchrun --nproc-per-node=2 t.py --nproc-per-node=4", None),
    ("torchrun --nproc-per-node=gpu t.py", None), ("torchrun t.py --num-processes 4", 1),
    ("python t.py --launcher torchrun --nproc-per-node=4", None)])
def test_a_launcher_that_starts_another_number_of_ranks_is_warned_of(line, ranks):
    spec = spec_of("ddp", ["0", "1"], task__command=shlex.split(line))
    said = made(spec, gpus(2)).warnings
    assert bool(said) == (ranks is not None)
    if ranks:
        assert f"starts {ranks} rank{'s' * (ranks > 1)} (" in said[0]
        assert "the run has 2 GPUs" in said[0]
    assert not made(spec_of("ddp", ["cpu:0"], task__command=shlex.split(line)), slots(2)).warnings


@pytest.mark.parametrize("devices", [gpus(2), slots(2)])
def test_one_process_with_all_devices_is_a_choice_for_a_command(devices):
    ids, command = [d.id for d in devices.devices], ["python", "spawns.py"]
    refused = problems(spec_of("single", ids, task__command=command), devices)["parallel.mode"]
    assert "--mode ddp starts your command once for each, --mode dp once with all" in refused
    (process,) = made(spec_of("dp", ids, task__command=command), devices).processes
    assert process.env["GPU_PANEL_DEVICES"] == ";".join(d.label for d in devices.devices)
    assert "RANK" not in process.env


@given(st.lists(st.text(min_size=1).filter(lambda s: "\0" not in s and not s.isspace()),
                min_size=1, max_size=5))
def test_arguments_reach_the_process_as_they_were_typed(args):
    escaped = ["/bin/echo", *(a.replace("{", "{{").replace("}", "}}") for a in args)]
    p = made(spec_of("single", task__command=escaped), gpus(1))
    assert p.processes[0].argv == ("/bin/echo", *args)
    assert p.lines[0].isprintable()
    read = subprocess.run(["bash", "-c", f"printf '%s\\0' {p.lines[0]}"], capture_output=True,
                          check=True, timeout=600).stdout.decode()
    assert read.split("\0")[2:-1] == ["/bin/echo", *args]


# --- learning rate -----------------------------------------------------------------------------

@pytest.mark.parametrize(("rule", "factor"), [("none", 1), ("linear", 4), ("sqrt", 2)])
def test_learning_rate_scales_with_the_global_batch(rule, factor):
    p = made(spec_of("ddp", ["0", "1"], batch__size=256, train__lr=0.1, train__lr_scale=rule,
                     train__lr_reference_batch=64), gpus(2))
    assert p.lr.factor == pytest.approx(factor)
    assert p.lr.scaled == pytest.approx(0.1 * factor)
