"""A copy of a checkpoint's state in host memory, to be written while training goes on.

Whole storages are copied, byte by byte. So the copy needs no memory on the GPU whatever a tensor's
strides are, and tensors that share memory share it in the copy too.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gpu_engine.devices.host import cgroup_memory
from gpu_engine.training import checkpoint_state

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

        `state` comes from `checkpoint_state.loadable`, and the previous copy is no longer used.
        """
        found = checkpoint_state.storages(state)
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
        return checkpoint_state.loadable(state, lambda tensor: _on_copy(tensor, copies))

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
