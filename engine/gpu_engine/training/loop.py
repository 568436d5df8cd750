"""The training loop: one optimizer step, and the decisions between two steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from gpu_engine.common.errors import UserError
from gpu_engine.spec.schema import parse_steps
from gpu_engine.training.precision import Precision, StepLoss
from gpu_engine.training.schedule import Schedule
from gpu_engine.training.strategies import Strategy
from gpu_engine.training.task import Task
from gpu_engine.worker.rank.group import Group, pack_first, unpack_first
from gpu_engine.worker.rank.job import Job
from gpu_engine.worker.rank.peers import Reason
from gpu_engine.worker.rank.process import Signals
from gpu_engine.worker.rank.recorder import Recorder

_SKIPS_IN_A_ROW = 100
_WITHOUT = "; gpu-engine resume RUN --set train.skip_steps={0} goes on without its examples"


class NonFiniteLoss(UserError):
    """The loss is no longer a finite number, and the run ends because of that."""

    title = "The loss is not a finite number"


@dataclass
class Position:
    """How far training is."""

    step: int = 0
    """Optimizer steps so far, including skipped ones."""
    epoch: int = 0
    """The current epoch, from 0."""
    offset: int = 0
    """Steps done in this epoch."""


class Loop:
    """The steps of one attempt on one rank, and the decisions between them. A subclass, `Session`,
    makes the parts that they need."""

    job: Job
    group: Group
    recorder: Recorder
    signals: Signals
    task: Task
    data: Any
    strategy: Strategy
    optimizer: Optimizer
    schedule: Schedule
    precision: Precision
    evaluation: Any
    """None if the task has nothing to evaluate on."""
    at: Position
    total_steps: int | None
    epochs: int | None
    steps_per_epoch: int | None
    """None if the length of an epoch is unknown."""

    def __init__(self) -> None:
        """The parts above are there by now."""
        train, self.accumulate = self.job.spec.train, self.job.batch.accumulate
        self.examples_a_step = self.job.micro * self.accumulate
        """Examples that this rank trains on in a step."""
        self.clip, self.on_nonfinite = train.clip, train.on_nonfinite
        self.eval_every, self.save_every = train.eval_every, train.checkpoint_every
        self.skip_steps = parse_steps(train.skip_steps)
        """Steps whose examples are left out."""
        self.evaluate_first = False
        """Whether an evaluation is still to be made for the step at which the loop begins."""
        self.skipped = 0
        """Steps skipped so far because gradients were not finite."""
        self._loss = StepLoss(self.accumulate, self.group, self.optimizer)
        self._skips_in_a_row = 0
        self._warned_at = 0.0
        self._last = self.group.peers
        self._stop = self._checked = False
        self._replaced = ""
        self._buffers: dict[str, Tensor] = {}
        """The model's buffers before the step, if a step may be skipped for its loss."""

    def evaluate(self) -> bool:
        """Evaluate, and save if the result is the best yet. Returns False if a stop interrupted
        it."""
        raise NotImplementedError

    def save(self) -> None:
        """Save a checkpoint. All ranks call it together."""
        raise NotImplementedError

    def check_state(self) -> None:
        """Called after the first step, when the optimizer has its state. Raises UserError if that
        can't be saved."""
        raise NotImplementedError

    def train(self) -> str:
        """Train to the end. Returns "completed", or "stopped" if that was asked for.

        Raises NonFiniteLoss, and whatever the task or PyTorch raises.
        """
        self.recorder.training = True
        self._put_back_handlers()
        self.recorder.mark()
        if self._last is not None:
            self._last.begin(lambda: self.at.step, self._reason)
        if self.evaluate_first and not self._finished():
            self._evaluate()
        while not self._finished() and not self._stop:
            self._one_epoch()
            if self._stop or self._finished():
                break
            self.at.epoch, self.at.offset = self.at.epoch + 1, 0
            if not self.eval_every and not self._finished():
                self._evaluate()
        self._settle_nonfinite()
        return "completed" if self._finished() else "stopped"

    def _one_epoch(self) -> None:
        start, began = self.at.offset, self.at.step
        batches = self._batches()
        while self.steps_per_epoch is None or self.at.offset < self.steps_per_epoch:
            skips = any(self.at.step + 1 in steps for steps in self.skip_steps)
            if not (self._leave_out(batches) if skips else self._step(batches)):
                break
            self._between_steps()
            if self._stop or self._finished():
                return
        if self.at.step == began and start == 0:
            raise UserError("the training data is not enough for one global batch")

    def _batches(self) -> Iterator[Any]:
        """The epoch's batches. Before the first collective the ranks wait for each other, however
        long one takes to start workers, to read an index, or to skip what a resumed stream has
        read before."""
        batches = self.data.epoch(self.at.epoch, self.at.offset)
        first = next(batches, None)
        self.group.barrier()
        if first is not None:
            yield first
            yield from batches

    def _step(self, batches: Iterator[Any]) -> bool:
        """Do one optimizer step on the next `accumulate` batches. Returns False if there are no
        more batches."""
        task, model, rec, last = self.task, self.strategy.model, self.recorder, self.accumulate - 1
        wait = 0.0
        if self.on_nonfinite == "skip":
            self._buffers = {name: b.clone() for name, b in self.strategy.raw.named_buffers()}
        for micro in range(self.accumulate):
            rec.phase = "data"
            before = time.perf_counter()
            batch = next(batches, None)
            wait += time.perf_counter() - before
            if batch is None:
                return False
            if micro == last:
                self._forward_backward(task, model, batch, last=True)
            else:  # gradients add up here; only the last pass averages them over ranks
                with self.strategy.local_gradients():
                    self._forward_backward(task, model, batch, last=False)
        self.strategy.check_pass()
        rec.phase = "optimizer"
        loss, lr = self._loss.finish(), self._lr()
        if self.precision.step(self.optimizer, self.clip, self.strategy):
            self.schedule.step()
            self._skips_in_a_row = 0
        else:
            self._step_skipped()
        self.optimizer.zero_grad()
        self.at.step += 1
        self.at.offset += 1
        rec.step_now = self.at.step
        rec.step(self.at.step, self.at.epoch, loss, lr, self.examples_a_step, wait)
        return True

    def _leave_out(self, batches: Iterator[Any]) -> bool:
        """Count one optimizer step, and throw its batches away. Returns False if there are no more
        batches."""
        self.recorder.phase = "data"
        if any(next(batches, None) is None for _ in range(self.accumulate)):
            return False
        self.skipped += 1
        self.recorder.skipped = self.skipped
        self.at.step += 1
        self.at.offset += 1
        self.recorder.step_now = self.at.step
        self.recorder.left_out(self.at.step, self.at.epoch, self._lr())
        return True

    def _lr(self) -> Any:
        lr = self.optimizer.param_groups[0].get("lr")
        return lr.detach().clone() if isinstance(lr, Tensor) else lr  # a schedule changes it

    def _forward_backward(self, task: Task, model: Any, batch: Any, *, last: bool) -> None:
        rec = self.recorder
        rec.phase = "forward"
        if self.precision.dtype is None:  # even an empty context takes three calls in each step
            returned = task.loss(model, batch)
        else:
            with self.precision.autocast():
                returned = task.loss(model, batch)
        loss = self._loss.of(returned, last=last)
        rec.phase = "backward"
        self.precision.backward(loss)

    # --- between two steps ------------------------------------------------------------------

    def _put_back_handlers(self) -> None:
        replaced = self.signals.put_back()
        if replaced and replaced != self._replaced:  # a task may set them in each step
            self._replaced = replaced
            self.recorder.warn(replaced)

    def _between_steps(self) -> None:
        step = self.at.step
        self._put_back_handlers()
        if not self._checked and not self._skips_in_a_row:
            self._checked = True
            self.check_state()
        if self.signals.stop_requested or self.recorder.nonfinite is not None or (
                self._last is not None and step >= self._last.bound):
            self._check_reasons()
            if self._stop:
                return
        if self.save_every and step % self.save_every == 0 and not self._finished():
            self._settle_nonfinite()
            if not self._stop:
                self.save()
                self.recorder.mark()
        # The evaluation comes after the save, so that an error in it loses nothing. Its results
        # are then added to the checkpoint.
        if (self.eval_every and step % self.eval_every == 0 and not self._finished()
                and not self._stop):
            self._evaluate()

    def _reason(self) -> Reason | None:
        """This rank's reason to have all ranks end, if it has one. Called in another thread, too:
        asking costs the steps nothing (`Peers.look`)."""
        bad = self.recorder.nonfinite if self.on_nonfinite == "stop" else None
        error = ""
        try:
            self.strategy.check()
        except UserError as err:
            error = str(err)
        reason = Reason(self.signals.stop_requested, bad[0] if bad else None, error)
        return reason if any(reason) else None

    def _check_reasons(self) -> None:
        """After a step, if there may be a reason to end: end, if all ranks have come to the last
        step."""
        bad, rank = self.recorder.nonfinite, self.group.rank
        if bad is not None and (self._last is None or self.on_nonfinite != "stop"):
            self._on_nonfinite((bad[0], rank))
        if self._last is None:
            self._stop = self.signals.stop_requested
            return
        if self.signals.stop_requested or self.recorder.nonfinite is not None:
            self._last.ask()
        end = self._last.reached() if self.at.step >= self._last.bound else None
        if end is None:
            return
        if end.error:
            raise UserError(end.error)
        self._on_nonfinite(end.first)
        self._stop = end.stop

    def _settle_nonfinite(self) -> None:
        """Wait for the losses of all steps so far, on all ranks, and act on those that are not
        finite. Called before weights are saved or evaluated."""
        self.recorder.settle()
        self.strategy.check()
        bad = self.recorder.nonfinite
        first, stop = self.group.all_reduce_max([
            pack_first(bad[0] if bad else None, self.group.rank, self.group.size),
            float(self.signals.stop_requested)])
        self._on_nonfinite(unpack_first(first, self.group.size))
        if stop:
            self._stop = True

    def _on_nonfinite(self, first: tuple[int, int] | None) -> None:
        """`first`: (step, rank) of a loss that is not finite; None if there is none."""
        if first is None:
            return
        step, rank = first
        mine = self.recorder.nonfinite
        what = f"the loss of rank {rank} at step {step} is " + (
            f"{mine[1]}" if mine and rank == self.group.rank else "not a finite number")
        if self.on_nonfinite == "stop":
            raise NonFiniteLoss(f"{what}; stopped without saving (train.on_nonfinite = \"stop\")"
                                + ("" if self.steps_per_epoch is None else _WITHOUT.format(step)))
        self.recorder.nonfinite = None
        if rank == self.group.rank and time.monotonic() - self._warned_at > 10:
            self._warned_at = time.monotonic()
            then = "the step is skipped on all ranks" if self.on_nonfinite == "skip" else \
                "training goes on"
            self.recorder.warn(f"{what}; {then}")

    def _step_skipped(self) -> None:
        """Count a skipped step. All ranks skip the same steps, as they have the same gradients."""
        self.skipped += 1
        self.recorder.skipped = self.skipped
        # The forward pass has changed BatchNorm's averages, also on ranks with a good loss.
        for name, buffer in self.strategy.raw.named_buffers():
            if name in self._buffers:
                buffer.detach().copy_(self._buffers[name])
        self._skips_in_a_row += 1
        if self._skips_in_a_row >= _SKIPS_IN_A_ROW:
            raise NonFiniteLoss(f"{_SKIPS_IN_A_ROW} steps in a row up to step {self.at.step + 1} "
                                "were skipped, as their gradients are not finite")

    def _evaluate(self) -> None:
        if self.evaluation is None:  # an epoch's end is then no reason to wait for the other ranks
            return
        self._settle_nonfinite()
        if not self._stop and not self.evaluate():
            self._stop = True
        self.recorder.mark()

    def _finished(self) -> bool:
        if self.total_steps is not None:
            return self.at.step >= self.total_steps
        return self.epochs is not None and self.at.epoch >= self.epochs
