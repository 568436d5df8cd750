"""What a checkpoint holds: tensors and plain values, which load without running code; and a
copy of it in host memory, to be written while training goes on.

The rule is what `torch.load(weights_only=True)` accepts, so types that are not known here are
tried on it. This is checked when saving, while a person can still do something about it.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import mmap
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gpu_engine.common.errors import UserError
from gpu_engine.devices.host import cgroup_memory

_PLAIN = (int, float, bool, str, bytes, complex, type(None), torch.Size, torch.dtype, torch.device)


def loadable(state: Any, tensor: Callable[[Tensor], Tensor] = lambda t: t) -> Any:
    """A copy of `state` that can be loaded without running code: numpy's scalars become Python
    numbers, and each tensor `t` becomes `tensor(t)`.

    Raises UserError naming the key of a value that can't be loaded that way.
    """
    try:
        return _walk(state, "state", tensor, {})
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


def _walk(value: Any, where: str, tensor: Callable[[Tensor], Tensor], loads: dict[type, bool]
          ) -> Any:
    """`loadable` of a part of the state. `loads`: whether tensors of a class can be loaded, for
    those tried so far."""
    kind = type(value)
    if kind in _PLAIN and kind is not bytes:  # which torch loads since 2.5
        return value
    if kind is dict or kind is OrderedDict or kind is Counter:
        made = kind({key if type(key) in _PLAIN
                     else _walk(key, f"{where}: the key {key!r}", tensor, loads):
                     _walk(inner, f"{where}[{key!r}]", tensor, loads)
                     for key, inner in value.items()})
        if kind is OrderedDict:  # a module's state_dict keeps versions in its attributes
            made.__dict__.update(_walk(vars(value), f"{where}.__dict__", tensor, loads))
        return made
    if kind in (list, tuple, set):
        return kind(_walk(inner, f"{where}[{number}]", tensor, loads)
                    for number, inner in enumerate(value))
    if isinstance(value, Tensor):
        if kind not in (Tensor, nn.Parameter) and kind not in loads:
            loads[kind] = _can_be_loaded(value)
        if not loads.get(kind, True):
            raise _not_loadable(where, value)
        return tensor(value)
    if _is_numpy_scalar(value):
        plain = value.item()
        if _is_numpy_scalar(plain):  # longdouble, which no Python number holds
            plain = float(plain)
        if type(plain) not in _PLAIN:  # a date
            raise _not_loadable(where, value)
        return plain
    if not _can_be_loaded(value):
        raise _not_loadable(where, value)
    return value


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

# ------------------------------------------------------------------------------------------------
# A copy of a checkpoint's state in host memory, to be written while training goes on.
#
# Whole storages are copied, byte by byte. So the copy needs no memory on the GPU whatever a
# tensor's strides are, and tensors that share memory share it in the copy too.


_ALIGNED = 64
_PORTABLE = 1  # cudaHostRegisterPortable: locked for every GPU


class CannotCopy(Exception):
    """There is no room for a copy, or the state holds a tensor that can't be copied by bytes."""


class Copier:
    """Copies states, one at a time. If the weights are on a GPU, the memory is page-locked and
    kept for the next copy, as locking takes longer than copying; else it is freed with the copy."""

    def __init__(self, gpu: torch.device | None = None, ranks: int = 1) -> None:
        """`gpu`: the GPU that holds the weights, if any; `ranks`: how many share this machine."""
        self._gpu, self._ranks = gpu, ranks
        self._kept: mmap.mmap | None = None
        self._step: int | None = None

    def copy(self, state: dict[str, Any]) -> dict[str, Any]:
        """A copy of `state` as it is now, in host memory; waits for the GPU. Raises CannotCopy.

        `state` comes from `loadable`, and the previous copy is no longer used.
        """
        found = storages(state)
        size = sum(_padded(storage.nbytes()) for storage in found.values())
        memory = self._memory(size)
        copies: dict[int, torch.UntypedStorage] = {}
        at, gpus = 0, set()
        for address, storage in found.items():
            count = storage.nbytes()
            if not count:
                continue
            source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            there = torch.frombuffer(memory, dtype=torch.uint8, count=count, offset=at)
            there.copy_(source, non_blocking=True)
            copies[address] = there.untyped_storage()
            at += _padded(count)
            if storage.device.type != "cpu":
                gpus.add(storage.device)
        for gpu in gpus:
            torch.cuda.synchronize(gpu)
        return loadable(state, lambda tensor: _on_copy(tensor, copies))

    def _memory(self, size: int) -> mmap.mmap:
        if self._kept is not None and len(self._kept) >= size:
            return self._kept
        if self._kept is not None:
            self._lock(self._kept, locked=False)
            self._kept = None
        if self._step is None:  # measured once: later the peak includes a copy
            self._step = peak_above_current() * self._ranks
        free = free_memory()
        if free is not None and free < size + max(size // 4, 64 << 20) + self._step:
            raise CannotCopy(f"no room for a copy of {size:,} bytes: {free:,} are free, of which "
                             f"a step may take {self._step:,}")
        try:
            memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError) as err:
            raise CannotCopy(f"can't allocate {size:,} bytes for a copy: {err}") from err
        with contextlib.suppress(OSError, AttributeError):
            # A loader worker that is forked now would keep this memory for the whole run.
            memory.madvise(mmap.MADV_DONTFORK)
        if self._gpu is not None:
            self._lock(memory, locked=True)
            self._kept = memory
        return memory

    def _lock(self, memory: mmap.mmap, *, locked: bool) -> None:
        """Page-lock memory for the GPU, or unlock it. If that fails, copying is only slower.

        It runs in a thread of its own, as CUDA keeps an error for the thread that caused it and
        would report it at that thread's next kernel.
        """
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))

        def call() -> None:
            torch.cuda.set_device(self._gpu)
            cuda: Any = torch.cuda.cudart()
            if locked:
                cuda.cudaHostRegister(address, len(memory), _PORTABLE)
            else:
                cuda.cudaHostUnregister(address)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()


def free_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes that this process could still allocate, within its control group; None if unknown."""
    free = None
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    limit, used = cgroup_memory()
    if limit is not None and used is not None:
        free = limit - used if free is None else min(free, limit - used)
    return free


def peak_above_current(status: Path = Path("/proc/self/status")) -> int:
    """By how many bytes this process's peak memory exceeds its memory now. A step needs that much
    while it runs, so there must be room for it beside a copy."""
    found = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in status.read_text().splitlines():
            if line.startswith(("VmHWM:", "VmRSS:")):
                found[line[:5]] = int(line.split()[1]) * 1024
    return max(found.get("VmHWM", 0) - found.get("VmRSS", 0), 0)


def _on_copy(tensor: Tensor, copies: dict[int, torch.UntypedStorage]) -> Tensor:
    """The same tensor on the copy of its storage; `copies` has them by the original's address."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested \
            or tensor.device.type == "meta" or tensor.is_conj() or tensor.is_neg() \
            or type(tensor) not in (Tensor, nn.Parameter) or getattr(tensor, "__dict__", None):
        raise CannotCopy(f"the state holds a {type(tensor).__name__} that is not a plain tensor")
    storage = copies.get(tensor.untyped_storage().data_ptr())
    made = torch.empty(0, dtype=tensor.dtype)
    if storage is not None:
        made.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    else:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    if type(tensor) is nn.Parameter:
        return nn.Parameter(made, tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


def _padded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
