"""The ranks as a group: small reductions, broadcasts, and leaving in good order.

Flags and sums travel between CPUs over gloo, even if gradients go over NCCL, so that they cost no
GPU synchronisation. `joining` makes a group.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist

from gpu_engine.worker.rank.failures import Failures
from gpu_engine.worker.rank.identity import Identity
from gpu_engine.worker.rank.last_step import LastStep
from gpu_engine.worker.rank.patient_barrier import Heartbeat, PatientBarrier
from gpu_engine.worker.rank.recorder import Recorder
from gpu_engine.worker.rank.store import Store, another

_PIECE = 64 << 20  # bytes; gloo sends a message as a whole, however large


class ReadsInto(Protocol):
    """A binary file, as `open(path, "rb")` gives one."""

    @property
    def name(self) -> object:
        """Its path."""
        ...

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Read into `buffer`; how many bytes, 0 at the end of the file."""
        ...


class Beside(NamedTuple):
    """See `Group.beside`."""

    failure: Callable[[], str | None]
    """The failure that another rank has announced."""
    beat: Callable[[str], None]
    """Sends a heartbeat with what this rank is doing."""
    look_for_end: Callable[[], None]
    """Looks whether the ranks are to end: see `LastStep`."""


class Group:
    """All ranks, as one of them uses them. With a single rank and no process group, every method
    works locally."""

    def __init__(self, who: Identity, store: Store | None = None,
                 control: dist.ProcessGroup | None = None, timeout: float = 300.0) -> None:
        """`timeout`: seconds without a heartbeat after which another rank counts as lost."""
        self.rank, self.size = who.rank, who.world_size
        self._control = control
        self.failures = Failures(who.rank, who.world_size, store)
        self._patient = None if store is None else PatientBarrier(
            who.rank, who.world_size, store, timeout, self.failures.of_others)
        self.last_step = None if store is None or self._patient is None else LastStep(
            who.rank, who.world_size, store, self._patient)
        self._store = store
        self._rec: Recorder | None = None

    def beside(self) -> Beside | None:
        """What the thread beside the training says to the other ranks and hears from them, over a
        connection of its own, as the main one is busy while a collective waits on it. None if there
        are no others."""
        if self._store is None or self.last_step is None or self.size == 1:
            return None
        own = another(self._store)
        return Beside(self.failures.watcher(own), Heartbeat(self.rank, own),
                      self.last_step.watcher(own))

    # --- waiting for a rank that may be busy for a long time --------------------------------

    def barrier(self) -> None:
        """Wait until all ranks have called this, however long one is busy: see
        `patient_barrier`. Raises PeerLost."""
        if self._patient is None:
            return
        parts = self._rec.parts if self._rec is not None and self._rec.training else None
        before = "" if parts is None else parts.last
        if parts is not None:
            parts.mark("wait")
        self._patient.wait()
        if parts is not None:
            parts.mark(before)

    def broadcast_patiently(self, text: str) -> str:
        """Rank 0's text, on every rank, however long rank 0 takes. Raises PeerLost."""
        return text if self._patient is None else self._patient.broadcast(text)

    def report_waits_to(self, rec: Recorder) -> None:
        """Have `rec` record which ranks this one waits for, and for how long."""
        self._rec = rec
        if self._patient is not None:
            self._patient.report_wait = lambda text: setattr(rec, "detail", text)

    # --- collectives ------------------------------------------------------------------------

    def all_reduce_max(self, values: list[float]) -> list[float]:
        """For each value, the largest that any rank passed. All ranks call it at the same step."""
        if self._control is None:
            return values
        # float64 holds every whole number up to 2**53 exactly.
        table = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(table, dist.ReduceOp.MAX, group=self._control)
        return table.tolist()

    def start_all_reduce_min(self, value: int) -> Callable[[], int]:
        """Start to find the smallest value that any rank passes, without waiting. Returns a
        function that waits for the result and returns it."""
        if self._control is None:
            return lambda: value
        cell = torch.tensor([value])
        work = dist.all_reduce(cell, dist.ReduceOp.MIN, group=self._control, async_op=True)

        def answer() -> int:
            _wait(work)
            return int(cell.item())
        return answer

    def all_reduce_sum(self, table: torch.Tensor) -> torch.Tensor:
        """Add up a CPU tensor over all ranks, in place. The sum is exact if, for each element, all
        ranks but one pass 0."""
        if self._control is not None:
            dist.all_reduce(table, dist.ReduceOp.SUM, group=self._control)
        return table

    def start_all_reduce_sum(self, cell: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Start to add up a tensor over all ranks, in place and on its own device, without waiting
        (on a GPU over NCCL). Returns a function that returns the sum."""
        if self._control is None:
            return lambda: cell
        work = dist.all_reduce(cell, dist.ReduceOp.SUM, async_op=True)

        def answer() -> torch.Tensor:
            _wait(work)
            return cell
        return answer

    def broadcast(self, text: str) -> str:
        """Rank 0's text, on every rank."""
        return self.broadcast_bytes(text.encode()).decode()

    def broadcast_bytes(self, data: bytes) -> bytes:
        """Rank 0's bytes, on every rank."""
        if self._control is None:
            return data
        size = torch.tensor([len(data)])
        dist.broadcast(size, 0, group=self._control)
        cell = torch.empty(int(size), dtype=torch.uint8)
        if self.rank == 0:
            cell.copy_(_bytes(data))
        for piece in cell.split(_PIECE) if len(cell) else ():
            dist.broadcast(piece, 0, group=self._control)
        return ctypes.string_at(cell.data_ptr(), cell.numel())  # numpy may not be there

    def broadcast_pieces(self, source: ReadsInto | None, size: int) -> Iterator[memoryview]:
        """The `size` bytes of rank 0's file, piece by piece, on every rank. `source` is that file
        on rank 0 and None elsewhere. Raises OSError if it is shorter."""
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
        """Every rank's bytes, in the order of ranks, on rank 0; [] elsewhere."""
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
        return [bytes(c[:n].tolist()) for c, n in zip(cells, sizes.tolist())]

    def close(self) -> None:
        """Leave the group in good order. Rank 0 leaves last, as it holds the store."""
        if self._patient is not None:
            self._patient.leave()
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
    """Pack (step, rank) into one number that is larger for an earlier step and, at the same step,
    for a lower rank, so that a MAX reduction finds the first one. 0 stands for no step."""
    return 0.0 if step is None else float(2 ** 52 - (step * size + rank))


def unpack_first(value: float, size: int) -> tuple[int, int] | None:
    """The (step, rank) that `pack_first` packed; None for no step."""
    if value <= 0 or not math.isfinite(value):
        return None
    return divmod(2 ** 52 - int(value), size)
