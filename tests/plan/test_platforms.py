"""The YAML for other platforms: read back and run, it gives exactly the plan's argument lists, and
those projects' own schemas take it."""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.devices.records import Device, Inventory
from gpu_engine.plan.batch import layout_of
from gpu_engine.plan.build import plan as planned
from gpu_engine.plan.check import check
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.spec.read import apply_sets, from_dict

FILE = Path(__file__).parents[2] / "examples" / "platforms.py"
_found = importlib.util.spec_from_file_location("platforms", FILE)
assert _found is not None
assert _found.loader is not None
platforms = importlib.util.module_from_spec(_found)
_found.loader.exec_module(platforms)
accelerator, kubeflow = platforms.accelerator, platforms.kubeflow
refuse, skypilot = platforms.refuse, platforms.skypilot
SKYPILOT = jsonschema.Draft202012Validator(
    json.loads((Path(__file__).parent / "schemas" / "skypilot_task.json").read_text()))

A100 = "NVIDIA A100-SXM4-80GB"
GPUS = Inventory(tuple(Device(str(i), "gpu", A100, i, f"GPU-{i}") for i in range(4)), "nvml")
SLOTS = Inventory(tuple(Device(f"cpu:{i}", "cpu", f"CPU core {i}", i, cores=(i,))
                        for i in range(4)), "cpu")
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)
"""What an argument can be: anything but a NUL and bytes that are not UTF-8."""


def plan_of(data: dict[str, Any], inventory: Inventory = GPUS) -> LaunchPlan:
    return planned(from_dict(data), inventory, python="/this/machine/python")


def nodes(**more: Any) -> dict[str, Any]:
    """Two nodes of two devices."""
    return {"name": "Toy run", "task": {"use": "gpu_engine.tasks.bytes_gpt:BytesGPT"},
            "devices": {"pick": 2}, "batch": {"size": 32},
            "parallel": {"mode": "multinode", "nodes": 2, "master_port": 29511}} | more


def on_skypilot(plan: LaunchPlan, inventory: Inventory = GPUS) -> dict[str, Any]:
    document = yaml.safe_load(skypilot(plan, inventory.devices))
    SKYPILOT.validate(document)
    return document


def on_kubeflow(plan: LaunchPlan, inventory: Inventory = GPUS) -> dict[str, Any]:
    # Its import takes a second, which every process that collects the tests would spend.
    import kubeflow_trainer_api.models as kubeflow_models

    document = yaml.safe_load(kubeflow(plan, inventory.devices))
    # Kubeflow's types drop what they do not know: nothing may be missing then.
    read = kubeflow_models.TrainerV1alpha1TrainJob.from_dict(document)
    assert read is not None
    assert read.to_dict() == document
    return document


def run_by_bash(script: str, node: int = 1) -> list[str]:
    """The argument list that bash gives to `python` or `torchrun`, on a node of two."""
    says = "() { printf '%s\\0' \"$FUNCNAME\" \"$@\"; }\n"
    done = subprocess.run(
        ["bash", "-c", "python" + says + "torchrun" + says + script], check=True,
        capture_output=True, timeout=60, env={
            "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n", "SKYPILOT_NODE_RANK": str(node),
            "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NUM_GPUS_PER_NODE": "2", "PATH": "/usr/bin:/bin"})
    assert not done.stderr
    return done.stdout.decode().split("\0")[:-1]


PODS = {"PET_NODE_RANK": "1", "PET_MASTER_ADDR": "toy-node-0-0.toy", "PET_MASTER_PORT": "29400",
        "HOME": "/home/alice"}


def expanded(word: str) -> str:
    """What Kubernetes makes of a word of a command: $(NAME) is replaced if there is such a
    variable, $$ is a dollar sign."""
    out, i = "", 0
    while i < len(word):
        end = word.find(")", i)
        if word.startswith("$$", i):
            out, i = out + "$", i + 2
        elif word.startswith("$(", i) and end > 0:
            name = word[i + 2:end]
            out, i = out + PODS.get(name, f"$({name})"), end + 1
        else:
            out, i = out + word[i], i + 1
    return out


