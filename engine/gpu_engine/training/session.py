"""Training one attempt on one rank: puts the parts together, then trains, evaluates and saves."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import IterableDataset

from gpu_engine.common.errors import UserError
from gpu_engine.events import schema
from gpu_engine.spec.schema import parse_steps
from gpu_engine.training import resuming, rng
from gpu_engine.training.data import EpochSampler, MapData
from gpu_engine.training.division import known_division
from gpu_engine.training.evaluate import Evaluation, EvaluationFailed
from gpu_engine.training.loop import Loop, Position
from gpu_engine.training.params import build, load
from gpu_engine.training.precision import Precision
from gpu_engine.training.saving import Saver
from gpu_engine.training.schedule import Schedule
from gpu_engine.training.strategies.base import strategy_of
from gpu_engine.training.stream import StreamData
from gpu_engine.training.task import Task, has_default_collate
from gpu_engine.worker.rank.failures import PeerLost
from gpu_engine.worker.rank.job import Job
from gpu_engine.worker.rank.process_group import Group
from gpu_engine.worker.rank.recorder import Recorder
from gpu_engine.worker.rank.signals import Signals
from gpu_engine.worker.rank.step_parts import READY, LastGradient


class Session:
    """One attempt on one rank, with all its parts."""

    def __init__(self, job: Job, group: Group, recorder: Recorder, signals: Signals) -> None:
        """Build task, model, data and loop, and resume if there is a checkpoint.

        Raises UserError for mistakes that the person can correct.
        """
        self.job, self.group, self.recorder = job, group, recorder
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
        self.strategy = strategy_of(job.mode)(self.task, raw, job, self.precision)
        LastGradient(self.strategy.averaged_in_backward(), lambda: recorder.parts.mark(READY))
        self.optimizer = _optimizer(self.task, raw, job)
        # Made after the optimizer: Adam makes its state beside the weights when it steps.
        self.saver = Saver(job, group, recorder, raw.named_parameters(), self._state)
        found = resuming.find(self.folder, group, recorder, job.resume_from, job.attempt)
        state = found.state if found else None
        if found:
            self._from, self._own, self.saver.step = found.path, found.own, found.state["step"]
        self.at = Position(state["step"], state["epoch"], state["offset"]) if state else Position()
        self.data, self.sampler = self._data(data)
        if state:
            self._move_to_new_batch_size(state)
        total, epochs = self._length()
        self.schedule = Schedule(self.task, self.optimizer, total, lr=job.lr,
                                 params=job.spec.task.params,
                                 evaluates=self.evaluation is not None)
        self.loop = Loop(
            task=self.task, data=self.data, strategy=self.strategy, optimizer=self.optimizer,
            schedule=self.schedule, precision=self.precision, group=group, recorder=recorder,
            signals=signals, at=self.at, total_steps=total, epochs=epochs,
            accumulate=job.batch.accumulate, examples_a_step=job.micro * job.batch.accumulate,
            clip=job.spec.train.clip,
            on_nonfinite=job.spec.train.on_nonfinite,
            skip_steps=parse_steps(job.spec.train.skip_steps),
            eval_every=job.spec.train.eval_every,
            save_every=job.spec.train.checkpoint_every,
            evaluate=self.evaluate if self.evaluation is not None else None,
            save=self.save, check_state=self.saver.check,
            evaluate_first=state is not None and self._evaluation_due(state),
            steps_per_epoch=self.sampler.steps if self.sampler else None)
        rng.seed_rank(self.seed, job.who.rank, self.at.step)
        if state:
            self._restore(state)
        self._announce(total, epochs)

    def run(self) -> str:
        """Train, save, evaluate. Returns the outcome, "completed" or "stopped"."""
        try:
            outcome = self.loop.run()
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
        model = self.strategy.for_evaluation()
        try:
            result = self.evaluation.run(model, self.precision,
                                         lambda: self.loop.signals.stop_requested)
            if result is None:
                return False
            if self.job.who.rank == 0:
                self.recorder.evaluated(self.at.step, result)
            self.schedule.evaluated(result)
            self._evaluated_step, self._metrics = self.at.step, result
        except EvaluationFailed as err:
            self._rescue()
            raise err.problem or PeerLost("the evaluation failed on another rank") from None
        except Exception:
            self._rescue()
            raise
        if self.saver.record_evaluation(self.at.step, result):
            self.save()
        return True

    def _rescue(self) -> None:
        """Save what has been trained so far, as an error in an evaluation ends the run."""
        try:
            self.save()
        except Exception as err:  # noqa: BLE001 - the first error is the one to raise
            self.recorder.warn("no checkpoint could be written after the "
                               f"evaluation failed: {err}")

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

    def _state(self) -> dict[str, Any]:
        return {"format": 1, "step": self.at.step, "epoch": self.at.epoch,
                "offset": self.at.offset, "global_batch": self.job.batch.global_size,
                "lr": self.job.lr, "seed": self.seed, "skipped": self.loop.skipped,
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
            why = resuming.misfit(state["model"], self.strategy.raw) \
                or resuming.misfit_of_groups(state["optimizer"], self.optimizer) or err
            raise UserError(f"{self._from} does not fit this task's model: {why}") from err
        self.schedule.restore(state, state["step"] - state["skipped"])
        self.precision.load_state_dict(state["scaler"])
        self.loop.skipped = self.recorder.skipped = state["skipped"]
        self.recorder.step_now = self.at.step
        if self._own is not None:
            rng.restore(self._own, self.devices)
        else:
            self.recorder.warn("resumed with another number of ranks: this rank's random "
                               "generators are seeded anew")

    # --- data and length ----------------------------------------------------------------------

    def _data(self, data: Any) -> tuple[Any, EpochSampler | None]:
        job, who = self.job, self.job.who
        workers = self.recorder.parts.workers = job.spec.train.workers
        if isinstance(data, IterableDataset):
            if job.spec.train.steps is None and job.spec.train.epochs is None:
                raise UserError("train.steps: an iterable dataset has no length, so say how many "
                                "steps to train")
            known = known_division(data, self.task, rank=who.rank, ranks=who.world_size,
                                   workers=workers)
            return StreamData(
                known, micro=job.micro, accumulate=job.batch.accumulate, rank=who.rank,
                ranks=who.world_size, workers=workers, device=self.devices[0],
                collate=self.task.collate, seed=self.seed,
                meet=self.group.barrier, start_all_reduce_min=self.group.start_all_reduce_min,
                copies=self._copies), None
        if not hasattr(data, "__len__"):
            raise UserError(f"{type(self.task).__name__}.train_data returned a "
                            f"{type(data).__name__}: a dataset has len() and [index], or is a "
                            "torch.utils.data.IterableDataset")
        sampler = EpochSampler(len(data), job.batch.global_size, job.batch.replicas,
                               job.batch.accumulate)
        mine = job.local_replicas
        return MapData(
            data, sampler, seed=self.seed, first=mine.start, count=len(mine), workers=workers,
            device=self.devices[0], collate=self.task.collate,
            default_collate=has_default_collate(self.task),
            warn=self.recorder.warn, copies=self._copies), sampler

    def _copies(self) -> None:
        self.recorder.parts.mark("copy")

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
        return Evaluation(self.task, data, chunk, self.group, self.devices[0],
                          others=self.devices[1:], workers=self.job.spec.train.workers)

    def _announce(self, total: int | None, epochs: int | None) -> None:
        sampler = self.sampler
        self.recorder.total_steps = total
        if self.job.who.rank == 0 and not self.strategy.raw.training:
            # The from_pretrained of several libraries returns a model in evaluation mode.
            self.recorder.warn("the model is in evaluation mode and is trained that way: its "
                               "dropout is off and its BatchNorm averages don't change. If you "
                               "don't want that, call train() on it in Task.model")
        self.recorder.write(schema.Schedule(
            total_steps=total, steps_per_epoch=sampler.steps if sampler else None,
            epochs=epochs, examples=sampler.examples if sampler else None,
            dropped=sampler.dropped if sampler else None, first_step=self.at.step,
            batch=self.job.batch.global_size))


def _optimizer(task: Task, model: nn.Module, job: Job) -> Optimizer:
    """The task's optimizer, with `train.weight_decay` if that is given. The value also holds after
    a resume: `Schedule.restore` does not take options from a checkpoint that have changed since.

    Raises UserError if the task makes its own optimizer, on which the key has no effect, or none
    that a step can be made with.
    """
    optimizer = task.optimizer(model, job.lr)
    what = f"{type(task).__name__}.optimizer returned a {type(optimizer).__name__}"
    if not hasattr(optimizer, "param_groups"):
        raise UserError(f"{what}: return one torch.optim.Optimizer, which can have groups of "
                        "parameters with options of their own")
    if any(p.default is p.empty for p in inspect.signature(optimizer.step).parameters.values()
           if p.kind is p.POSITIONAL_OR_KEYWORD):
        raise UserError(f"{what}, whose step needs a function that computes the loss again: take "
                        "one whose step needs nothing, such as AdamW or SGD")
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
