"""Whatever is saved can be loaded, according to torch's own loader, and takes no memory twice."""

from __future__ import annotations

import collections
import datetime
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy
import pytest
import torch
from torch import nn

from gpu_engine import Task
from gpu_engine.common.errors import UserError
from gpu_engine.training import checkpoint
from gpu_engine.training.saving import CannotCopy, Copier
from gpu_engine.training.session import Session
from gpu_engine.training.strategies import strategy_of

from . import ranks


@pytest.mark.parametrize(("value", "kind"), [
    (Path("x"), "Path"), (datetime.date(2026, 1, 1), "datetime.date"), (numpy.ones(2), "numpy"),
    (lambda: 0, "lambda"), (collections.deque([1]), "deque")])
def test_values_that_could_not_be_loaded_are_refused(tmp_path, value, kind):
    with pytest.raises(UserError, match=kind):
        checkpoint.save(tmp_path, {"step": 1, "optimizer": {"state": {0: [value]}}}, [], {})
    assert list(tmp_path.iterdir()) == []


def test_values_that_torch_loads_are_saved(tmp_path):
    """A rate that numpy has computed is a number of Python's."""
    odd = {"text": "x", "none": None, "size": torch.Size([1]), "dtype": torch.float16, "set": {1},
           "ordered": collections.OrderedDict(a=[1]), "sparse": torch.eye(3).to_sparse(),
           "parameter": nn.Parameter(torch.ones(2)), numpy.int64(3): [numpy.float64(0.5)]}
    loaded = ranks.saved(checkpoint.save(tmp_path, {"step": 1, **odd}, [], {}).path)
    assert torch.equal(loaded["sparse"].to_dense(), torch.eye(3))
    assert torch.equal(loaded["parameter"], torch.ones(2))
    assert {type(value) for value in (*loaded[3], *loaded)} == {float, int, str}
    assert {k: v for k, v in loaded.items() if not isinstance(v, torch.Tensor)} == {
        "step": 1, **{k: v for k, v in odd.items() if not isinstance(v, torch.Tensor)}}


def test_versions_in_a_modules_state_stay(tmp_path):
    state = nn.Sequential(nn.BatchNorm1d(3)).state_dict()
    path = checkpoint.save(tmp_path, {"step": 1, "model": state}, [], {}).path
    assert ranks.saved(path)["model"]._metadata == state._metadata
    assert state._metadata["0"]["version"] == 2


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.ASGD])
def test_every_optimizers_state_comes_back(tmp_path, kind):
    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(3, 2)
        return model, kind(model.parameters(), lr=numpy.float64(0.01))

    model, optimizer = made()
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    path = checkpoint.save(tmp_path, {"step": 1, "optimizer": optimizer.state_dict()}, [], {}).path
    again = made()[1]
    again.load_state_dict(ranks.saved(path)["optimizer"])
    for mine, theirs in zip(again.state.values(), optimizer.state.values(), strict=True):
        assert mine.keys() == theirs.keys()
        for key in mine:
            assert torch.equal(torch.as_tensor(mine[key]), torch.as_tensor(theirs[key]))
    assert type(again.param_groups[0]["lr"]) is float


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_values_that_are_not_finite_are_found(value, dtype):
    whole = torch.randn(4, 6, 5, 5).to(dtype)
    for name, tensor in {"flat": whole, "last": whole.contiguous(
            memory_format=torch.channels_last), "turned": whole.transpose(0, 2),
            "part": whole[:, ::2, 1:]}.items():
        assert checkpoint.nonfinite([("a", whole), (name, tensor)]) is None
        spoiled = tensor.clone(memory_format=torch.preserve_format)
        spoiled[2, 1, 1, 1] = value
        none = torch.empty(0), torch.tensor([1, 2])
        assert checkpoint.nonfinite(
            [("none", none[0]), ("whole", none[1]), ("b", whole), (name, spoiled)]) == name


