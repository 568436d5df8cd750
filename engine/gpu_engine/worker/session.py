"""One attempt of one rank: put the parts together, train, evaluate, save."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
from torch.utils.data import IterableDataset

from gpu_engine import files
from gpu_engine.errors import UserError
from gpu_engine.worker import checkpoint, parallel, rng
from gpu_engine.worker.data import Deal, MapData, StreamData
from gpu_engine.worker.evaluate import Evaluation
from gpu_engine.worker.job import Job
from gpu_engine.worker.loop import Loop, NonFiniteLoss, Position
from gpu_engine.worker.params import build, load
from gpu_engine.worker.precision import Precision
from gpu_engine.worker.process_group import Group
from gpu_engine.worker.recorder import Progress, Recorder
from gpu_engine.worker.schedule import Schedule
from gpu_engine.worker.signals import Signals
from gpu_engine.worker.task import Task


class Session:
    """The parts of one attempt, in the order in which they are made."""

    def __init__(self, job: Job, group: Group, recorder: Recorder, signals: Signals,
                 warm: threading.Thread | None = None) -> None:
        """Build task, model, data and loop, and resume where there is a checkpoint.

        `warm` is joined before anything that forks or steps. Raises UserError for what the
        person can mend.
        """
        self.job, self.group, self.recorder = job, group, recorder
        self.folder = job.run / "checkpoints"
        self.devices = [torch.device(d) for d in job.devices]
        self.seed = int(job.get("train.seed", 0))
        self.best = checkpoint.parse_best(job.get("train.best"))
        self._own: dict[str, Any] | None = None  # a checkpoint's random state of this rank
        self._saved_step: int | None = None
        self._evaluated_step: int | None = None
        self._metrics: dict[str, float] = {}
        self._warned_best = False

        # Before the task, whose own settings then stand.
        self.precision = Precision(
            job.get("amp.dtype", "off"), self.devices[0].type, tf32=bool(job.get("amp.tf32")),
            leave_out_nonfinite=job.get("train.on_nonfinite", "stop") == "skip")
        self.task = build(load(job.get("task.use", "")), job.get("task.params", {}))
        rng.seed_model(self.seed)
        raw = self.task.model()
        recorder.phase = "data"
        data = self.task.train_data()
        self.evaluation = self._evaluation()
        if warm is not None:
            warm.join()
        recorder.phase = "init"
        self.spread = parallel.spread(self.task, raw, job, self.precision)
        self.optimizer = self.task.optimizer(raw, job.lr)
        # Not before the optimizer: Adam makes its state beside the weights when it steps.
        state = self._find_checkpoint()
        self.at = Position(state["step"], state["epoch"], state["offset"]) if state else Position()
        self.stream, self.deal = self._data(data)
        if state:
            self._place(state)
        total, epochs = self._length()
        self.schedule = Schedule(self.task, self.optimizer, total, lr=job.lr,
                                 params=job.get("task.params", {}),
                                 evaluates=self.evaluation is not None)
        self.loop = Loop(
            task=self.task, data=self.stream, spread=self.spread, optimizer=self.optimizer,
            schedule=self.schedule, precision=self.precision, group=group, recorder=recorder,
            signals=signals, at=self.at, total_steps=total, epochs=epochs,
            accumulate=job.accumulate, examples_a_step=job.micro * job.accumulate,
            clip=float(job.get("train.clip", 0.0)),
            on_nonfinite=job.get("train.on_nonfinite", "stop"),
            eval_every=int(job.get("train.eval_every", 0)),
            save_every=int(job.get("train.checkpoint_every", 500)),
            evaluate=self.evaluate, save=self.save,
            evaluate_first=state is not None and self._evaluation_due(state),
            steps_per_epoch=self.deal.steps if self.deal else None)
        rng.seed_rank(self.seed, job.who.rank, self.at.step)
        if state:
            self._restore(state)
        self._announce(total, epochs)

    def run(self) -> str:
        """Train, save, evaluate. The outcome: "completed" or "stopped"."""
        outcome = self.loop.run()
        # Before the evaluation, so that nothing that happens in it costs the weights.
        self.save(final=True)
        if outcome == "completed" and not self.evaluate():
            return "stopped"  # a resume has the evaluation left to do
        return outcome

    # --- evaluation ---------------------------------------------------------------------------

    def evaluate(self) -> bool:
        """Evaluate unless that is done for this step; False where a stop broke it off."""
        if self.evaluation is None or self._evaluated_step == self.at.step:
            return True
        self.recorder.phase = "eval"
        if self.job.distributed:
            parallel.take_buffers_of_first(self.spread.raw)
        result = self.evaluation.run(self.spread.for_eval, self.precision,
                                     lambda: self.loop.signals.asked is not None)
        if result is None:
            return False
        self._evaluated_step, self._metrics = self.at.step, result
        if self.job.who.rank == 0:
            self.recorder.write("eval", step=self.at.step, **result)
        self.schedule.evaluated(result)
        if self._saved_step == self.at.step:
            self._note(result)
        elif self.best and self._is_best(result):
            self.save()
        return True

    def _note(self, result: dict[str, float]) -> None:
        """Put what the evaluation found into the checkpoint of this step, written before it."""
        if self.job.who.rank != 0:
            return
        self._warn_best(result)
        try:
            checkpoint.note(self.folder / checkpoint.name_of(self.at.step), result)
        except (OSError, checkpoint.Damaged) as err:
            self.recorder.write("warning", message=f"the evaluation of step {self.at.step} could "
                                f"not be put into its checkpoint: {err}")
        self._prune()

    def _evaluation_due(self, state: dict[str, Any]) -> bool:
        """Whether the checkpoint is of a step that is evaluated, and had not been yet: a process
        that goes on from it makes up for that, since a schedule may step on what is found."""
        if self.evaluation is None or state.get("evaluated", True):
            return False
        every = int(self.job.get("train.eval_every", 0))
        return self.at.step % every == 0 if every else self.at.offset == 0

    def _is_best(self, result: dict[str, float]) -> bool:
        """Whether this is the best yet, as rank 0 sees it in the folder."""
        name, largest = self.best
        verdict = ""
        if self.job.who.rank == 0:
            self._warn_best(result)
            value = result.get(name)
            before = checkpoint.best_of(self.folder, name, largest)
            if value is not None and value == value and (
                    before is None or (value > before[1] if largest else value < before[1])):
                verdict = "best"
        return self.group.from_first(verdict) == "best"

    def _warn_best(self, result: dict[str, float]) -> None:
        if self.best and self.best[0] not in result and not self._warned_best:
            self._warned_best = True
            self.recorder.write("warning", message=f"train.best: the evaluation gives no "
                                f"{self.best[0]!r}; it gives {', '.join(result)}")

    # --- checkpoints --------------------------------------------------------------------------

    def save(self, *, final: bool = False) -> None:
        """Write a checkpoint of this moment; all ranks call it together.

        One that can't be written is a warning, and an error when it is the final one. Weights
        that are not finite are never saved.
        """
        if self._saved_step == self.at.step:
            return
        self.recorder.phase = "checkpoint"
        began = time.monotonic()
        own = checkpoint.to_bytes(rng.capture(self.devices))
        ranks = self.group.gather_bytes(own)
        problem = ""
        if self.job.who.rank == 0:
            problem = self._write(ranks, began)
        problem = self.group.from_first(problem[:2000])
        if not problem:
            self._saved_step = self.at.step
        elif problem.startswith("!"):
            if self.job.get("train.on_nonfinite", "stop") != "continue":
                raise NonFiniteLoss(problem[1:])
        elif final:
            raise UserError(f"the final checkpoint could not be written: {problem}")

    def _write(self, ranks: list[bytes], began: float) -> str:
        """Rank 0's part of `save`: "" or what was wrong with it."""
        bad = [n for n, p in self.spread.raw.named_parameters() if not p.isfinite().all()]
        if bad:
            text = (f"the weights after step {self.at.step} are not finite ({bad[0]}); "
                    "not saved, the checkpoint before is kept")
            self.recorder.write("warning", message=text)
            return "!" + text
        fresh = self._metrics if self._evaluated_step == self.at.step else {}
        about = {"attempt": self.job.attempt, "mode": self.job.mode,
                 "world_size": self.job.who.world_size, "global_batch": self.job.global_size,
                 "metrics": fresh, "time": time.time()}
        try:
            self.recorder.writing = Progress()
            saved = checkpoint.save(self.folder, self._state(), ranks, about,
                                    self.recorder.writing)
        except checkpoint.NoSpace as err:
            text = f"checkpoint not written, those before it are intact: {err}"
            self.recorder.write("warning", message=text)
            return text
        finally:
            self.recorder.writing = None
        self._prune()
        self.recorder.write("checkpoint", step=saved.step,
                            path=str(saved.path.relative_to(self.job.run)),
                            seconds=round(time.monotonic() - began, 3), bytes=saved.size)
        return ""

    def _prune(self) -> None:
        best = self.best and checkpoint.best_of(self.folder, *self.best)
        checkpoint.prune(self.folder, int(self.job.get("train.keep", 3)), best[0] if best else None)

    def _state(self) -> dict[str, Any]:
        return {"format": 1, "step": self.at.step, "epoch": self.at.epoch,
                "offset": self.at.offset, "global_batch": self.job.global_size,
                "lr": self.job.lr, "seed": self.seed, "skipped": self.loop.skipped,
                "evaluated": self._evaluated_step == self.at.step,
                "model": self.spread.raw.state_dict(), "optimizer": self.optimizer.state_dict(),
                **self.schedule.state_dict(), "scaler": self.precision.state_dict()}

    def _find_checkpoint(self) -> dict[str, Any] | None:
        """The newest state that verifies, as rank 0 finds it; None to start afresh."""
        path = None
        if self.job.who.rank == 0:
            files.remove_unfinished(self.folder)
            path = checkpoint.newest(self.folder,
                                     lambda text: self.recorder.write("warning", message=text))
            if path is None and checkpoint.listed(self.folder):
                problem = f"none of the checkpoints in {self.folder} can be loaded"
                self.group.from_first("!" + problem)
                raise UserError(problem + "; remove the folder to start afresh")
        name = self.group.from_first(path.name if path else "")
        if not name:
            return None
        if name.startswith("!"):
            raise UserError(f"rank 0: {name[1:]}")
        self._from = self.folder / name
        try:
            data, ranks = checkpoint.load_bytes(self._from), checkpoint.load_ranks(self._from)
        except checkpoint.Damaged:  # another machine, another folder: have it sent
            data, ranks = b"", []
        if self.group.agree([float(not data)])[0]:
            data = self.group.bytes_from_first(data)
            ranks = checkpoint.from_bytes(self.group.bytes_from_first(checkpoint.to_bytes(ranks)))
        if len(ranks) == self.group.size:
            self._own = checkpoint.from_bytes(ranks[self.group.rank])
        state = checkpoint.from_bytes(data)
        self._saved_step = state["step"]
        return state

    def _place(self, state: dict[str, Any]) -> None:
        """Where an epoch was left when the global batch was another: the same examples are
        behind, whole batches of the new size."""
        if self.deal is None:
            return
        if state["global_batch"] != self.job.global_size:
            seen = state["offset"] * state["global_batch"]
            self.at.offset = seen // self.job.global_size
        if self.at.offset >= self.deal.steps:
            self.at.epoch, self.at.offset = self.at.epoch + 1, 0

    def _restore(self, state: dict[str, Any]) -> None:
        """Put a checkpoint's values into the parts. Raises UserError where they don't fit."""
        try:
            self.spread.raw.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError, KeyError) as err:
            raise UserError(f"{self._from} does not fit this task's model: {err}") from err
        self.schedule.restore(state, state["step"] - state["skipped"])
        self.precision.load_state_dict(state["scaler"])
        self.loop.skipped = self.recorder.skipped = state["skipped"]
        self.recorder.step_now = self.at.step
        if self._own is not None:
            rng.restore(self._own, self.devices)
        else:
            self.recorder.write("warning", message="resumed with other ranks than before: this "
                                "rank's random generators start afresh")

    # --- data and length ----------------------------------------------------------------------

    def _data(self, data: Any) -> tuple[Any, Deal | None]:
        job, who = self.job, self.job.who
        workers = int(job.get("train.workers", 2))
        if isinstance(data, IterableDataset):
            if job.get("train.steps") is None and job.get("train.epochs") is None:
                raise UserError("train.steps: an iterable dataset has no length; say how many")
            return StreamData(
                data, micro=job.micro, accumulate=job.accumulate, rank=who.rank,
                ranks=who.world_size, workers=workers, device=self.devices[0],
                collate=self.task.collate, seed=self.seed,
                start_agree=self.group.start_agree), None
        deal = Deal(len(data), job.global_size, job.replicas, job.accumulate)
        first, count = (0, job.replicas) if job.mode == "dp" else (who.rank, 1)
        return MapData(
            data, deal, seed=self.seed, first=first, count=count, workers=workers,
            device=self.devices[0], collate=self.task.collate,
            default_collate=type(self.task).collate is Task.collate), deal

    def _length(self) -> tuple[int | None, int | None]:
        """(optimizer steps in all, epochs): the first None where it isn't known."""
        steps, epochs = self.job.get("train.steps"), self.job.get("train.epochs")
        if steps is not None:
            if steps < self.at.step:
                raise UserError(f"train.steps = {steps}: the checkpoint that it would go on from "
                                f"is of step {self.at.step} already")
            return int(steps), None
        epochs = int(epochs or 1)
        if self.deal is None:
            return None, epochs
        # From here on, as the epochs before may have had another number of steps.
        left = (epochs - self.at.epoch) * self.deal.steps - self.at.offset
        if left < 0:
            raise UserError(f"train.epochs = {epochs}: the checkpoint that it would go on from is "
                            f"in epoch {self.at.epoch + 1} already")
        return self.at.step + left, epochs

    def _evaluation(self) -> Evaluation | None:
        data = self.task.eval_data()
        if data is None:
            return None
        chunk = min(int(self.task.eval_batch), self.job.global_size)
        return Evaluation(self.task, data, chunk, self.group, self.devices[0])

    def _announce(self, total: int | None, epochs: int | None) -> None:
        deal = self.deal
        self.recorder.total_steps = total
        self.recorder.write(
            "schedule", total_steps=total, steps_per_epoch=deal.steps if deal else None,
            epochs=epochs, examples=deal.examples if deal else None,
            dropped=deal.dropped if deal else None, first_step=self.at.step,
            batch=self.job.global_size)