OPTIONS = ["--nnodes=2", "--nproc-per-node=2", "--node-rank=1"]
SKY_OPTIONS = [*OPTIONS, "--master-addr=10.0.0.1", "--master-port=29511", "--rdzv-conf=timeout=300"]
POD_OPTIONS = [*OPTIONS, "--master-addr=toy-node-0-0.toy", "--master-port=29400",
               "--rdzv-conf=timeout=300"]


@settings(max_examples=25, deadline=None)
@given(st.lists(TEXT, max_size=4))
def test_no_argument_becomes_syntax(words: list[str]):
    plan = plan_of(nodes(batch={}, task={"command": [
        w.replace("{", "{{").replace("}", "}}") for w in ["python", "train.py", *words]]}))
    guard = ["--"] if any(w.startswith("--") for w in words) else []
    own = [*guard, "train.py", *words]
    there = ["python", "-m", "torch.distributed.run"]
    assert run_by_bash(on_skypilot(plan)["run"]) == [*there, *SKY_OPTIONS, *own]
    pods = on_kubeflow(plan)["spec"]["trainer"]["command"]
    assert [expanded(w) for w in pods] == [*there, *POD_OPTIONS, *own]


@pytest.mark.parametrize("word", [
    "$(HOME)", "$$(HOME)", "$HOME", "`id`", "'; id #", "a\nb", " lead", "\ttab", "\r", "é", "💾",
    "\u2028", "\ufeff", "yes", "null", "- a: b", "|", "%YAML", "---", "", "\x1b[31m", "\x85"])
def test_words_that_are_syntax_elsewhere(word: str):
    plan = plan_of({"task": {"command": ["python", "a.py", word]}, "devices": {"pick": 1}})
    assert run_by_bash(on_skypilot(plan)["run"]) == ["python", "a.py", word]
    pods = on_kubeflow(plan)["spec"]["trainer"]["command"]
    assert [expanded(w) for w in pods] == ["python", "a.py", word]


def test_bytes_that_are_no_text_are_refused():
    plan = plan_of({"task": {"command": ["python", "a.py", "\udcff"]}, "devices": {"pick": 1}})
    with pytest.raises(UserError, match="not UTF-8"):
        skypilot(plan, GPUS.devices)


@pytest.mark.parametrize("inventory", [GPUS, SLOTS], ids=["gpus", "slots"])
def test_the_ranks_there_make_the_same_plan(inventory: Inventory):
    plan = plan_of(nodes(name="it's $HOME: a #run"), inventory)
    argv = run_by_bash(on_skypilot(plan, inventory)["run"])
    assert argv[:9] == ["python", "-m", "torch.distributed.run", *SKY_OPTIONS]
    assert argv[9:12] == ["-m", "--", "gpu_engine.worker"]
    data: dict[str, Any] = {}
    apply_sets(data, argv[13::2])
    spec = from_dict(data)
    assert spec.name == "it's $HOME: a #run"
    assert spec.batch == plan.spec.batch
    assert spec.train == plan.spec.train
    assert spec.task == plan.spec.task
    assert [expanded(w) for w in on_kubeflow(plan, inventory)["spec"]["trainer"]["command"]][9:] \
        == argv[9:]
    cpu = inventory is SLOTS
    assert bool(spec.devices.ids) is cpu  # from this, ranks decide between CPU and GPU


def test_one_node_is_launched_by_gpu_engine():
    plan = plan_of(nodes(parallel={"mode": "ddp"}, devices={"ids": ["1", "3"]}))
    argv = run_by_bash(on_skypilot(plan)["run"])
    assert argv[:4] == ["python", "-m", "gpu_engine", "run"]
    data: dict[str, Any] = {}
    apply_sets(data, argv[5::2])
    spec = from_dict(data)
    assert (spec.devices.ids, spec.devices.pick) == (None, 2)
    there = check(spec, GPUS)
    assert not there.problems
    assert there.batch == plan.batch
    assert layout_of(spec, 2).world_size == plan.world_size


