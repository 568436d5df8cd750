"""Training on a real GPU, through the command line as a person would.

    make test-gpu          # or: python -m pytest tests/gpu

Skipped if no NVIDIA driver answers. docs/gpu-verification.md has the results on real GPUs.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_engine.devices import sampler
from gpu_engine.devices.discover import discover
from gpu_engine.runs import folder as runs

from .. import event_lines
from ..devices.machines import take_once
from ..observe.kit import observe

MIB = 1 << 20
SMI = ("index,uuid,name,memory.total,memory.used,temperature.gpu,power.draw,enforced.power.limit,"
       "clocks.sm,pstate,persistence_mode")
TASK = f"{Path(__file__).with_name('probe_task.py')}:Probe"

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def gpu():
    found = discover()
    if found.source != "nvml":
        pytest.skip("no NVIDIA driver answers here")
    return found


def train(*sets: str, expect: int = 0) -> runs.Run:
    base = [f"task.use={TASK}", "batch.size=64", "train.steps=60", "train.lr=0.01",
            "train.workers=0", "train.checkpoint_every=20", "devices.share=true"]
    argv = [sys.executable, "-m", "gpu_engine", "run", "--json"]
    argv += [word for s in (*base, *sets) for word in ("--set", s)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
    assert done.returncode == expect, done.stdout + done.stderr
    return runs.find(json.loads(done.stdout.splitlines()[-1])["id"])


def events(run: runs.Run, kind: str, rank: int = 0) -> list[dict]:
    return [e for e in event_lines.read(run.events(rank)) if e["kind"] == kind]


def losses(run: runs.Run, rank: int = 0) -> list[float]:
    return [x for e in events(run, "step", rank) for x in e["losses"]]


def test_a_checkpoints_copy_takes_no_gpu_memory_and_keeps_its_moment():
    import torch

    from gpu_engine.training import checkpoint
    from gpu_engine.training.saving import Copier

    gpu = torch.device("cuda:0")
    made = torch.arange(1 << 26, dtype=torch.float32).reshape(1 << 13, -1)
    weights = made.to(gpu)
    turned = weights.t()  # a copy by values would first need a contiguous one on the GPU
    copier = Copier(gpu)
    for _ in range(2):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        assert checkpoint.nonfinite([("w", weights)]) is None
        copy = copier.copy({"w": weights, "t": turned, "host": torch.ones(3)})
        assert torch.cuda.max_memory_allocated() - before < 1 << 20
        weights.add_(1)
        torch.cuda.synchronize()
        assert copy["w"].device.type == "cpu"
        assert copy["w"].is_pinned()
        assert torch.equal(copy["w"], made)
        assert copy["t"].stride() == turned.stride()
        made.add_(1)


@pytest.mark.parametrize("dtype", ["off", "bf16", "fp16"])
def test_it_learns_in_every_precision(home, tmp_path, dtype):
    run = train("devices.ids=0", f"amp.dtype={dtype}", f"task.params.record={tmp_path}")
    found = losses(run)
    assert len(found) == 60
    assert sum(found[-5:]) < 0.7 * sum(found[:5])
    (told,) = [json.loads(p.read_text()) for p in tmp_path.glob("*.json")]
    wanted = {"off": "float32", "bf16": "bfloat16", "fp16": "float16"}[dtype]
    assert told["dtype"] == f"torch.{wanted}"
    assert told["device"] == "cuda:0"


def test_memory_is_what_torch_counts(home, tmp_path):
    run = train("devices.ids=0", f"task.params.record={tmp_path}", "train.steps=3000")
    (told,) = [json.loads(p.read_text()) for p in tmp_path.glob("*.json")]
    last = [e for e in events(run, "memory") if e.get("gpu_peak")][-1]
    (allocated,), (reserved,), (peak,) = (last[f"gpu_{n}"] for n in ("allocated", "reserved",
                                                                    "peak"))
    assert 0 < allocated <= peak <= reserved
    assert peak >= told["peak"]
    assert reserved >= told["reserved"]


@pytest.mark.parametrize("counts", ["false", "true"])
def test_no_step_synchronises_for_telemetry_or_counts(home, counts):
    run = train("devices.ids=0", "task.params.watch_sync=true", "train.checkpoint_every=0",
                f"task.params.counts={counts}", "parallel.mode=ddp", "batch.accumulate=2")
    assert "synchronizing CUDA operation" not in run.log(0).read_text()


def test_data_parallel_over_one_gpu_is_single(home):
    single, dp = train("devices.ids=0"), train("devices.ids=0", "parallel.mode=dp")
    assert losses(dp) == pytest.approx(losses(single), rel=1e-4)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_autocast_reaches_the_replicas(home, tmp_path, dtype):
    train("devices.ids=0", "parallel.mode=dp", f"amp.dtype={dtype}",
          f"task.params.record={tmp_path}")
    (told,) = [json.loads(p.read_text()) for p in tmp_path.glob("*.json")]
    assert told["dtype"] == {"bf16": "torch.bfloat16", "fp16": "torch.float16"}[dtype]


@pytest.mark.parametrize("dtype", ["off", "fp16"])
def test_sums_and_counts_train_as_means_where_all_count_alike(home, dtype):
    sets = ("devices.ids=0", "batch.accumulate=2", "train.clip=1.0", f"amp.dtype={dtype}")
    mean = losses(train(*sets))
    assert losses(train(*sets, "task.params.counts=true")) == pytest.approx(mean, rel=1e-2)


def test_data_parallel_over_all_gpus_agrees_with_single(home, gpu):
    if len(gpu.devices) < 2:
        pytest.skip("one GPU here")
    ids = ",".join(d.id for d in gpu.devices[:2])
    dp = train(f"devices.ids={ids}", "parallel.mode=dp")
    assert losses(dp) == pytest.approx(losses(train("devices.ids=0")), rel=1e-3)
    assert len(events(dp, "memory")[-1]["gpu_allocated"]) == 2


def test_two_gloo_ranks_share_a_gpu(home):
    run = train("devices.ids=0,0", "parallel.mode=ddp", "parallel.backend=gloo")
    mean = [(a + b) / 2 for a, b in zip(losses(run, 0), losses(run, 1), strict=True)]
    assert mean == pytest.approx(losses(train("devices.ids=0")), rel=1e-3)


def test_one_nccl_rank_trains(home):
    run = train("devices.ids=0", "parallel.mode=ddp")
    assert losses(run) == pytest.approx(losses(train("devices.ids=0")), rel=1e-4)


def test_nccl_refuses_two_ranks_on_one_gpu(home):
    argv = [sys.executable, "-m", "gpu_engine", "run", "--set", f"task.use={TASK}", "--set",
            "devices.ids=0,0", "--mode", "ddp", "--set", "devices.share=true"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert "gloo" in done.stderr


def test_a_resumed_run_goes_on_to_the_bit(home):
    whole = train("devices.ids=0")
    part = train("devices.ids=0", "train.steps=40")
    done = subprocess.run([sys.executable, "-m", "gpu_engine", "resume", part.id, "--set",
                           "train.steps=60"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert losses(part) == losses(whole)


def test_the_check_passes(home):
    done = subprocess.run([sys.executable, "-m", "gpu_engine", "check", "ddp", "--devices", "0",
                           "--set", "devices.share=true", "--json"], capture_output=True,
                          text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"]


HOLD = """
import time, torch
held = torch.ones(1 << 28, device="cuda:0")
torch.cuda.synchronize()
print("held", flush=True)
time.sleep(300)
"""


def test_a_process_on_the_gpu_keeps_a_run_away(home, gpu):
    """Another process holds 1 GiB: the table shows it, a run is refused, allowed with
    `devices.share`, and allowed once the process is gone."""
    env = os.environ | {"CUDA_VISIBLE_DEVICES": gpu.devices[0].id,
                        "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    other = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True,
                             env=env)
    try:
        assert other.stdout.readline() == "held\n"
        sample = sampler.take_several(gpu, readings=1)[-1].samples[0]
        assert sample.memory_used > 1 << 30
        assert any((p.memory or 0) > 1 << 30 for p in sample.processes)
        argv = [sys.executable, "-m", "gpu_engine", "run", "--devices", gpu.devices[0].id, "--",
                sys.executable, "-c", "pass"]
        refused = subprocess.run(argv, capture_output=True, text=True, timeout=600)
        assert refused.returncode == 2
        assert "is not free" in refused.stderr
        assert "devices.share" in refused.stderr
        train(f"devices.ids={gpu.devices[0].id}", "train.steps=5")
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    train(f"devices.ids={gpu.devices[0].id}", "devices.share=false", "train.steps=5")


def test_losses_of_a_script_are_seen_without_waiting_for_the_gpu(home):
    seen = observe("on_gpu.py", options=("--devices", "0", "--set", "devices.share=true"))
    assert seen.state["state"] == "completed", seen.log()
    seen.same_as_without()
    assert seen.losses() == pytest.approx(seen.printed())
    assert len(seen.losses()) == 12


@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no nvidia-smi here")
def test_the_machine_is_as_nvidia_smi_shows_it(gpu):
    command = ["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader,nounits"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = {row[1]: row for row in csv.reader(text.splitlines(), skipinitialspace=True)}
    for sample in take_once(gpu).samples:
        if sample.device.kind != "gpu":
            continue
        row = rows[sample.device.uuid]
        assert sample.problem is None
        assert (sample.device.id, sample.device.name) == (row[0], row[2])
        assert sample.memory_total / MIB == pytest.approx(float(row[3]), rel=0.01)
        assert sample.memory_used / MIB == pytest.approx(float(row[4]), abs=256)
        for value, shown, off in (
            (sample.temperature, row[5], 5),
            (sample.power, row[6], 60),
            (sample.power_limit, row[7], 1),
        ):
            if "N/A" not in shown:
                assert value == pytest.approx(float(shown), abs=off)
        assert f"P{sample.performance_state}" == row[9] or sample.performance_state is None
        assert sample.persistence == (row[10] == "Enabled")