def anonymous(field: str) -> int:
    """Bytes of this process, by a field of proc(5)'s status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise AssertionError(field)


def mapped_at(address: int) -> str | None:
    """The file that is mapped there; "" for ordinary memory, None for nothing."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, _, _, _, _, *name = line.split()
        start, end = (int(part, 16) for part in place.split("-"))
        if start <= address < end:
            return Path(name[0]).name if name else ""
    return None


def mapped_from(tensor: torch.Tensor) -> str | None:
    return mapped_at(tensor.data_ptr())


def test_a_resumed_optimizer_keeps_no_page_of_the_file(tmp_path):
    """Otherwise the file would stay on the disk during the whole run, even if deleted."""
    model = nn.Linear(300, 200)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), capturable=False)
    model(torch.ones(4, 300)).sum().backward()
    optimizer.step()
    strategy = strategy_of("single")(Task(), model, SimpleNamespace(devices=["cpu"]), Any)
    path = checkpoint.save(tmp_path, {"step": 1, "skipped": 0, "scaler": {}, **strategy.full_state(
        optimizer)}, [], {}).path
    state = ranks.saved(path)
    assert mapped_from(state["optimizer"]["state"][0]["exp_avg"]) == "state.pt"
    other, session = Mock(), Session.__new__(Session)
    vars(session).update(strategy=strategy, optimizer=optimizer, schedule=other, precision=other,
                         recorder=other, at=other, _own=None)
    session._restore(state)
    tensors = [v for held in (*optimizer.state.values(), *optimizer.param_groups)
               for v in held.values() if isinstance(v, torch.Tensor)]
    assert len(tensors) == 7
    assert {mapped_from(tensor) for tensor in (*tensors, *model.parameters())} <= {"", "[heap]"}


def test_a_loaded_state_takes_no_memory_of_its_own(tmp_path):
    state = {"step": 1, "model": {"w": torch.ones(40_000_000)}}
    path = checkpoint.save(tmp_path, state, [], {}).path
    ranks.saved(path)  # what torch allocates at its first use
    before = anonymous("RssAnon")
    loaded = ranks.saved(path)
    assert anonymous("RssAnon") - before < 16_000_000
    assert torch.equal(loaded["model"]["w"], state["model"]["w"])


def test_a_copy_keeps_its_moment_and_what_is_one():
    whole = torch.arange(12, dtype=torch.float64).reshape(3, 4)
    state = {"a": whole, "tied": whole, "row": whole[1], "turned": whole.t(),
             "none": torch.empty(0, 3), "half": torch.ones(3, dtype=torch.bfloat16),
             "one for all": torch.ones(1).expand(5), "inner": [{"n": 1}]}
    copy = Copier(torch.device("cpu")).copy(state)
    whole.zero_()
    state["inner"][0]["n"] = 2
    assert copy["a"].tolist() == torch.arange(12.0).reshape(3, 4).tolist()
    assert copy["tied"] is copy["a"]
    assert copy["row"].tolist() == [4, 5, 6, 7]
    assert copy["turned"].tolist() == copy["a"].t().tolist()
    assert copy["turned"].stride() == (1, 4)
    assert (copy["inner"], copy["none"].shape) == ([{"n": 1}], (0, 3))
    assert (copy["half"].dtype, copy["one for all"].tolist()) == (torch.bfloat16, [1.0] * 5)
    with pytest.raises(CannotCopy, match="not a plain tensor"):
        Copier(torch.device("cpu")).copy({"sparse": torch.eye(3).to_sparse()})


def test_a_forked_worker_does_not_keep_the_copy():
    copy = Copier(torch.device("cpu")).copy({"w": torch.ones(1 << 20)})
    place = copy["w"].data_ptr()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, b"there" if mapped_at(place) is not None else b"gone")
        os._exit(0)
    os.waitpid(pid, 0)
    assert mapped_at(place) is not None
    assert os.read(read, 10) == b"gone"
