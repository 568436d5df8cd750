"""What a checkpoint's state may hold: tensors and plain values, which load without running code.

What counts is what `torch.load(weights_only=True)` takes, so whatever is not known here is tried
on it. Found out when saving, there is still something to do about it; when loading there is not.
"""

from __future__ import annotations

import io
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gpu_engine.common.errors import UserError

_PLAIN = (int, float, bool, str, bytes, complex, type(None), torch.Size, torch.dtype, torch.device)


def plain(state: Any, tensor: Callable[[Tensor], Tensor] = lambda t: t) -> Any:
    """A copy of `state` in which numpy's scalars are Python's and each tensor is `tensor` of it.

    Raises UserError naming the key of what could not be loaded again.
    """
    try:
        return _Walk(tensor).value(state, "state")
    except RecursionError:
        raise UserError("a checkpoint can't hold state that contains itself") from None


def storages(state: Any) -> dict[int, torch.UntypedStorage]:
    """The memory of the tensors in `state`, each piece once, by its address. `state` is plain."""
    found: dict[int, torch.UntypedStorage] = {}

    def look(value: Any) -> None:
        if isinstance(value, Tensor):
            if value.layout == torch.strided and value.device.type != "meta":
                storage = value.untyped_storage()
                other = found.get(storage.data_ptr())
                if other is None or other.nbytes() < storage.nbytes():
                    found[storage.data_ptr()] = storage
        elif isinstance(value, dict):
            for inner in value.values():
                look(inner)
        elif isinstance(value, list | tuple | set):
            for inner in value:
                look(inner)

    look(state)
    return found


def size_of(state: Any) -> int:
    """Bytes of the tensors in `state`, as torch.save writes them."""
    return sum(storage.nbytes() for storage in storages(state).values())


def nonfinite(named: Any) -> str | None:
    """The name of the first of (name, tensor) that holds a value that is not finite.

    The least and the largest value tell it (NaN is both), in one pass and without a temporary as
    large as the tensor, which `isfinite` makes several of.
    """
    ends: dict[torch.device, list[tuple[str, Tensor]]] = {}
    for name, value in named:
        if value.numel() and (value.is_floating_point() or value.is_complex()):
            ends.setdefault(value.device, []).append((name, _ends(value.detach())))
    for pairs in ends.values():  # one wait a device
        finite = torch.stack([end for _, end in pairs]).isfinite().all(1).tolist()
        for (name, _), good in zip(pairs, finite, strict=True):
            if not good:
                return name
    return None


def _ends(value: Tensor) -> Tensor:
    """The least and the largest value: float64, shape (2,)."""
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    # Channels last and the like: in the order in which it lies there, it needs no copy.
    value = value.permute(sorted(range(value.dim()), key=lambda d: -value.stride(d)))
    if value.element_size() > 1:
        return torch.stack(torch.aminmax(value)).double()
    # float8 has no arithmetic of its own.
    ends = [torch.stack(torch.aminmax(piece.float())) for piece in value.flatten().split(1 << 22)]
    return torch.stack(torch.aminmax(torch.stack(ends))).double()


class _Walk:
    def __init__(self, tensor: Callable[[Tensor], Tensor]) -> None:
        self._tensor = tensor
        self._loadable: dict[type, bool] = {}
        """Kinds of tensors that were tried."""

    def value(self, value: Any, where: str) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is dict or kind is OrderedDict or kind is Counter:
            made = kind({self._key(key, where): self.value(inner, f"{where}[{key!r}]")
                         for key, inner in value.items()})
            if kind is OrderedDict:  # a module's state_dict notes versions there
                made.__dict__.update(self.value(vars(value), f"{where}.__dict__"))
            return made
        if kind in (list, tuple, set):
            return kind(self.value(inner, f"{where}[{number}]")
                        for number, inner in enumerate(value))
        if isinstance(value, Tensor):
            if kind not in (Tensor, nn.Parameter) and not self._loads(value):
                raise _odd(where, value)
            return self._tensor(value)
        if _is_numpy_scalar(value):
            return self._from_numpy(value, where)
        if not _can_be_loaded(value):
            raise _odd(where, value)
        return value

    def _key(self, key: Any, where: str) -> Any:
        if type(key) in _PLAIN:
            return key
        return self.value(key, f"{where}: the key {key!r}")

    def _from_numpy(self, value: Any, where: str) -> Any:
        found = value.item()
        if _is_numpy_scalar(found):  # longdouble, which no Python number holds
            found = float(found)
        if type(found) not in _PLAIN:  # a date
            raise _odd(where, value)
        return found

    def _loads(self, value: Tensor) -> bool:
        if type(value) not in self._loadable:
            self._loadable[type(value)] = _can_be_loaded(value)
        return self._loadable[type(value)]


def _is_numpy_scalar(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def _can_be_loaded(value: Any) -> bool:
    out = io.BytesIO()
    try:
        torch.save(value, out)
        out.seek(0)
        torch.load(out, map_location="cpu", weights_only=True)
    except Exception:  # noqa: BLE001 - whatever pickling says, it does not go
        return False
    return True


def _odd(where: str, value: Any) -> UserError:
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    cure = "keep plain values and tensors"
    if kind.__name__ == "ndarray":
        cure = "keep torch.from_numpy() of it, or its tolist()"
    elif isinstance(value, dict):
        cure = "keep a dict"
    elif isinstance(value, list | tuple):
        cure = f"keep a {'list' if isinstance(value, list) else 'tuple'}"
    elif isinstance(value, Tensor):
        cure = "keep a plain tensor"
    return UserError(f"a checkpoint can't hold {where}: it is a {name}, which could not be loaded "
                     f"without running code; {cure}")
