"""The built-in tasks and the examples, on their real data."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
import torch

from gpu_engine.common.errors import UserError
from gpu_engine.tasks.bytes_gpt import BytesGPT, read_text
from gpu_engine.tasks.digits import read_digits
from gpu_engine.tasks.mnist import read_idx, read_mnist
from gpu_engine.tasks.vgg import Vgg

from ..training import ranks

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_bytes_gpt_learns_on_two_ranks(tmp_path: Path) -> None:
    run = ranks.write_plan(
        tmp_path / "run", "gpu_engine.tasks.bytes_gpt:BytesGPT", world=2, size=32,
        params={"width": 32, "layers": 2, "heads": 2, "context": 32, "megabytes": 0.3},
        train={"steps": 150, "lr": 1e-2, "clip": 1.0})
    ranks.train(run)
    steps = ranks.read(run, 0, "step")
    # One event covers a tenth of a second, in which a fast machine already learns a lot.
    first = max(steps[0].get("losses") or [steps[0]["loss_max"]])
    assert first == pytest.approx(5.5, abs=0.5)
    assert steps[-1]["loss"] < 3.2
    assert ranks.read(run, 0, "eval")[-1]["loss"] < 3.2


def test_windows_lie_next_to_each_other() -> None:
    data = BytesGPT(megabytes=0.05, context=16).train_data()
    x, y = data.get_batch(torch.tensor([5, 6, len(data) - 1]))
    assert x.shape == y.shape == (3, 16)
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert x[1, 0] == y[0, -1]


def test_a_byte_sees_no_byte_after_it() -> None:
    torch.manual_seed(0)
    model = BytesGPT(width=32, layers=2, heads=2, context=16).model().eval()
    x = torch.randint(256, (2, 16))
    other = x.clone()
    other[:, 9:] = (other[:, 9:] + 1) % 256
    a, b = model(x), model(other)
    torch.testing.assert_close(a[:, :9], b[:, :9])
    assert not torch.allclose(a[:, 9:], b[:, 9:])


def test_text_is_read_in_a_fixed_order(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "a.txt", "sub/c.txt", ".hidden"):
        (tmp_path / name).write_text(name)
    assert bytes(read_text(tmp_path, 1000)) == b"a.txtb.txtsub/c.txt"
    assert bytes(read_text(tmp_path, 7)) == b"a.txtb."
    assert bytes(read_text(tmp_path / "b.txt", 3)) == b"b.t"
    assert read_text(None, 10_000) == read_text(None, 10_000)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no text found"):
        read_text(tmp_path / "empty", 10)
    with pytest.raises(UserError, match="only 5 bytes"):
        BytesGPT(text=str(tmp_path / "a.txt")).train_data()


def test_digits_are_learnt(tmp_path: Path) -> None:
    run = ranks.write_plan(tmp_path / "run", "gpu_engine.tasks.digits:Digits", world=2, size=64,
                           train={"epochs": 15, "lr": 3e-3})
    ranks.train(run)
    assert ranks.read(run, 0, "schedule")[-1]["examples"] == 1438
    assert ranks.read(run, 0, "eval")[-1]["accuracy"] > 0.93


def test_digits_are_scikit_learns_own() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    pictures, labels = read_digits()
    theirs = datasets.load_digits()
    assert torch.equal(pictures * 16, torch.tensor(theirs.data, dtype=torch.float32))
    assert labels.tolist() == theirs.target.tolist()


def test_without_scikit_learn_the_error_says_so(monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install scikit-learn"):
        read_digits()


def idx(path: Path, values: torch.Tensor, *, zipped: bool = False) -> None:
    data = struct.pack(f">HBB{values.dim()}I", 0, 8, values.dim(), *values.shape)
    data += bytes(values.flatten().tolist())
    path.write_bytes(gzip.compress(data) if zipped else data)


def test_mnist_from_a_folder(tmp_path: Path) -> None:
    pictures = torch.randint(256, (20, 28, 28), dtype=torch.uint8)
    labels = torch.arange(20, dtype=torch.uint8) % 10
    idx(tmp_path / "train-images-idx3-ubyte.gz", pictures, zipped=True)
    idx(tmp_path / "train-labels-idx1-ubyte", labels)
    with pytest.raises(UserError) as caught:
        read_mnist(tmp_path, train=True)
    assert "t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte" in str(caught.value)
    assert "train" not in str(caught.value).partition("not found in")[2].partition(": ")[2]
    idx(tmp_path / "t10k-images-idx3-ubyte", pictures[:5])
    idx(tmp_path / "t10k-labels-idx1-ubyte", labels[:5])
    x, y = read_mnist(tmp_path, train=True).tensors
    assert x.shape == (20, 784)
    assert torch.equal((x * 255).round().byte().view(20, 28, 28), pictures)
    assert y.tolist() == labels.tolist()
    assert len(read_mnist(tmp_path, train=False)) == 5
    run = ranks.write_plan(tmp_path / "run", "gpu_engine.tasks.mnist:Mnist", size=4,
                           params={"folder": str(tmp_path)})
    ranks.train(run)


def test_mnist_missing_or_broken(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    run = ranks.write_plan(tmp_path / "run", "gpu_engine.tasks.mnist:Mnist", size=4,
                           params={"folder": str(tmp_path / "none")})
    ranks.train(run, expect=1)
    error = ranks.read(run, 0, "error")[-1]
    assert error["type"] == "UserError"
    assert error["traceback"] == ""
    assert "train-images-idx3-ubyte" in error["message"]
    for name, data in (("short", b"\0\0\x08"), ("cut", struct.pack(">HBBI", 0, 8, 1, 5) + b"12"),
                       ("floats", struct.pack(">HBBI", 0, 13, 1, 1) + b"1234")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match=name):
            read_idx(tmp_path / name)


def test_vgg_has_the_papers_shape_and_learns(tmp_path: Path) -> None:
    whole = Vgg(variant="vgg16", width=1.0).model()
    convolutions = sum(p.numel() for n, p in whole.named_parameters()
                       if n.startswith("features") and p.dim() == 4)
    assert convolutions == 14_710_464  # of VGG-16, without the biases that BatchNorm replaces
    run = ranks.write_plan(tmp_path / "run", "gpu_engine.tasks.vgg:Vgg", size=32,
                           params={"width": 0.0625, "examples": 512},
                           train={"epochs": 2, "lr": 3e-3})
    ranks.train(run)
    assert ranks.read(run, 0, "eval")[-1]["accuracy"] > 0.5


@pytest.mark.parametrize(("use", "params", "train", "metric", "below"), [
    ("cnn.py:Shapes", {"examples": 512, "channels": 8, "noise": 0.1}, {"epochs": 3, "lr": 1e-2},
     "loss", 1.3),
    ("language_model.py:Words", {"files": 20, "width": 16, "hidden": 32, "vocabulary": 300},
     {"epochs": 2, "lr": 1e-2}, "loss", 5.5),
    ("own_recipe.py:Curve", {"examples": 2048, "width": 32}, {"epochs": 10, "lr": 0.3},
     "absolute", 0.35),
])
def test_examples_learn(tmp_path: Path, use, params, train, metric, below) -> None:
    run = ranks.write_plan(tmp_path / "run", f"{EXAMPLES / use}", world=2, size=32, params=params,
                           train=train)
    ranks.train(run)
    values = [e[metric] for e in ranks.read(run, 0, "eval")]
    assert values[-1] < below
    if "own" in use:
        assert ranks.read(run, 0, "metric")[0]["rms"] > 0
