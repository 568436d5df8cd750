"""What a checkpoint's state may hold: tensors and plain values, which load without running code.

The rule is what `torch.load(weights_only=True)` accepts, so types that are not known here are
tried on it. This is checked when saving, while a person can still do something about it.
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


def loadable(state: Any, tensor: Callable[[Tensor], Tensor] = lambda t: t) -> Any:
    """A copy of `state` that can be loaded without running code: numpy's scalars become Python
    numbers, and each tensor `t` becomes `tensor(t)`.

    Raises UserError naming the key of a value that can't be loaded that way.
    """
    try:
        return _Walk(tensor).value(state, "state")
    except RecursionError:
        raise UserError("a checkpoint can't hold state that contains itself") from None


def storages(state: Any) -> dict[int, torch.UntypedStorage]:
    """The storages of all tensors in `state`, each one once, by its address. `state` comes from
    `loadable`."""
    found: dict[int, torch.UntypedStorage] = {}

    def visit(value: Any) -> None:
        if isinstance(value, Tensor):
            if value.layout == torch.strided and value.device.type != "meta":
                storage = value.untyped_storage()
                other = found.get(storage.data_ptr())
                if other is None or other.nbytes() < storage.nbytes():
                    found[storage.data_ptr()] = storage
        elif isinstance(value, dict):
            for inner in value.values():
                visit(inner)
        elif isinstance(value, (list, tuple, set)):
            for inner in value:
                visit(inner)

    visit(state)
    return found


def size_of(state: Any) -> int:
    """Bytes that torch.save writes for the tensors in `state`."""
    return sum(storage.nbytes() for storage in storages(state).values())


def nonfinite(named: Any) -> str | None:
    """The name of the first of the pairs (name, tensor) whose tensor holds a value that is not
    finite; None if all are finite.

    Only the smallest and the largest value are looked at (a NaN is both). That takes one pass and
    little memory, whereas `isfinite` makes temporary tensors as large as the tensor itself.
    """
    ends: dict[torch.device, list[tuple[str, Tensor]]] = {}
    for name, value in named:
        if value.numel() and (value.is_floating_point() or value.is_complex()):
            ends.setdefault(value.device, []).append((name, _ends(value.detach())))
    for pairs in ends.values():  # waits for each device once
        finite = torch.stack([end for _, end in pairs]).isfinite().all(1).tolist()
        for (name, _), good in zip(pairs, finite):
            if not good:
                return name
    return None


def _ends(value: Tensor) -> Tensor:
    """The smallest and the largest value: float64, shape (2,)."""
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    # In the order in which its values lie in memory (channels last, for one), it needs no copy.
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
        """Whether tensors of a class can be loaded, for those tried so far."""

    def value(self, value: Any, where: str) -> Any:
        kind = type(value)
        if kind in _PLAIN and kind is not bytes:  # which torch loads since 2.5
            return value
        if kind is dict or kind is OrderedDict or kind is Counter:
            made = kind({self._key(key, where): self.value(inner, f"{where}[{key!r}]")
                         for key, inner in value.items()})
            if kind is OrderedDict:  # a module's state_dict keeps versions in its attributes
                made.__dict__.update(self.value(vars(value), f"{where}.__dict__"))
            return made
        if kind in (list, tuple, set):
            return kind(self.value(inner, f"{where}[{number}]")
                        for number, inner in enumerate(value))
        if isinstance(value, Tensor):
            if kind not in (Tensor, nn.Parameter) and not self._loads(value):
                raise _not_loadable(where, value)
            return self._tensor(value)
        if _is_numpy_scalar(value):
            return self._from_numpy(value, where)
        if not _can_be_loaded(value):
            raise _not_loadable(where, value)
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
            raise _not_loadable(where, value)
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
    except Exception:  # noqa: BLE001 - pickling may raise anything
        return False
    return True


def _not_loadable(where: str, value: Any) -> UserError:
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    cure = "keep plain values and tensors"
    if kind.__name__ == "ndarray":
        cure = "keep torch.from_numpy() of it, or its tolist()"
    elif isinstance(value, dict):
        cure = "keep a dict"
    elif isinstance(value, (list, tuple)):
        cure = f"keep a {'list' if isinstance(value, list) else 'tuple'}"
    elif isinstance(value, Tensor):
        cure = "keep a plain tensor"
    return UserError(f"a checkpoint can't hold {where}: it is a {name}, which can't be loaded "
                     f"without running code; {cure}")
