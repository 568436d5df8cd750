"""What is known of one rank: what its events have said so far. `view` folds them into it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from gpu_engine.common import units
from gpu_engine.events import convert, schema


@dataclass(slots=True)
class RankView:
    """The latest that is known of one rank. None: not known (yet)."""

    rank: int
    local_rank: int | None = None
    node: int | None = None
    pid: int | None = None
    started: int | None = None
    """When its process started, in clock ticks since boot."""
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
    """The last whose loss was told."""
    at_step: int | None = None
    """The last that it told of, in a heartbeat too."""
    stepped: bool = False
    """Whether a step was done in this attempt: what comes before may take as long as it likes."""
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
    error: schema.Error | None = None
    """The first of this attempt."""
    ended: bool = False
    """Whether it has said that it ends."""
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
    def saving(self) -> bool:
        """Whether it writes a checkpoint."""
        return self.phase == "checkpoint" or self.written is not None

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

    def to_dict(self) -> dict[str, object]:
        """For scripts: every field but the times of the last steps; the error as its line has
        it."""
        out = asdict(self)
        del out["step_times"]
        if self.error is not None:
            out["error"] = convert.to_dict(self.error)
        return out

    def forget_attempt(self) -> None:
        """A new attempt has begun elsewhere: how this rank's last one ended says nothing about
        it now."""
        self.error = self.outcome = self.phase = self.phase_since = self.beat = None
        self.pid = self.samples_per_s = self.data_wait = self.rss = None
        self.ended = False
        self.gpu_allocated, self.gpu_reserved, self.gpu_peak = [], [], []
        self.step_times.clear()
