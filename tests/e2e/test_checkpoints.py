"""What the checkpoints of a run that has ended are for: their weights as a file (safetensors, read
back by the format's own description, or torch's), and going on, from the best or from that of a
step."""

from __future__ import annotations

import json
import os
import shutil
import struct

import pytest
import torch

from gpu_engine.common.errors import UserError
from gpu_engine.launching import ask_torch
from gpu_engine.runs import checkpoints
from gpu_engine.runs import folder as runs
from gpu_engine.training.export import export

from ..command_line import called
from .kit import call, losses, sets


def weights(run, step: int = 20) -> dict[str, torch.Tensor]:
    """What torch itself reads from the checkpoint of a step, by default of the newest one."""
    return torch.load(run.checkpoints / f"step-{step:08d}" / "state.pt",
                      weights_only=True)["model"]


def read(path) -> tuple[dict, bytes]:
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8:8 + size]), data[8 + size:]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A home with a finished run, and the run's id."""
    folder = tmp_path_factory.mktemp("trained") / "home"
    out = call("run", "--json", *sets(
        devices__ids="cpu:0", train__steps=20, train__eval_every=5, train__keep=2,
        train__checkpoint_every=5, train__best="max:loss"),
        env=os.environ | {"GPU_PANEL_HOME": str(folder)})
    assert out.returncode == 0, out.stderr
    return folder, json.loads(out.stdout.splitlines()[-1])["id"]


@pytest.fixture
def run(trained, home):
    """The run, in a home of the test's own."""
    shutil.copytree(trained[0], home, symlinks=True)
    return runs.find(trained[1])


def test_weights_of_the_newest_that_is_whole_come_out_as_they_were_saved(run, tmp_path):
    """The newest one is damaged, and passed over with a warning."""
    state = run.checkpoints / "step-00000020" / "state.pt"
    body = bytearray(state.read_bytes())
    body[len(body) // 2] ^= 1
    state.write_bytes(body)
    out = tmp_path / "w.safetensors"
    done = call("export", run.id, str(out), "--json")
    assert done.returncode == 0
    assert "warning" in done.stderr
    told = json.loads(done.stdout)
    assert told["step"] == 15
    header, data = read(out)
    assert header.pop("__metadata__") == {"step": "15", "format": "pt"}
    assert told["tensors"] == len(header) > 5
    assert max(e["data_offsets"][1] for e in header.values()) == len(data)
    saved = {k: [str(v.dtype), list(v.shape), float(v.double().sum())]
             for k, v in weights(run, 15).items()}
    assert set(saved) == set(header)
    for name, (dtype, shape, total) in saved.items():
        entry = header[name]
        assert (dtype, shape) == ({"F32": "torch.float32", "I64": "torch.int64",
                                   "BOOL": "torch.bool"}[entry["dtype"]], entry["shape"])
        if entry["dtype"] == "F32":
            a, b = entry["data_offsets"]
            assert sum(struct.unpack(f"<{(b - a) // 4}f", data[a:b])) == pytest.approx(
                total, rel=1e-6, abs=1e-4)


@pytest.mark.parametrize("name", ["w.pt", "w.pth"])
def test_a_name_that_ends_as_torch_s_files_do_is_what_torch_loads(run, tmp_path, name):
    told = export(run.checkpoints, tmp_path / name)
    assert told["step"] == 20
    was, now = weights(run), torch.load(tmp_path / name, weights_only=True)
    assert list(was) == list(now)
    assert all(torch.equal(was[k], now[k]) for k in was)
    assert len(now) == told["tensors"]
    assert not list(tmp_path.glob(".*"))


@pytest.fixture
def no_torch(monkeypatch):
    """A refusal for which torch would have to be imported fails the test."""
    monkeypatch.setattr(ask_torch, "WORKER", "/no/such/worker.py")


def test_a_name_that_says_no_format_is_refused_with_those_that_do(run, tmp_path, no_torch):
    out = called("export", run.id, str(tmp_path / "w.onnx"))
    assert out.returncode == 2
    assert "w.onnx" in out.stderr
    assert ".safetensors, .pt, .pth" in out.stderr
    assert not list(tmp_path.glob("w*"))


def test_without_a_checkpoint_it_says_so(tmp_path, no_torch):
    with pytest.raises(UserError, match="no checkpoint that can be loaded"):
        ask_torch.export(tmp_path, tmp_path / "x.pt", None, python="python")


def steps(run: runs.Run) -> list[int | None]:
    return [checkpoints.step_of(p.name) for p in checkpoints.listed(run.checkpoints)]


def test_from_the_best_or_a_step(run, tmp_path):
    first = losses(run)
    assert steps(run) == [5, 15, 20], "the loss falls: the largest is the first"

    file = str(tmp_path / "w.safetensors")
    assert "of step 5," in called("export", run.id, file, "--from", "best").stdout
    assert checkpoints.choose(run.checkpoints, "15", "max:loss") == "step-00000015"
    for verb in (("export", run.id, file), ("resume", run.id)):
        refused = called(*verb, "--from", "7")
        assert refused.returncode == 2
        assert "there is no checkpoint of step 7; there are step 5, 15, 20" in refused.stderr
        assert "Traceback" not in refused.stderr
    assert run.state().attempt == 1

    done = called("resume", run.id, "--from", "best", "--set", "train.keep=4")
    assert done.returncode == 0, done.stderr
    assert losses(run)[20:] == first[5:]
    assert steps(run) == [5, 10, 15, 20]
    aside = checkpoints.listed(run.checkpoints / "before-attempt-2")
    assert [p.name for p in aside] == ["step-00000015", "step-00000020"]


def test_from_an_earlier_one_the_run_may_be_shorter_than_it_was(run):
    done = called("resume", run.id, "--from", "5", "--set", "train.steps=10")
    assert done.returncode == 0, done.stderr
    assert steps(run) == [5, 10]


def test_an_own_command_has_no_checkpoints_of_ours(home):
    out = called("run", "--json", "--set", "devices.ids=cpu:0", "--", "true")
    run = json.loads(out.stdout.splitlines()[-1])["id"]
    refused = called("resume", run, "--from", "best")
    assert refused.returncode == 2
    assert "a command of your own" in refused.stderr
