"""The ranks as a group: agreeing on flags, adding up sums, handing bytes around, and leaving.

Flags and sums travel over gloo between CPUs even where gradients go over NCCL, so that asking
the others costs no GPU synchronisation. How a group comes about: see `joining`.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
import torch.distributed as dist

from gpu_engine.worker.rank.failures import Failures
from gpu_engine.worker.rank.identity import Identity
from gpu_engine.worker.rank.meeting import Meetings
from gpu_engine.worker.rank.recorder import Recorder
from gpu_engine.worker.rank.store import Store

_TEXT = 8192
_PIECE = 64 << 20  # gloo sends a message in one piece


class ReadsInto(Protocol):
    """A binary file, as `open(path, "rb")` gives one."""

    @property
    def name(self) -> object:
        """Its path."""
        ...

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Read into `buffer`; how many bytes, 0 at the end of the file."""
        ...


class Group:
    """This rank's view of all ranks. With one rank and no process group everything is local."""

    def __init__(self, who: Identity, store: Store | None = None,
                 control: dist.ProcessGroup | None = None, timeout: float = 300.0) -> None:
        """`timeout`: seconds without a sign of life after which another rank is given up."""
        self.rank, self.size = who.rank, who.world_size
        self._control = control
        self.failures = Failures(who.rank, who.world_size, store)
        self.meetings = None if store is None else Meetings(
            who.rank, who.world_size, store, timeout, self.failures.heard)

    # --- where one may be busy for long -----------------------------------------------------

    def meet(self) -> None:
        """Wait until all ranks are here, however long one is busy: see `meeting`."""
        if self.meetings is not None:
            self.meetings.meet()

    def broadcast_patiently(self, text: str) -> str:
        """Rank 0's text, on every rank, however long rank 0 takes to come to it."""
        return text if self.meetings is None else self.meetings.broadcast(text)

    def tell_waits(self, rec: Recorder) -> None:
        """Have `rec` say what this rank waits for."""
        if self.meetings is not None:
            self.meetings.say = lambda text: setattr(rec, "detail", text)

    # --- collectives ------------------------------------------------------------------------

    def all_reduce_max(self, values: list[float]) -> list[float]:
        """Of each value the largest that any rank gave. All ranks call it, at the same step."""
        if self._control is None:
            return values
        # float64 holds every whole number up to 2**53 exactly.
        table = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(table, dist.ReduceOp.MAX, group=self._control)
        return table.tolist()

    def start_all_reduce_min(self, value: int) -> Callable[[], int]:
        """Ask for the smallest value that any rank gives, without waiting for the answer; call
        what it returns to have it."""
        if self._control is None:
            return lambda: value
        cell = torch.tensor([value])
        work = dist.all_reduce(cell, dist.ReduceOp.MIN, group=self._control, async_op=True)

        def answer() -> int:
            _wait(work)
            return int(cell.item())
        return answer

    def all_reduce_sum(self, table: torch.Tensor) -> torch.Tensor:
        """The sum over ranks of a CPU tensor, in place. Exact where all but one rank give 0."""
        if self._control is not None:
            dist.all_reduce(table, dist.ReduceOp.SUM, group=self._control)
        return table

    def start_all_reduce_sum(self, cell: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Begin to add up a tensor over ranks, in place and on its own device (over NCCL on a
        GPU, which no rank waits for); call what it returns to have the sum."""
        if self._control is None:
            return lambda: cell
        work = dist.all_reduce(cell, dist.ReduceOp.SUM, async_op=True)

        def answer() -> torch.Tensor:
            _wait(work)
            return cell
        return answer

    def broadcast(self, text: str) -> str:
        """Rank 0's text (at most 8 KiB of UTF-8), on every rank."""
        if self._control is None:
            return text
        cell = torch.zeros(_TEXT, dtype=torch.uint8)
        if self.rank == 0:
            cell[:len(text.encode())] = _bytes(text.encode())
        dist.broadcast(cell, 0, group=self._control)
        return bytes(cell.tolist()).rstrip(b"\0").decode()

    def broadcast_bytes(self, data: bytes) -> bytes:
        """Rank 0's bytes, on every rank."""
        if self._control is None:
            return data
        size = torch.tensor([len(data)])
        dist.broadcast(size, 0, group=self._control)
        cell = torch.empty(int(size), dtype=torch.uint8)
        if self.rank == 0:
            cell.copy_(_bytes(data))
        for piece in cell.split(_PIECE):
            dist.broadcast(piece, 0, group=self._control)
        return ctypes.string_at(cell.data_ptr(), cell.numel())  # numpy may not be there

    def broadcast_pieces(self, source: ReadsInto | None, size: int) -> Iterator[memoryview]:
        """The `size` bytes of rank 0's file, piece by piece, on every rank."""
        cell = torch.empty(min(size, _PIECE), dtype=torch.uint8)
        view = memoryview((ctypes.c_char * len(cell)).from_address(cell.data_ptr())).cast("B")
        for start in range(0, size, _PIECE):
            count = min(_PIECE, size - start)
            at = 0
            while source is not None and at < count:
                got = source.readinto(view[at:count])
                if not got:
                    raise OSError(f"{source.name}: ends after {start + at} of {size} bytes")
                at += got
            if self._control is not None:
                dist.broadcast(cell[:count], 0, group=self._control)
            yield view[:count]

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, in order, on rank 0; [] elsewhere."""
        if self._control is None:
            return [data]
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = len(data)
        dist.all_reduce(sizes, group=self._control)
        cell = torch.zeros(int(sizes.max()), dtype=torch.uint8)
        cell[:len(data)] = _bytes(data)
        cells = [torch.empty_like(cell) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(cell, cells, 0, group=self._control)
        if cells is None:
            return []
        return [bytes(c[:n].tolist()) for c, n in zip(cells, sizes.tolist(), strict=True)]

    def close(self) -> None:
        """Leave in good order. Rank 0 takes the store with it, so it goes last."""
        if self.meetings is not None:
            self.meetings.part()
        if dist.is_initialized():
            dist.destroy_process_group()
        self._control = None


def _wait(work: dist.Work | None) -> None:
    if work is not None:  # None: this process is not in the group
        work.wait()


def _bytes(data: bytes) -> torch.Tensor:
    # torch.frombuffer refuses a buffer of no bytes.
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(
        0, dtype=torch.uint8)


def pack_first(step: int | None, rank: int, size: int) -> float:
    """The earliest step and then the lowest rank as a number that is larger the earlier it is,
    so that MAX finds it; 0 for no step."""
    return 0.0 if step is None else float(2 ** 52 - (step * size + rank))


def unpack_first(value: float, size: int) -> tuple[int, int] | None:
    """(step, rank) of `pack_first`."""
    if value <= 0 or not math.isfinite(value):
        return None
    return divmod(2 ** 52 - int(value), size)
