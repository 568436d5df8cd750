"""When and how checkpoints are written during a run.

All ranks call the same methods at the same steps, and rank 0 writes. For a periodic checkpoint
training waits only for a copy to host memory, which is then written while training goes on
(`train.checkpoint_async`). All ranks learn whether that succeeded at the next checkpoint or at the
end. Training waits for the whole write of the final checkpoint, and of one that can't be copied.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gpu_engine.common.errors import UserError
from gpu_engine.devices import host
from gpu_engine.events import notices, schema
from gpu_engine.runs import checkpoints
from gpu_engine.spec.schema import parse_best
from gpu_engine.training import checkpoint, rng
from gpu_engine.training.loop import NonFiniteLoss
from gpu_engine.worker.rank.group import Group
from gpu_engine.worker.rank.job import Job
from gpu_engine.worker.rank.peers import PeerLost
from gpu_engine.worker.rank.recorder import Progress, Recorder

_UNDER_WAY, _NOT_FINITE = "~", "!"
_ALIGNED = 64


class Saver:
    """Saves the checkpoints of one attempt."""

    def __init__(self, job: Job, group: Group, recorder: Recorder,
                 weights: Iterable[tuple[str, Tensor]], state: Callable[[], dict[str, Any]],
                 ) -> None:
        """`weights`: the named parameters, which are only saved if they are finite. `state` returns
        the current state for a checkpoint, with the key "step"; all ranks call it together."""
        self.folder = job.run / "checkpoints"
        self.best = parse_best(job.spec.train.best)
        self.step: int | None = None
        """The step of the last checkpoint that all ranks know to be on the disk."""
        self._job, self._group, self._recorder = job, group, recorder
        self._weights, self._state = list(weights), state
        self._devices = [torch.device(d) for d in job.devices]
        self._under_way: int | None = None
        self._metrics: dict[str, float] = {}
        """The evaluation of the step whose checkpoint is being written."""
        # Loader workers may be forked while this thread writes. Of the locks that it then holds,
        # all but malloc's belong to the file and the hash, which no child touches; and malloc's
        # are looked after by the C library.
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._written: Future[str] | None = None
        self._copier = Copier(self._devices[0]) if job.spec.train.checkpoint_async else None
        self._warned_copy = self._warned_best = False

    def save(self, step: int, metrics: dict[str, float], *, final: bool = False) -> None:
        """Save a checkpoint after `step`, unless there already is one. All ranks call it together.

        If it can't be written, that is a warning, and for the final one a UserError. Weights that
        are not finite are never saved; this raises NonFiniteLoss unless train.on_nonfinite is
        "continue".
        """
        self.finish()
        if self.step == step:
            return
        self._recorder.phase = "checkpoint"
        began = time.monotonic()
        ranks = self._group.gather(checkpoint.to_bytes(rng.capture(self._devices)))
        problem = self._group.broadcast(self._begin(ranks, metrics, began, final=final))
        if problem == _UNDER_WAY:
            self._under_way = step
        elif not problem:
            self.step = step
        elif problem.startswith(_NOT_FINITE):
            if self._job.spec.train.on_nonfinite != "continue":
                raise NonFiniteLoss(problem[1:])
        elif final:
            text = f"the final checkpoint could not be written: {problem}"
            # It is rank 0's disk: the others fail for it, and their machines may have room.
            raise PeerLost(f"rank 0: {text}") if self._group.rank else UserError(text)

    def check(self) -> None:
        """Raise UserError, on rank 0, if the state could not be loaded from a checkpoint. Checked
        early: at the first checkpoint, which may be the only one, the training would be lost."""
        state = self._state()
        if self._group.rank == 0:
            checkpoint.check_loads(state)

    def finish(self) -> None:
        """Wait, on all ranks, for a checkpoint that is being written. Raises the error that ended
        it, except for a full disk or memory, of which the writer has warned already."""
        if self._under_way is None:
            return
        self._recorder.phase = "checkpoint"
        written, self._written = self._written, None
        if not self._group.broadcast(written.result() if written else ""):
            self.step = self._under_way
            if self._metrics:
                self._note(self._metrics)
        self._under_way, self._metrics = None, {}

    def wait_for_write(self) -> None:
        """Wait for a checkpoint that this rank is writing, without the other ranks. Called before
        the rank ends because of an error."""
        if self._written is not None:
            self._recorder.phase = "checkpoint"
            self._written.exception()  # the rank ends with its first error

    def record_evaluation(self, step: int, metrics: dict[str, float]) -> bool:
        """Put the values of an evaluation after `step` into that step's checkpoint, if there is
        one. Returns whether to save one now, as the best yet. All ranks call it together."""
        if self.best and self.best[0] not in metrics and not self._warned_best \
                and self._group.rank == 0:
            self._warned_best = True
            self._recorder.warn(f"train.best: the evaluation gives no {self.best[0]!r}; it gives "
                                f"{', '.join(metrics)}")
        if self._under_way == step:
            self._metrics = metrics
            return False
        if self.best:
            self.finish()  # the best so far may still be in the making
        if self.step == step:
            self._note(metrics)
            return False
        if not self.best:
            return False
        verdict = ""
        if self._group.rank == 0:
            name, largest = self.best
            value = metrics.get(name, float("nan"))
            before = checkpoints.best_of(self.folder, name, largest)
            if value == value and (before is None or (
                    value > before[1] if largest else value < before[1])):
                verdict = "best"
        return self._group.broadcast(verdict) == "best"

    # --- rank 0 -------------------------------------------------------------------------------

    def _begin(self, ranks: list[bytes], metrics: dict[str, float], began: float, *,
               final: bool) -> str:
        """On rank 0, write the checkpoint or start to. Returns "", _UNDER_WAY, or what went wrong.
        The other ranks only take part in collecting the state."""
        copy = None
        try:
            state = self._state()
            if self._group.rank:
                return ""
            # One with a NaN is worth nothing, and would take the place of a good one.
            bad = checkpoint.nonfinite(self._weights)
            if not bad and not final and self._copier is not None:
                try:
                    copy = self._copier.copy(state)
                except CannotCopy as err:
                    if not self._warned_copy:
                        self._warned_copy = True
                        self._recorder.warn("training waits while a checkpoint is written, "
                                            f"instead of going on meanwhile: {err}")
        except Exception as err:
            if not checkpoint.is_out_of_memory(err):
                raise
            return self._not_written(f"not enough memory: {err}")
        if bad:
            text = (f"the weights after step {state['step']} are not finite ({bad}); not saved, "
                    "the checkpoint before is kept")
            self._recorder.warn(text)
            return _NOT_FINITE + text
        job = self._job
        about = {"attempt": job.attempt, "mode": job.plan.mode, "world_size": job.who.world_size,
                 "global_batch": job.batch.global_size, "metrics": metrics, "time": time.time()}
        if copy is None:
            return self._write(state, ranks, about, began, None)
        self._recorder.writing = Progress()
        self._written = self._thread.submit(
            self._write, copy, ranks, about, began, time.monotonic() - began)
        return _UNDER_WAY

    def _write(self, state: dict[str, Any], ranks: list[bytes], about: dict[str, Any],
               began: float, blocked: float | None) -> str:
        """Write the checkpoint, in any thread. Returns "", or what went wrong. `blocked`: seconds
        for which training was held up; None if it waits for the whole write."""
        self._recorder.writing = progress = Progress()
        try:
            saved = checkpoint.save(self.folder, state, ranks, about, progress)
        except checkpoint.NotWritten as err:
            return self._not_written(str(err))
        finally:
            self._recorder.writing = None
        self._prune()
        seconds = time.monotonic() - began
        self._recorder.write(schema.Checkpoint(
            saved.step, str(saved.path.relative_to(self._job.run)), round(seconds, 3), saved.size,
            blocked=round(seconds if blocked is None else blocked, 3)))
        return ""

    def _note(self, metrics: dict[str, float]) -> None:
        """Put the values of an evaluation into the checkpoint of its step."""
        if self._group.rank == 0 and self.step is not None:
            try:
                checkpoint.add_metrics(self.folder / checkpoints.name_of(self.step), metrics)
            except (OSError, checkpoint.Damaged) as err:
                self._recorder.warn(f"the evaluation of step {self.step} could not be put into its "
                                    f"checkpoint: {err}")
            self._prune()

    def _not_written(self, why: str) -> str:
        notice = notices.not_saved(why)
        self._recorder.write(notice)
        return notice.message

    def _prune(self) -> None:
        best = self.best and checkpoints.best_of(self.folder, *self.best)
        checkpoint.prune(self.folder, self._job.spec.train.keep, best[0] if best else None)


# --- a copy in host memory, to be written while training goes on --------------------------------


class CannotCopy(Exception):
    """There is no room for a copy, or the state holds a tensor that can't be copied."""


