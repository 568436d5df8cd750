"""The plan pane shows the environment: shared values once, different ones as a range."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_engine.plan.build import plan
from gpu_engine.spec.read import from_dict
from gpu_panel.launch.plan import environment

from ....conftest import gpus, slots

pytestmark = pytest.mark.usefixtures("home")


def of(machine, **data):
    spec = from_dict({"task": {"use": "gpu_engine.tasks.bytes_gpt:BytesGPT"}, **data})
    return environment.summary(plan(spec, machine, python="python"))


def test_ddp_ranks_differ_as_a_range():
    said = of(gpus(3), devices={"ids": ["2", "0"]}, parallel={"mode": "ddp"})
    assert said == (
        "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=2,0 · OMP_NUM_THREADS=1 · RANK=0…1 "
        "LOCAL_RANK=0…1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 GROUP_WORLD_SIZE=1 "
        "MASTER_ADDR=127.0.0.1 MASTER_PORT=any free")


def test_a_chosen_port_and_no_gpu():
    said = of(slots(2), devices={"ids": ["cpu:0", "cpu:1"]},
              parallel={"mode": "ddp", "master_port": 29511})
    assert "CUDA_VISIBLE_DEVICES='' " in said
    assert "MASTER_PORT=29511" in said


def test_one_process_has_no_rendezvous():
    assert "RANK" not in of(gpus(1), devices={"ids": ["0"]}, parallel={"mode": "single"})


def test_every_variable_of_every_process_is_named():
    spec = from_dict({"task": {"command": ["python", "x.py"]}, "devices": {"ids": ["0", "1"]},
                      "parallel": {"mode": "ddp"}})
    resolved = plan(spec, gpus(2), python="python", environ={"PYTHONPATH": "/a/very/long" * 9})
    said = environment.summary(resolved)
    assert all(f"{name}=" in said for p in resolved.processes for name in p.env)


def test_hostile_values_are_harmless_and_long_ones_cut():
    resolved = plan(from_dict({"task": {"use": "a:B"}, "devices": {"ids": ["0"]}}), gpus(1),
                    python="python")
    (process,) = resolved.processes
    odd = replace(process, env={"A": "x\x1b]52;c;AAAA\x07" + "y" * 500, "B": "[bold]"})
    said = environment.summary(replace(resolved, processes=(odd,)))
    assert said.isprintable()
    assert len(said) < 80
    assert "[bold]" in said
