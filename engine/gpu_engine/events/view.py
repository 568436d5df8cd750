"""Following a run: fold what its ranks append into one view a rank.

`RankView.fold` is pure; `Follower` reads. Both serve the command line and the panel, for live
and for finished runs alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gpu_engine.common import units
from gpu_engine.events.schema import KINDS, Tail, number
from gpu_engine.runs.folder import Run, State


@dataclass(slots=True)
class RankView:
    """The latest that is known of one rank. None: not known (yet)."""

    rank: int
    local_rank: int | None = None
    node: int | None = None
    pid: int | None = None
    attempt: int = 1
    as_rank: int | None = None
    """The rank that this process trains as, where another process of the run does so too."""
    process: int | None = None
    """Which of those it is, from 2; None: the first, or the only one."""
    training: int | None = None
    """Which training of the process this is, from 2; None: the first, or the only one."""
    training_from: int | None = None
    """Steps before this training."""
    training_name: str | None = None
    """Its optimizer's."""
    devices: list[str] = field(default_factory=list)
    phase: str | None = None
    phase_since: float | None = None
    """Unix seconds."""
    written: int | None = None
    """Bytes of a checkpoint that is being written; None: none is."""
    to_write: int | None = None
    """Bytes that it will have, about."""
    detail: str | None = None
    """What it is busy with or waits for, where its phase says too little."""
    progressed: float | None = None
    """When that last changed, unix seconds."""
    beat: float | None = None
    """When the rank was last heard of, unix seconds."""
    step: int | None = None
    epoch: int | None = None
    loss: float | None = None
    lr: float | None = None
    samples_per_s: float | None = None
    """This rank's own."""
    data_wait: float | None = None
    skipped: int | None = None
    gpu_allocated: list[int | None] = field(default_factory=list)
    gpu_reserved: list[int | None] = field(default_factory=list)
    gpu_peak: list[int | None] = field(default_factory=list)
    """Bytes, one entry a device."""
    rss: int | None = None
    evaluations: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    checkpoint: str | None = None
    checkpoint_step: int | None = None
    warnings: list[str] = field(default_factory=list)
    error: dict[str, Any] | None = None
    outcome: str | None = None
    """completed | stopped | failed, once it has ended."""
    total_steps: int | None = None
    steps_per_epoch: int | None = None
    epochs: int | None = None
    first_step: int = 0
    examples: int | None = None
    dropped: int | None = None
    step_times: list[tuple[float, int]] = field(default_factory=list)
    """(unix seconds, step) of the last step events, oldest first: for the rate."""

    def fold(self, event: dict[str, Any]) -> None:
        """Take in one event. Fields of the wrong type are left out, never raised."""
        t = number(event.get("t"))
        if t is not None and math.isfinite(t):
            self.beat = t if self.beat is None else max(self.beat, t)
        take = getattr(self, f"_{event['kind']}", None) if event["kind"] in KINDS else None
        if take is not None:
            take(event)

    def _start(self, event: dict[str, Any]) -> None:
        self.attempt = _int(event.get("attempt")) or 1
        self.pid, self.node = _int(event.get("pid")), _int(event.get("node"))
        self.local_rank = _int(event.get("local_rank"))
        device = event.get("device")
        self.devices = [str(d) for d in (device if isinstance(device, list) else [device])]
        self.as_rank, self.process = _int(event.get("as_rank")), _int(event.get("process"))
        self.error = self.outcome = None
        self.training = self.training_from = self.training_name = None
        self.step_times.clear()

    def _training(self, event: dict[str, Any]) -> None:
        self.training, self.training_from = _int(event.get("number")), _int(event.get("step"))
        name = event.get("name")
        self.training_name = name if isinstance(name, str) else None

    def _schedule(self, event: dict[str, Any]) -> None:
        for name in ("total_steps", "steps_per_epoch", "epochs", "examples", "dropped"):
            setattr(self, name, _int(event.get(name)))
        self.first_step = _int(event.get("first_step")) or 0
        if self.step is not None and self.step > self.first_step:
            # The attempt before came further than the checkpoint from which this one goes on.
            self.step, self.loss = self.first_step, None

    def _step(self, event: dict[str, Any]) -> None:
        step = _int(event.get("step"))
        if step is None:
            return
        self.skipped = _int(event.get("skipped"))
        self._beside(event)
        if event.get("n") == 0:  # of other optimizers alone
            return
        self.step, self.epoch = step, _int(event.get("epoch"))
        self.loss, self.lr = _last_loss(event), number(event.get("lr"))
        self.samples_per_s = number(event.get("samples_per_s"))
        self.data_wait = number(event.get("data_wait"))
        self.step_times.append((number(event["t"]) or 0.0, step))
        del self.step_times[:-100]

    def _beside(self, event: dict[str, Any]) -> None:
        """A script's further optimizers, and its gradients' norm: named values like any."""
        norm = number(event.get("grad_norm"))
        if norm is not None:
            self.metrics["grad_norm"] = norm
        others = event.get("others")
        for index, other in (others.items() if isinstance(others, dict) else ()):
            value = _last_loss(other) if isinstance(other, dict) else None
            if value is not None:
                self.metrics[f"loss[{index}]"] = value

    def _memory(self, event: dict[str, Any]) -> None:
        for name in ("gpu_allocated", "gpu_reserved", "gpu_peak"):
            value = event.get(name)
            setattr(self, name, [_int(v) for v in value] if isinstance(value, list) else [])
        self.rss = _int(event.get("rss"))

    def _phase(self, event: dict[str, Any]) -> None:
        phase = event.get("phase")
        self.phase = phase if isinstance(phase, str) else None
        self.phase_since = number(event.get("since"))
        written, detail = _int(event.get("done")), event.get("detail")
        detail = detail if isinstance(detail, str) else None
        if (written, detail) != (self.written, self.detail):
            self.progressed = number(event.get("t"))
        self.written, self.detail, self.to_write = written, detail, _int(event.get("total"))

    def _metric(self, event: dict[str, Any]) -> None:
        self.metrics.update(_named(event))

    def _eval(self, event: dict[str, Any]) -> None:
        self.evaluations.update(_named(event))

    def _checkpoint(self, event: dict[str, Any]) -> None:
        path = event.get("path")
        self.checkpoint = path if isinstance(path, str) else None
        self.checkpoint_step = _int(event.get("step"))

    def _warning(self, event: dict[str, Any]) -> None:
        self.warnings.append(str(event.get("message")))
        del self.warnings[:-50]

    def _error(self, event: dict[str, Any]) -> None:
        if self.error is None:  # the first is the cause, what follows its wake
            self.error = event

    def _end(self, event: dict[str, Any]) -> None:
        outcome = event.get("outcome")
        self.outcome = outcome if isinstance(outcome, str) else None
        self.phase = "done"

    @property
    def busy(self) -> str:
        """What it is doing, in words: "backward", "checkpoint, 1.2 GiB of 4.0 GiB written"; ""
        where nothing was heard."""
        words = [self.phase or ""]
        if self.written is not None:
            of = f" of {units.size(self.to_write)}" if self.to_write is not None else ""
            what = "" if self.phase == "checkpoint" else " of a checkpoint"
            words.append(f"{units.size(self.written)}{of}{what} written")
        if self.detail:
            words.append(self.detail)
        return ", ".join(filter(None, words))

    @property
    def label(self) -> str:
        """ "3"; "0.2" for the second process that trains as rank 0."""
        return str(self.rank) if self.process is None else f"{self.as_rank}.{self.process}"

    @property
    def steps_per_s(self) -> float | None:
        """Steps a second over the last half minute or so; None before two reports."""
        recent = [p for p in self.step_times if p[0] >= self.step_times[-1][0] - 30]
        if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
            return None
        return (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a whole run is. Of several processes that train as one rank, the first counts."""

    step: int | None
    """The slowest rank's; of all its trainings together."""
    total_steps: int | None
    loss: float | None
    """Mean over the ranks' latest."""
    samples_per_s: float | None
    """Sum over the ranks."""
    steps_per_s: float | None
    """The slowest rank's."""
    seconds_left: float | None
    trainings: int = 1
    """How many the steps are of, one after the other."""

    @property
    def share(self) -> float | None:
        if self.step is None or not self.total_steps:
            return None
        return min(self.step / self.total_steps, 1.0)


def progress(ranks: Iterable[RankView]) -> Progress:
    """Sum up the ranks of one run."""
    views = [v for v in ranks if v.process is None]
    steps = [v.step for v in views if v.step is not None]
    step = min(steps) if steps else None
    total = next((v.total_steps for v in views if v.total_steps), None)
    losses = [v.loss for v in views if v.loss is not None]
    rates = [v.samples_per_s for v in views if v.samples_per_s is not None]
    pace = [v.steps_per_s for v in views if v.step_times and v.steps_per_s]
    slowest = min(pace) if pace else None
    left = max(total - step, 0) / slowest if slowest and total and step is not None else None
    return Progress(step, total, sum(losses) / len(losses) if losses else None,
                    sum(rates) if rates else None, slowest, left,
                    max((v.training or 1 for v in views), default=1))


class Follower:
    """Reads what is new of all ranks of a run, in bounded batches."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.ranks: dict[int, RankView] = {}
        self.state: State = run.state()
        self._tails: dict[int, Tail] = {}
        self._looked = 0.0

    @property
    def skipped(self) -> int:
        """Lines that did not parse, so far."""
        return sum(tail.skipped for tail in self._tails.values())

    def poll(self, *, budget: float = 0.05) -> list[tuple[int, dict[str, Any]]]:
        """Read state and events; fold them in; return the new events with their rank.

        Stops after about `budget` seconds, or when nothing is new.
        """
        end = time.monotonic() + budget
        self.state = self.run.state()
        self._look()
        fresh: list[tuple[int, dict[str, Any]]] = []
        while True:
            moved = False
            for rank, tail in self._tails.items():
                at = tail.offset
                for event in tail.read(1 << 15):
                    self.ranks[rank].fold(event)
                    fresh.append((rank, event))
                moved = moved or tail.offset != at  # a long line gives no event at first
                if time.monotonic() > end and fresh:
                    return fresh
            if not moved:
                return fresh

    def progress(self) -> Progress:
        return progress(self.ranks.values())

    def _look(self) -> None:
        """Ranks may come late (other nodes, own launchers): look for new files each second."""
        now = time.monotonic()
        if self._tails and now - self._looked < 1.0:
            return
        self._looked = now
        for rank in self.run.ranks():
            if rank not in self._tails:
                self._tails[rank] = Tail(self.run.events(rank))
                self.ranks[rank] = RankView(rank)
        self._tails = dict(sorted(self._tails.items()))
        self.ranks = dict(sorted(self.ranks.items()))


def _last_loss(event: dict[str, Any]) -> float | None:
    """The loss of the last step that a step event covers; where that is not told, their mean."""
    losses = event.get("losses")
    if isinstance(losses, list) and losses:
        return number(losses[-1])
    return number(event.get("loss_last", event.get("loss")))


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _named(event: dict[str, Any]) -> dict[str, float]:
    return {k: v for k, raw in event.items()
            if k not in ("t", "kind", "step") and (v := number(raw)) is not None}