class Copier:
    """Copies states, one at a time. If the weights are on a GPU, the memory is page-locked and
    kept for the next copy, as locking takes longer than copying; else it is freed with the copy."""

    def __init__(self, device: torch.device) -> None:
        """`device`: what holds the weights."""
        self._gpu = device if device.type == "cuda" else None
        self._kept: mmap.mmap | None = None

    def copy(self, state: dict[str, Any]) -> dict[str, Any]:
        """A copy of `state` as it is now, in host memory; waits for the GPU. Raises CannotCopy.

        The previous copy is no longer used.
        """
        tensors = {_key(tensor): tensor for tensor in checkpoint.tensors_of(state)}
        memory = self._memory(sum(_padded(tensor.nbytes) for tensor in tensors.values()))
        copies: dict[tuple, Tensor] = {}
        at = 0
        for key, tensor in tensors.items():
            # The same order of values as in the original, or a copy on the GPU would come first.
            strides = torch.empty_like(tensor, device="meta").stride()
            here = torch.empty(0, dtype=tensor.dtype) if not tensor.numel() else torch.frombuffer(
                memory, dtype=tensor.dtype, count=tensor.numel(), offset=at)
            copies[key] = here.as_strided(tensor.shape, strides)
            copies[key].copy_(tensor.detach(), non_blocking=True)
            at += _padded(tensor.nbytes)
        for gpu in {tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"}:
            torch.cuda.synchronize(gpu)
        return checkpoint.plain(state, lambda tensor: copies[_key(tensor)])

    def _memory(self, size: int) -> mmap.mmap:
        if self._kept is not None:
            if len(self._kept) >= size:
                return self._kept
            self._lock(self._kept, locked=False)
            self._kept = None
        used, total = host.memory()
        if used is not None and total is not None \
                and total - used < size + max(size // 4, 64 << 20):
            raise CannotCopy(f"no room for a copy of {size:,} bytes: {total - used:,} are free")
        try:
            made = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError) as err:
            raise CannotCopy(f"can't allocate {size:,} bytes for a copy: {err}") from err
        with contextlib.suppress(OSError):
            # A loader worker that is forked now would keep this memory for the whole run.
            made.madvise(mmap.MADV_DONTFORK)
        if self._gpu is not None:
            self._lock(made, locked=True)
            self._kept = made
        return made

    def _lock(self, memory: mmap.mmap, *, locked: bool) -> None:
        """Page-lock memory for all GPUs, or unlock it. If that fails, copying is only slower.

        It runs in a thread of its own, as CUDA keeps an error for the thread that caused it and
        would report it at that thread's next kernel.
        """
        cuda: Any = torch.cuda.cudart()
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        call = partial(cuda.cudaHostRegister, address, len(memory), 1) if locked else partial(
            cuda.cudaHostUnregister, address)
        thread = threading.Thread(target=lambda: (torch.cuda.set_device(self._gpu), call()))
        thread.start()
        thread.join()


def _key(tensor: Tensor) -> tuple:
    """The same for two tensors that are one. Raises CannotCopy."""
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided \
            or tensor.is_quantized or tensor.is_conj() or tensor.is_neg() \
            or tensor.device.type not in ("cpu", "cuda"):
        raise CannotCopy(f"the state holds a {type(tensor).__name__} that is not a plain tensor")
    return (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())


def _padded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
