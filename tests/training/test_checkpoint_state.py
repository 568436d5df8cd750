"""Whatever is saved can be loaded, according to torch's own loader."""

from __future__ import annotations

import collections
import datetime
import enum
import functools
import io
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from gpu_engine.common.errors import UserError
from gpu_engine.training import checkpoint, checkpoint_state, resuming


class Sub(torch.Tensor):
    pass


class Kind(enum.IntEnum):
    ONE = 1


class Mapping(dict):
    pass


Pair = collections.namedtuple("Pair", "a b")
NOTED = nn.Parameter(torch.ones(2))
NOTED.note = 3

VALUES = {
    "int": 10 ** 30, "float": float("nan"), "bool": True, "none": None, "text": "x", "bytes": b"x",
    "complex": 1j, "size": torch.Size([1]), "dtype": torch.float16, "device": torch.device("cpu"),
    "layout": torch.strided, "list": [1, [2]], "tuple": (1, (2,)), "set": {1, 2},
    "counter": collections.Counter("aab"), "ordered": collections.OrderedDict(a=[1]),
    "bytearray": bytearray(b"x"), "frozenset": frozenset([1]), "range": range(3),
    "slice": slice(1), "deque": collections.deque([1]), "date": datetime.date(2026, 1, 1),
    "namedtuple": Pair(1, 2), "enum": Kind.ONE, "function": io.open, "class": int,
    "partial": functools.partial(print), "dict subclass": Mapping(a=1), "path": Path("x"),
    "defaultdict": collections.defaultdict(list, a=[1]), "ndarray": numpy.ones(2),
    "numpy date": numpy.datetime64("2026-01-01"), "generator": torch.Generator(),
    "parameter": nn.Parameter(torch.ones(2)), "parameter with a note": NOTED,
    "tensor subclass": torch.ones(2).as_subclass(Sub), "sparse": torch.eye(3).to_sparse(),
    "conjugate": torch.ones(2, dtype=torch.complex64).conj(), "float8":
    torch.ones(2).to(torch.float8_e4m3fn), "meta": torch.empty(2, device="meta"),
}


def loads(value: object) -> bool:
    """Whether torch itself can load it."""
    out = io.BytesIO()
    try:
        torch.save(value, out)
        out.seek(0)
        torch.load(out, weights_only=True)
    except Exception:  # noqa: BLE001
        return False
    return True


@pytest.mark.parametrize("what", VALUES)
def test_exactly_the_values_that_torch_loads_are_saved(tmp_path: Path, what: str) -> None:
    value = VALUES[what]
    state = {"step": 1, "optimizer": {"state": {0: [None, {"odd": value}]}}}
    if loads(value):
        path = checkpoint.save(tmp_path, state, [], {}).path
        found = checkpoint.load(path)["optimizer"]["state"][0][1]["odd"]
        assert type(found) is (torch.Tensor if isinstance(value, Sub) else type(value))
        if isinstance(value, torch.Tensor):
            assert found.layout == value.layout
            assert found.dtype == value.dtype
        elif value == value:
            assert found == value
        return
    with pytest.raises(UserError, match=r"state\['optimizer'\]\['state'\]\[0\]\[1\]\['odd'\]"):
        checkpoint.save(tmp_path, state, [], {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("given", "plain"), [
    (numpy.float64(0.5), 0.5), (numpy.float32(0.5), 0.5), (numpy.float16(0.5), 0.5),
    (numpy.longdouble(0.5), 0.5), (numpy.int64(3), 3), (numpy.uint8(3), 3),
    (numpy.bool_(True), True), (numpy.str_("a"), "a"), (numpy.bytes_(b"a"), b"a"),
    (numpy.complex64(1j), 1j)])
def test_numpy_scalars_become_pythons(tmp_path: Path, given, plain) -> None:
    state = {"step": 1, "schedule": {"best": given, given: [given]}}
    loaded = checkpoint.load(checkpoint.save(tmp_path, state, [], {}).path)["schedule"]
    assert loaded == {"best": plain, plain: [plain]}
    assert type(loaded["best"]) is type(plain)
    assert {type(key) for key in loaded} == {str, type(plain)}


def test_an_unfit_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"schedule.*Kind\.ONE"):
        checkpoint.save(tmp_path, {"step": 1, "schedule": {Kind.ONE: 1}}, [], {})


def test_state_that_contains_itself_is_refused(tmp_path: Path) -> None:
    own: dict = {}
    own["again"] = own
    with pytest.raises(UserError, match="contains itself"):
        checkpoint.save(tmp_path, {"step": 1, "schedule": own}, [], {})


