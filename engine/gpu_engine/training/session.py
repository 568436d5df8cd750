"""Training one attempt on one rank: puts the parts together, then trains, evaluates and saves."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import IterableDataset

from gpu_engine.common.errors import UserError
from gpu_engine.events import schema
from gpu_engine.training import resuming, rng
from gpu_engine.training.data import EpochSampler, MapData
from gpu_engine.training.evaluate import Evaluation
from gpu_engine.training.loop import Loop, Position
from gpu_engine.training.params import build, load
from gpu_engine.training.precision import Precision
from gpu_engine.training.saving import Saver
from gpu_engine.training.schedule import Schedule
from gpu_engine.training.strategies import strategy_of
from gpu_engine.training.stream import StreamData
from gpu_engine.training.task import Task
from gpu_engine.worker.rank.group import Group
from gpu_engine.worker.rank.job import Job
from gpu_engine.worker.rank.process import Signals
from gpu_engine.worker.rank.recorder import Recorder
from gpu_engine.worker.rank.step_parts import READY, LastGradient


class Session(Loop):
    """One attempt on one rank, with all its parts."""

    def __init__(self, job: Job, group: Group, recorder: Recorder, signals: Signals) -> None:
        """Build task, model, data and loop, and resume if there is a checkpoint.

        Raises UserError for mistakes that the person can correct.
        """
        self.job, self.group, self.recorder, self.signals = job, group, recorder, signals
        self.folder = job.run / "checkpoints"
        self.devices = [torch.device(d) for d in job.devices]
        self.seed = job.spec.train.seed
        self._own: dict[str, Any] | None = None  # this rank's random generators, if resumed
        self._evaluated_step: int | None = None
        self._metrics: dict[str, float] = {}

        # Made before the task, whose own settings then hold.
        self.precision = Precision(
            job.spec.amp.dtype, self.devices[0].type, tf32=job.spec.amp.tf32,
            leave_out_nonfinite=job.spec.train.on_nonfinite == "skip")
        self.task = build(load(job.spec.task.use or ""), job.spec.task.params)
        rng.seed_model(self.seed)
        raw = self.task.model()
        recorder.phase = "data"
        rng.seed_data(self.seed, held_out=False)
        data = self.task.train_data()
        rng.seed_data(self.seed, held_out=True)
        self.evaluation = self._evaluation()
        group.barrier()  # so far one rank may have taken much longer, to download or index files
        recorder.phase = "init"
        self.strategy = strategy_of(job.plan.mode)(self.task, raw, job, self.precision)
        LastGradient(self.strategy.averaged_in_backward(), lambda: recorder.parts.mark(READY))
        self.optimizer = _optimizer(self.task, raw, job)
        # Made after the optimizer: Adam makes its state beside the weights when it steps.
        self.saver = Saver(job, group, recorder, raw.named_parameters(), self._state)
        found = resuming.find(self.folder, group, recorder, job.resume_from, job.attempt)
        state = found.state if found else None
        if found:
            self._from, self._own, self.saver.step = found.path, found.own, found.state["step"]
            if found.state.get("evaluated"):  # else a schedule would step on its result again
                self._evaluated_step = found.state["step"]
        self.at = Position(state["step"], state["epoch"], state["offset"]) if state else Position()
        self.data, self.sampler = self._data(data)
        if state:
            self._move_to_new_batch_size(state)
        self.total_steps, self.epochs = self._length()
        self.steps_per_epoch = self.sampler.steps if self.sampler else None
        self.schedule = Schedule(self.task, self.optimizer, self.total_steps,
                                 evaluates=self.evaluation is not None)
        super().__init__()
        self.evaluate_first = state is not None and self._evaluation_due(state)
        rng.seed_rank(self.seed, job.who.rank, self.at.step)
        if state:
            self._restore(state)
        self._announce()

    def run(self) -> str:
        """Train, save, evaluate. Returns the outcome, "completed" or "stopped"."""
        try:
            outcome = self.train()
            # Saved before the evaluation, so that an error in it loses nothing.
            self.save(final=True)
            if outcome == "completed" and not self.evaluate():
                return "stopped"  # a resume still has to evaluate
        except BaseException:
            self.saver.wait_for_write()
            raise
        return outcome

    # --- evaluation ---------------------------------------------------------------------------

    def evaluate(self) -> bool:
        """Evaluate, unless this step has been evaluated. Returns False if a stop interrupted it."""
        if self.evaluation is None or self._evaluated_step == self.at.step:
            return True
        self.recorder.phase = "eval"
        result = self.evaluation.run(self.strategy.for_evaluation(), self.precision,
                                     lambda: self.signals.stop_requested)
        if result is None:
            return False
        if self.job.who.rank == 0:
            self.recorder.evaluated(self.at.step, result)
        self.schedule.evaluated(result)
        self._evaluated_step, self._metrics = self.at.step, result
        if self.saver.record_evaluation(self.at.step, result):
            self.save()
        return True

    def _evaluation_due(self, state: dict[str, Any]) -> bool:
        """Whether the checkpoint was saved at a step that is evaluated, but before the evaluation.
        It must be made up for, as a schedule may step on its result."""
        if self.evaluation is None or state.get("evaluated", True):
            return False
        every = self.job.spec.train.eval_every
        if every:
            return self.at.step % every == 0
        return state["offset"] == 0 or self.at.epoch > state["epoch"]

    # --- checkpoints --------------------------------------------------------------------------

    def save(self, *, final: bool = False) -> None:
        """Save a checkpoint of the current state: see `Saver.save`. All ranks call it together."""
        fresh = self._metrics if self._evaluated_step == self.at.step else {}
        self.saver.save(self.at.step, fresh, final=final)

    def check_state(self) -> None:
        """As `Saver.check`."""
        self.saver.check()

    def _state(self) -> dict[str, Any]:
        return {"format": 1, "step": self.at.step, "epoch": self.at.epoch,
                "offset": self.at.offset, "global_batch": self.job.batch.global_size,
                "lr": self.job.plan.lr.scaled, "seed": self.seed, "skipped": self.skipped,
                "evaluated": self._evaluated_step == self.at.step,
                **self.strategy.full_state(self.optimizer), **self.schedule.state_dict(),
                "scaler": self.precision.state_dict()}

    def _move_to_new_batch_size(self, state: dict[str, Any]) -> None:
        """If the global batch has changed, work out the position in the epoch anew: the examples
        used so far, in whole batches of the new size."""
        if state["global_batch"] != self.job.batch.global_size:
            seen = state["offset"] * state["global_batch"]
            self.at.offset = seen // self.job.batch.global_size
        if self.sampler is not None and self.at.offset >= self.sampler.steps:
            self.at.epoch, self.at.offset = self.at.epoch + 1, 0

    def _restore(self, state: dict[str, Any]) -> None:
        """Put a checkpoint's state into the parts. Raises UserError if the model is another."""
        try:
            self.strategy.load_full_state(state, self.optimizer)
            resuming.take_copies(self.optimizer)
        except (RuntimeError, ValueError, KeyError) as err:
            # torch names every tensor: for a large model these are thousands of lines.
            raise UserError(f"{self._from} does not fit this task's model or optimizer: "
                            f"{str(err)[:500]}") from err
        self.schedule.restore(state, state["step"] - state["skipped"])
        self.precision.load_state_dict(state["scaler"])
        self.skipped = self.recorder.skipped = state["skipped"]
        self.recorder.step_now = self.at.step
        if self._own is not None:
            rng.restore(self._own, self.devices)
        else:
            self.recorder.warn("resumed with another number of ranks: this rank's random "
                               "generators are seeded anew")

    # --- data and length ----------------------------------------------------------------------

    def _data(self, data: Any) -> tuple[Any, EpochSampler | None]:
        job, train = self.job, self.job.spec.train
        how: Any = {"device": self.devices[0], "workers": train.workers,
                    "copies": lambda: self.recorder.parts.mark("copy")}
        self.recorder.parts.workers = train.workers
        if isinstance(data, IterableDataset):
            if train.steps is None and train.epochs is None:
                raise UserError("train.steps: an iterable dataset has no length, so say how many "
                                "steps to train")
            return StreamData(data, self.task, micro=job.micro, accumulate=job.batch.accumulate,
                              seed=self.seed, group=self.group, **how), None
        if not hasattr(data, "__len__"):
            raise UserError(f"{type(self.task).__name__}.train_data returned a "
                            f"{type(data).__name__}: a dataset has len() and [index], or is a "
                            "torch.utils.data.IterableDataset")
        sampler = EpochSampler(len(data), job.batch.global_size, job.batch.replicas,
                               job.batch.accumulate, self.seed, job.local_replicas)
        return MapData(data, self.task, sampler, **how), sampler

    def _length(self) -> tuple[int | None, int | None]:
        """(optimizer steps in all, epochs). The steps are None if the data's length is unknown,
        the epochs if steps are given."""
        steps, epochs = self.job.spec.train.steps, self.job.spec.train.epochs
        if steps is not None:
            if steps < self.at.step:
                raise UserError(f"train.steps = {steps}: the checkpoint to go on from is already "
                                f"at step {self.at.step}")
            return int(steps), None
        epochs = int(epochs or 1)
        if self.sampler is None:
            return None, epochs
        # Counted from here on, as earlier epochs may have had another number of steps.
        left = (epochs - self.at.epoch) * self.sampler.steps - self.at.offset
        if left < 0:
            raise UserError(f"train.epochs = {epochs}: the checkpoint to go on from is already in "
                            f"epoch {self.at.epoch + 1}")
        return self.at.step + left, epochs

    def _evaluation(self) -> Evaluation | None:
        data = self.task.eval_data()
        if data is None:
            return None
        chunk = min(int(self.task.eval_batch), self.job.batch.global_size)
        return Evaluation(self.task, data, chunk, self.group, self.devices,
                          self.job.spec.train.workers)

    def _announce(self) -> None:
        sampler = self.sampler
        self.recorder.total_steps = self.total_steps
        if self.job.who.rank == 0 and not self.strategy.raw.training:
            # The from_pretrained of several libraries returns a model in evaluation mode.
            self.recorder.warn("the model is in evaluation mode and is trained that way: its "
                               "dropout is off and its BatchNorm averages don't change. If you "
                               "don't want that, call train() on it in Task.model")
        self.recorder.write(schema.Schedule(
            total_steps=self.total_steps, steps_per_epoch=self.steps_per_epoch,
            epochs=self.epochs, examples=sampler.examples if sampler else None,
            dropped=sampler.examples % sampler.global_size if sampler else None,
            first_step=self.at.step, batch=self.job.batch.global_size))


def _optimizer(task: Task, model: nn.Module, job: Job) -> Optimizer:
    """The task's optimizer, with `train.weight_decay` if that is given. The value also holds after
    a resume: `Schedule.restore` does not take options from a checkpoint that have changed since.

    Raises UserError if the task makes its own optimizer, on which the key has no effect.
    """
    optimizer = task.optimizer(model, job.plan.lr.scaled)
    decay = job.spec.train.weight_decay
    if decay is None:
        return optimizer
    if type(task).optimizer is not Task.optimizer:
        raise UserError(f"train.weight_decay = {decay:g} is for the default optimizer, but "
                        f"{type(task).__name__} makes its own: leave the key out, and set the "
                        "weight decay there")
    for group in optimizer.param_groups:
        group["weight_decay"] = decay
    return optimizer
