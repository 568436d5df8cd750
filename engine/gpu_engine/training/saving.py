"""When and how checkpoints are written during a run.

All ranks call the same methods at the same steps, and rank 0 writes. For a periodic checkpoint
training waits only for a copy to host memory, which is then written while training goes on
(`train.checkpoint_async`). All ranks learn whether that succeeded at the next checkpoint or at the
end. Training waits for the whole write of the final checkpoint, and of one that can't be copied.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch

from gpu_engine.common.errors import UserError
from gpu_engine.events import notices, schema
from gpu_engine.runs import checkpoints
from gpu_engine.spec.schema import parse_best
from gpu_engine.training import checkpoint, checkpoint_state, rng
from gpu_engine.training.checkpoint_state import CannotCopy, Copier
from gpu_engine.training.loop import NonFiniteLoss
from gpu_engine.worker.rank.group import Group
from gpu_engine.worker.rank.job import Job
from gpu_engine.worker.rank.peers import PeerLost
from gpu_engine.worker.rank.recorder import Progress, Recorder

_COPIED = ("cpu", "cuda")
"""Devices whose memory is copied for a checkpoint in the background; others are saved at once."""
_UNDER_WAY, _NOT_FINITE = "~", "!"


class Saver:
    """Saves the checkpoints of one attempt."""

    def __init__(self, job: Job, group: Group, recorder: Recorder,
                 weights: Iterable[tuple[str, torch.Tensor]], state: Callable[[], dict[str, Any]],
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
        self._writer = Writer()
        gpu = self._devices[0] if self._devices[0].type == "cuda" else None
        self._copier = Copier(gpu, max(job.who.local_world_size, 1)) \
            if job.spec.train.checkpoint_async and self._devices[0].type in _COPIED else None
        self._said_why = self._warned_best = False

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
        ranks = self._group.gather_bytes(checkpoint.to_bytes(rng.capture(self._devices)))
        problem = self._group.broadcast_patiently(self._begin(ranks, metrics, began, final=final))
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
            checkpoint_state.loadable(state)

    def finish(self) -> None:
        """Wait, on all ranks, for a checkpoint that is being written. Raises the error that ended
        it, except for a full disk or memory, of which the writer has warned already."""
        if self._under_way is None:
            return
        self._recorder.phase = "checkpoint"
        problem = self._writer.wait() if self._group.rank == 0 else ""
        problem = self._group.broadcast_patiently(problem)
        if not problem:
            self.step = self._under_way
        self._under_way = None

    def record_evaluation(self, step: int, found: dict[str, float]) -> bool:
        """Put the values of an evaluation after `step` into that step's checkpoint, if there is
        one. Returns whether to save one now, as the best yet. All ranks call it together."""
        if self._under_way == step:
            if self._group.rank == 0:
                self._writer.after(lambda: self._note(step, found))
            return False
        if self.best:
            self.finish()  # the best so far may still be in the making
        if self.step == step:
            if self._group.rank == 0:
                self._note(step, found)
            return False
        if not self.best:
            return False
        verdict = self._is_best(found) if self._group.rank == 0 else False
        return self._group.broadcast("best" if verdict else "") == "best"

    def wait_for_write(self) -> None:
        """Wait for a checkpoint that this rank is writing, without the other ranks. Called before
        the rank ends because of an error."""
        if self._recorder.writing is not None:
            self._recorder.phase = "checkpoint"
        with contextlib.suppress(Exception):  # the rank ends with its first error
            self._writer.wait()

    def _begin(self, ranks: list[bytes], metrics: dict[str, float], began: float, *,
               final: bool) -> str:
        """On rank 0, write the checkpoint or start to. Returns "", _UNDER_WAY, or what went wrong.
        The other ranks only take part in collecting the state."""
        try:
            state = self._state()
            if self._group.rank:
                return ""
            bad = checkpoint_state.nonfinite(self._weights)
            state = checkpoint_state.loadable(state)
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
        about = {"attempt": job.attempt, "mode": job.mode, "world_size": job.who.world_size,
                 "global_batch": job.batch.global_size, "metrics": metrics, "time": time.time()}
        copy = None if final else self._copy(state)
        if copy is None:
            return self._write(state, ranks, about, began, None)
        blocked = time.monotonic() - began
        self._recorder.writing = Progress()
        self._writer.start(lambda: self._write(copy, ranks, about, began, blocked))
        return _UNDER_WAY

    # --- rank 0 -------------------------------------------------------------------------------

    def _copy(self, state: dict[str, Any]) -> dict[str, Any] | None:
        if self._copier is None:
            return None
        try:
            return self._copier.copy(state)
        except Exception as err:
            if not (isinstance(err, CannotCopy) or checkpoint.is_out_of_memory(err)):
                raise
            if not self._said_why:
                self._said_why = True
                self._recorder.warn("training waits while a checkpoint is written, "
                                    f"instead of going on meanwhile: {err}")
            return None

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

    def _not_written(self, why: str) -> str:
        told = notices.not_saved(why)
        self._recorder.write(told)
        return told.message

    def _note(self, step: int, found: dict[str, float]) -> None:
        """Put the values of an evaluation into the checkpoint of this step."""
        self._warn_best(found)
        try:
            checkpoint.add_metrics(self.folder / checkpoint.name_of(step), found)
        except (OSError, checkpoint.Damaged) as err:
            self._recorder.warn(f"the evaluation of step {step} could not be put "
                                f"into its checkpoint: {err}")
        self._prune()

    def _is_best(self, found: dict[str, float]) -> bool:
        """Whether this evaluation is better than those in the folder's checkpoints."""
        self._warn_best(found)
        if not self.best:
            return False
        name, largest = self.best
        value, before = found.get(name), checkpoints.best_of(self.folder, name, largest)
        return value is not None and value == value and (
            before is None or (value > before[1] if largest else value < before[1]))

    def _warn_best(self, found: dict[str, float]) -> None:
        if self.best and self.best[0] not in found and not self._warned_best:
            self._warned_best = True
            self._recorder.warn(f"train.best: the evaluation gives no "
                                f"{self.best[0]!r}; it gives {', '.join(found)}")

    def _prune(self) -> None:
        best = self.best and checkpoints.best_of(self.folder, *self.best)
        checkpoint.prune(self.folder, self._job.spec.train.keep,
                         best[0] if best else None)

# ------------------------------------------------------------------------------------------------
# A thread that writes a checkpoint while training goes on, one checkpoint at a time.
#
# Loader workers may be forked from this process meanwhile. Of the locks that the thread then holds,
# all but malloc's belong to the file and the hash that it is writing, which no child touches; and
# malloc's are looked after by the C library.


class Writer:
    """Runs one write at a time in a thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._jobs: list[Future[str]] = []

    def start(self, write: Callable[[], str]) -> None:
        """Start `write` in the thread. It returns what went wrong, or "". The previous write must
        have been waited for."""
        self._jobs = [self._thread.submit(write)]

    def after(self, act: Callable[[], None]) -> None:
        """Call `act`, in the thread, once the write is done, if it succeeded."""
        written = self._jobs[0]
        self._jobs.append(self._thread.submit(lambda: written.result() or act() or ""))

    def wait(self) -> str:
        """Wait for the write and return what it returned. Raises what it raised, once."""
        wait(self._jobs)
        jobs, self._jobs = self._jobs, []
        said = [job.result() for job in jobs]
        return said[0] if said else ""

