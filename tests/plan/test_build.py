"""Plans: batch arithmetic, refusals, processes and lines, over many shapes."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common.errors import SpecError
from gpu_engine.devices.backends.registry import BACKENDS, load
from gpu_engine.devices.records import Device, Inventory
from gpu_engine.plan import check as check_module
from gpu_engine.plan.batch import (
    Batch,
    batch_of,
    batch_untold,
    layout_of,
    nearest_batches,
    replicas_of,
)
from gpu_engine.plan.build import plan
from gpu_engine.plan.check import check, counted
from gpu_engine.plan.own_command import HOOK, PLACEHOLDERS
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


of_two = partial(spec_of, "multinode", ["0"], parallel__nodes=2)


def made(spec, inventory, **more):
    return plan(spec, inventory, python="/venv/bin/python", **more)


MIG = Inventory(tuple(Device(f"MIG-{i}", "mig", f"A100 MIG 0:{i}", 0, f"MIG-{i}")
                      for i in range(2)), "nvml")


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
    for size, steps, share in ((10, 1, 3), (9, 1, 3), (2, 1, 1), (12, 2, 2)):
        spec = spec_of("ddp", ["0", "1", "2"], batch__size=size, batch__accumulate=steps)
        assert batch_untold(spec, 3) == Batch(size, "global", steps, 3, size, share)


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
    assert (batch.size, batch.meaning, batch.accumulate) == (size, meaning, accumulate)
    made_plan = made(spec, gpus(8))
    assert made_plan.batch == batch
    assert made_plan.replicas == replicas
    assert made_plan.world_size == {"single": 1, "dp": 1, "ddp": devices,
                                    "multinode": devices * nodes}[mode]


# --- refusals ----------------------------------------------------------------------------------

@pytest.mark.parametrize(("spec", "inventory", "says"), [
    (spec_of("ddp", ["0", "1", "2"], batch__size=256), gpus(4),
     "batch.size = 256: a global batch must divide by 3 replicas; 255 or 258 would "
     "[batch.size=255 or batch.size=258]"),
    (spec_of("single", ["0", "1"]), gpus(2),
     'parallel.mode = "single": single trains on one device and 2 are chosen; choose one, or the'
     " mode ddp [parallel.mode=ddp]"),
    (spec_of("dp", ["cpu:0"]), slots(2),
     'parallel.mode = "dp": DataParallel needs GPUs; on CPU slots take ddp [parallel.mode=ddp]'),
    (spec_of("ddp", ["cpu:0"], amp__dtype="fp16"), slots(2),
     'amp.dtype = "fp16": fp16 needs a GPU; on CPU take bf16 or off [amp.dtype=bf16]'),
    (spec_of("ddp", ["9"]), gpus(2),
     'devices.ids = "9": there is no such device; this machine has GPUs 0, 1'),
    (spec_of("ddp", ["1"]), replace(gpus(1), inherited_visible="0-3",
     visible_variable="CUDA_VISIBLE_DEVICES"),
     'devices.ids = "1": there is no such device; this machine has GPU 0, as '
     'CUDA_VISIBLE_DEVICES is "0-3"'),
    (from_dict({"task": {"use": USE}, "devices": {"pick": 3}, "parallel": {"mode": "ddp"}}),
     slots(2),
     "devices.pick = 3: at most 2 can be taken: cpu:0, cpu:1 [devices.pick=2]"),
    (spec_of("ddp", []), gpus(2),
     "devices.ids = []: choose at least one device; this machine has GPUs 0, 1"),
    (spec_of("ddp", ["0", "0"]), gpus(2),
     'devices.ids = ["0", "0"]: nccl refuses two ranks on one GPU; to debug DDP code on one GPU '
     'set parallel.backend = "gloo"'),
    (spec_of("dp", ["0", "0"]), gpus(2),
     'devices.ids = ["0", "0"]: DataParallel takes each GPU once'),
    (spec_of("ddp", ["cpu:0", "cpu:0"]), slots(2),
     'devices.ids = ["cpu:0", "cpu:0"]: each CPU slot carries one rank; name each once'),
    (spec_of("ddp", ["cpu:0"], parallel__backend="nccl"), slots(1),
     'parallel.backend = "nccl": nccl needs GPUs; on CPU take gloo or auto '
     "[parallel.backend=gloo]"),
    (spec_of("ddp", ["0"], parallel__nodes=2), gpus(1),
     "parallel.nodes = 2: DDP stays on one machine; take multinode, or 1 node"),
    (spec_of("multinode", ["0"]), gpus(1),
     "parallel.nodes = 1: multi-node needs 2 or more; on one machine take ddp "
     "[parallel.mode=ddp]"),
    (of_two(parallel__node_rank=2), gpus(1),
     "parallel.node_rank = 2: with 2 nodes the ranks are 0 to 1"),
    (of_two(parallel__master_port=0), gpus(1),
     "parallel.master_port = 0: all nodes must know the port; name one, for example 29500"),
    *((of_two(parallel__master_addr=wrong), gpus(1),
       f'parallel.master_addr = "{wrong}": expected node 0\'s numeric address or host name, for '
       "example 10.0.0.1") for wrong in ("a b;c", "", "-a")),
    (spec_of("single", parallel__launcher="torchrun"), gpus(1),
     'parallel.launcher = "torchrun": single is one process and needs no launcher'),
    *((spec_of("single", train__lr_scale=how), gpus(1), 'train.lr_reference_batch: lr_scale = '
       f'"{how}" needs the global batch that lr was chosen for') for how in ("linear", "sqrt")),
    (spec_of("single", train__best="accuracy:max"), gpus(1),
     'train.best = "accuracy:max": expected the name of a value, min:name or max:name'),
    (spec_of("single", task__use=None), gpus(1),
     "task.use: name a task (module:Class or path/to/file.py:Class), or give your own command in"
     " task.command"),
    (spec_of("single", task__command=["python", "{batch.sizes}"]), gpus(1),
     'task.command = "{batch.sizes}": there is no such placeholder ({{ writes a brace); there '
     f"are {', '.join(PLACEHOLDERS)}"),
    (spec_of("single", task__use=None, task__command=["python", "--steps={steps}"]), gpus(1),
     "train.steps: say how many: the command has {steps}"),
    (spec_of("single", run__env={"CUDA_VISIBLE_DEVICES": "3"}), gpus(1),
     'run.env.CUDA_VISIBLE_DEVICES = "3": the devices are chosen by devices.ids, devices.pick or'
     " devices.hosts"),
    (spec_of("single", run__env={"RANK": "3"}), gpus(1),
     'run.env.RANK = "3": gpu-panel itself sets it for each rank; leave it out'),
    (spec_of("single", run__env={"GPU_PANEL_HOME": "/x"}), gpus(1),
     'run.env.GPU_PANEL_HOME = "/x": gpu-panel itself sets it for each rank; leave it out'),
    (spec_of("single", run__env={"A": "\0"}), gpus(1),
     'run.env.A = "\\u0000": no variable can hold the character NUL'),
    (spec_of("single", run__env={"a-b": "1"}), gpus(1),
     'run.env = "a-b": is no name of a variable: expected letters, digits and _, not beginning '
     "with a digit"),
    (spec_of("ddp", ["0", "1"], batch__size=3, batch__accumulate=2), gpus(2),
     "batch.size = 3: a global batch must divide by 2 replicas × 2 accumulation steps; 4 or 8 "
     "would [batch.size=4 or batch.size=8]"),
    (spec_of("single", batch__size=3, batch__accumulate=2), gpus(1),
     "batch.size = 3: a global batch must divide by 1 replica × 2 accumulation steps; 2 or 4 "
     "would [batch.size=2 or batch.size=4]"),
    (spec_of("single", ["0", "1"], task__command=["python", "t.py"]), gpus(2),
     'parallel.mode = "single": single trains on one device and 2 are chosen; choose one, or a '
     "mode: --mode ddp starts your command once for each, --mode dp once with all of them (it "
     "may start its own ranks) [parallel.mode=ddp]"),
    (spec_of("single", ["0", "1"], task__command=["torchrun", "t.py"]), gpus(2),
     'parallel.mode = "single": single trains on one device and 2 are chosen; choose one, or the'
     " mode ddp [parallel.mode=ddp]"),
    (spec_of("dp", ["MIG-0", "MIG-1"]), MIG,
     'parallel.mode = "dp": one process can use one MIG slice only; take ddp [parallel.mode=ddp]'),
    (spec_of("ddp", ["0"]), slots(2),
     'devices.ids = ["0"]: this machine has no GPU that can be used, only its processor: '
     "--devices cpu:0, or -n 1 for the freest of cpu:0, cpu:1 [devices.ids=cpu:0]"),
    (spec_of("ddp", ["0", "1", "2"]), replace(slots(2), problem="no driver"),
     'devices.ids = ["0", "1", "2"]: this machine has no GPU that can be used (no driver), only '
     "its processor: --devices cpu:0,cpu:1, or -n 2 for the freest of cpu:0, cpu:1 "
     "[devices.ids=cpu:0,cpu:1]"),
    (spec_of("ddp", ["cpu:0", "0"]), gpus(2),
     "devices.ids = \"cpu:0\": CPU slots and GPUs can't train together"),
    (spec_of("ddp", ["0"]), gpus(0),
     'devices.ids = "0": there is no such device; this machine has no devices'),
    (spec_of("ddp", ["0"], devices__free_gib=1.0), gpus(1),
     "devices.free_gib = 1.0: goes with devices.pick, which says how many devices to take"),
    (of_two(parallel__node_devices=[1]), gpus(1),
     "parallel.node_devices = [1]: expected a number for each of 2 nodes"),
    (of_two(parallel__node_devices=[2, 1]), gpus(1),
     "parallel.node_devices = [2, 1]: node 0 would use 2, and 1 is chosen here"),
    (spec_of("multinode", ["0", "1"], parallel__nodes=2, parallel__node_rank=1,
     parallel__node_devices=[2, 1]), gpus(2),
     "parallel.node_devices = [2, 1]: node 1 would use 1, and 2 are chosen here"),
    (spec_of("single", run__best="x:y:z"), gpus(1),
     'run.best = "x:y:z": expected the name of a value, min:name or max:name'),
    (spec_of("single", run__metrics={"v": "v"}), gpus(1),
     'run.metrics.v = "v": needs one group, (…), for the number, and has none'),
    (from_dict({"task": {"command": []}, "devices": {"ids": ["0"]}, "parallel": {"mode": "dp"}}),
     gpus(1), "task.command = []: the command is empty"),
    (spec_of("single", train__skip_steps=["a"]), gpus(1),
     'train.skip_steps = "a": expected steps, counted from 1: 812, or 820-830'),
    *((spec_of("dp", ["0", "1"], task__command=["env", f"CUDA_VISIBLE_DEVICES={which}", "x"]),
       gpus(4), f'task.command = "CUDA_VISIBLE_DEVICES={which}": the run has GPU 0, GPU 1, and its '
       f"command would use other devices: leave this out{cure}")
      for which, cure in (("9", ""), ("", " and take the processor by --devices cpu:0 (in the "
                                          "panel, c)"))),
])
def test_what_does_not_fit_is_said_with_its_key_and_what_would_do(spec, inventory, says):
    assert says in [str(p) + (f" [{p.remedy}]" if p.remedy else "")
                    for p in check(spec, inventory).problems]
    with pytest.raises(SpecError):
        made(spec, inventory)


@pytest.mark.parametrize(("word", "keys"), [
    ("", {"batch.size", "amp.dtype", "train.lr_scale"}),
    ("{amp}", {"batch.size", "train.lr_scale", "amp.dtype"}),
    ("{lr}", {"amp.dtype", "batch.size", "train.lr_reference_batch"}),
    ("{batch.global}", {"amp.dtype", "train.lr_scale", "batch.size"})])
def test_what_a_command_is_not_told_is_without_effect_and_need_not_fit(word, keys):
    spec = spec_of("ddp", ["cpu:0", "cpu:1"], batch__size=3, amp__dtype="fp16",
                   train__lr_scale="linear", task__command=["x", word])
    found = check(spec, slots(2))
    assert {problem.key for problem in found.problems} == keys
    assert found.batch == (batch_untold(spec, 2) if word in ("", "{amp}") else None)
    assert any("fp16 needs a GPU" in p.message for p in found.problems) == (word == "{amp}")


@pytest.mark.parametrize(("mode", "devices", "pick"), [
    ("single", {}, 1), ("ddp", {}, None), ("single", {"ids": ["0"]}, None),
    ("single", {"pick": 2}, 2), ("single", {"hosts": ["any"]}, 1),
    ("ddp", {"hosts": ["any"]}, None), ("single", {"hosts": ["any"], "pick": 2}, 2),
    ("single", {"hosts": ["a:0"]}, None)])
def test_a_mode_that_takes_one_device_takes_one_of_those_that_are_left_open(mode, devices, pick):
    spec = from_dict({"devices": devices, "parallel": {"mode": mode}})
    assert counted(spec).devices.pick == pick
    found = check(counted(from_dict({"parallel": {"mode": mode}})), gpus(3)).devices
    assert len(found) == (1 if mode == "single" else 3)


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
    p = made(spec_of("ddp", ["MIG-0", "MIG-1"]), MIG)
    assert [q.env["CUDA_VISIBLE_DEVICES"] for q in p.processes] == ["MIG-0", "MIG-1"]
    assert [r.devices[0].torch for r in p.ranks] == ["cuda:0", "cuda:0"]


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