def test_versions_in_a_modules_state_stay(tmp_path: Path) -> None:
    state = nn.Sequential(nn.BatchNorm1d(3)).state_dict()
    path = checkpoint.save(tmp_path, {"step": 1, "model": state}, [], {}).path
    assert checkpoint.load(path)["model"]._metadata == state._metadata
    assert state._metadata["0"]["version"] == 2


OPTIMIZERS = [getattr(torch.optim, name) for name in (
    "SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop",
    "ASGD", "Adafactor")]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_optimizers_state_comes_back(tmp_path: Path, kind) -> None:
    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(3, 2)
        return model, kind(model.parameters(), lr=numpy.float64(0.01))

    model, optimizer = made()
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    path = checkpoint.save(tmp_path, {"step": 1, "optimizer": optimizer.state_dict()}, [], {}).path
    again = made()[1]
    again.load_state_dict(checkpoint.load(path)["optimizer"])
    for mine, theirs in zip(again.state.values(), optimizer.state.values(), strict=True):
        assert mine.keys() == theirs.keys()
        for key in mine:
            assert torch.equal(torch.as_tensor(mine[key]), torch.as_tensor(theirs[key]))
    assert type(again.param_groups[0]["lr"]) is float


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16,
                                   torch.complex64, torch.float8_e5m2])
def test_values_that_are_not_finite_are_found(value: float, dtype: torch.dtype) -> None:
    whole = torch.randn(4, 6, 5, 5).to(dtype)
    for name, tensor in {"flat": whole, "last": whole.contiguous(
            memory_format=torch.channels_last), "turned": whole.transpose(0, 2),
            "part": whole[:, ::2, 1:]}.items():
        assert checkpoint_state.nonfinite([("a", whole), (name, tensor)]) is None
        spoiled = tensor.clone(memory_format=torch.preserve_format)
        spoiled[2, 1, 1, 1] = value
        none = torch.empty(0), torch.tensor([1, 2])
        assert checkpoint_state.nonfinite(
            [("none", none[0]), ("whole", none[1]), ("b", whole), (name, spoiled)]) == name


def anonymous(field: str) -> int:
    """Bytes of this process, by a field of proc(5)'s status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise AssertionError(field)


def test_the_check_for_finite_values_takes_no_memory() -> None:
    weights = torch.ones(40_000_000)  # 160 MB, of which isfinite would take as much again
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    before = anonymous("VmHWM")
    assert checkpoint_state.nonfinite([("w", nn.Parameter(weights))]) is None
    assert anonymous("VmHWM") - before < 16_000_000


def mapped_from(tensor: torch.Tensor) -> str:
    """The file from which a tensor is mapped; "" for ordinary memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, _, _, _, _, *name = line.split()
        start, end = (int(part, 16) for part in place.split("-"))
        if start <= tensor.data_ptr() < end:
            return Path(name[0]).name if name else ""
    raise AssertionError("nowhere")


def test_a_resumed_optimizer_keeps_no_page_of_the_file(tmp_path: Path) -> None:
    """Otherwise the file would stay on the disk during the whole run, even if deleted."""
    model = nn.Linear(300, 200)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), capturable=False)
    model(torch.ones(4, 300)).sum().backward()
    optimizer.step()
    path = checkpoint.save(tmp_path, {"step": 1, "optimizer": optimizer.state_dict()}, [], {}).path
    state = checkpoint.load(path)["optimizer"]
    assert mapped_from(state["state"][0]["exp_avg"]) == "state.pt"
    optimizer.load_state_dict(state)
    resuming.take_copies(optimizer)
    tensors = [v for held in (*optimizer.state.values(), *optimizer.param_groups)
               for v in held.values() if isinstance(v, torch.Tensor)]
    assert len(tensors) == 7
    assert {mapped_from(tensor) for tensor in tensors} <= {"", "[heap]"}


def test_a_loaded_state_takes_no_memory_of_its_own(tmp_path: Path) -> None:
    state = {"step": 1, "model": {"w": torch.ones(40_000_000)}}
    path = checkpoint.save(tmp_path, state, [], {}).path
    checkpoint.load(path)  # what torch allocates at its first use
    before = anonymous("RssAnon")
    loaded = checkpoint.load(path)
    assert anonymous("RssAnon") - before < 16_000_000
    assert torch.equal(loaded["model"]["w"], state["model"]["w"])