def test_what_is_asked_for():
    task = on_skypilot(plan_of(nodes()))
    assert (task["name"], task["num_nodes"]) == ("toy-run", 2)
    assert task["resources"] == {"accelerators": "A100-80GB:2"}
    assert on_skypilot(plan_of(nodes(), SLOTS), SLOTS)["resources"] == {"cpus": "2+"}
    trainer = on_kubeflow(plan_of(nodes()))["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 2)
    assert trainer["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": "2"}
    assert trainer["env"] == [{"name": "PYTHONUNBUFFERED", "value": "1"}]
    text = skypilot(plan_of(nodes(), SLOTS), SLOTS.devices)
    assert "32 global = 8 per slot × 4 slots × 1" in text
    assert "no GPU is asked for" in text


def test_threads_of_a_command_on_slots():
    plan = plan_of({"task": {"command": ["python", "a.py"]}, "devices": {"pick": 1}}, SLOTS)
    assert on_skypilot(plan, SLOTS)["envs"]["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(("change", "sentence"), [
    ({"devices": {"hosts": ["gpu1:0"]}}, "devices.hosts"),
    ({"parallel": {"mode": "multinode", "nodes": 2, "node_devices": [2, 1]}}, "node_devices"),
    ({"task": {"command": ["python", "a.py", "{run.dir}"]}}, "run.dir"),
    ({"task": {"command": ["python", "a.py", "{node_rank}"]}}, "GROUP_RANK"),
])
def test_what_has_no_equal_there_is_refused(change: dict[str, Any], sentence: str):
    with pytest.raises(SpecError, match=sentence):
        refuse(from_dict(nodes(**change)))


def test_devices_that_can_not_be_asked_for_are_refused():
    twice = nodes(devices={"ids": ["0", "0"]},
                  parallel={"mode": "ddp", "backend": "gloo"})
    with pytest.raises(SpecError, match="a GPU of its own"):
        skypilot(plan_of(twice), GPUS.devices)
    other = Device("4", "gpu", "NVIDIA L4", 4, "GPU-4")
    slice_ = Device("MIG-1", "mig", "MIG 1g.10gb 0:0", 0, "MIG-1")
    mixed = Inventory((*GPUS.devices, other, slice_), "nvml")
    ddp = {"mode": "ddp"}
    with pytest.raises(SpecError, match="one model"):
        skypilot(plan_of(nodes(devices={"ids": ["0", "4"]}, parallel=ddp), mixed), mixed.devices)
    with pytest.raises(SpecError, match="slices"):
        skypilot(plan_of(nodes(devices={"ids": ["MIG-1"]}, parallel=ddp), mixed), mixed.devices)


@pytest.mark.parametrize(("driver", "name"), [
    (A100, "A100-80GB"), ("NVIDIA A100-SXM4-40GB", "A100"), ("NVIDIA A100 80GB PCIe", "A100-80GB"),
    ("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA H200", "H200"), ("Tesla T4", "T4"),
    ("Tesla V100-SXM2-16GB", "V100"), ("Tesla V100-SXM2-32GB", "V100-32GB"),
    ("NVIDIA L40S", "L40S"), ("NVIDIA GeForce RTX 4090", "RTX4090"),
    ("NVIDIA RTX 6000 Ada Generation", "RTX6000-Ada")])
def test_names_of_gpus(driver: str, name: str):
    assert accelerator(driver) == name


@pytest.mark.parametrize(("name", "label"), [
    ("Toy run", "toy-run"), ("7", "run-7"), ("--- é", "run"), ("a" * 80, "a" * 40)])
def test_names_of_jobs(name: str, label: str):
    plan = plan_of(nodes(name=name))
    assert on_kubeflow(plan)["metadata"]["name"] == label


def test_the_example_takes_a_preset_sets_and_a_command():
    script = [sys.executable, __file__, "$HOME"]
    done = subprocess.run([sys.executable, FILE, "skypilot", "--set", "devices.ids=cpu:0",
                           "--", *script], capture_output=True, text=True, check=True)
    assert yaml.safe_load(done.stdout)["run"] == shlex.join(script) + "\n"
    task = yaml.safe_load(platforms.main(["kubeflow", "single", "--set", "devices.ids=cpu:0"]))
    assert task["kind"] == "TrainJob"
    with pytest.raises(UserError, match="expected skypilot or kubeflow"):
        platforms.main(["slurmm"])
