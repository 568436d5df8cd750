"""RunSpec: everything that a person chooses about a run.

A key of the spec is a field here, with its docstring, default and bounds. Everything else about it
(`--set`, the form, presets, plan.json, what a rank reads) follows from the field. The names are a
public contract (presets, `--set`, other people's scripts): add keys, never rename one.

`read` reads and checks a spec, `write` writes it; `plan.check` checks whether the values fit each
other and this machine. Standard library only: a rank imports this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_type_hints

from gpu_engine.common.errors import Problem, SpecError
from gpu_engine.common.values import YEAR, Bounds, Kind, OneOf, kind_of
from gpu_engine.spec import modes

Count = Annotated[int, Bounds(ge=1)]
Whole = Annotated[int, Bounds(ge=0)]
Port = Annotated[int, Bounds(ge=0, le=65535)]
NotNegative = Annotated[float, Bounds(ge=0)]
Time = Annotated[float, Bounds(ge=1, le=YEAR, time=True)]
Delay = Annotated[float, Bounds(ge=0, le=YEAR, time=True)]
Positive = Annotated[float, Bounds(gt=0)]
Bounded = Annotated[float, Bounds(gt=0, le=10**6)]

ModeName = Annotated[str, OneOf(modes.names)]


@dataclass(frozen=True)
class TaskSpec:
    """What is trained: a task class (`use`) or the person's own command, never both."""

    use: str | None = None
    """Your task class: `module:Class` or `path/to/file.py:Class`."""
    command: list[str] | None = None
    """A script of your own, unchanged: its argument list. `{batch.per_gpu}` and the like are
    filled in."""
    params: dict[str, Any] = field(default_factory=dict)
    """The task's own fields, by name."""


@dataclass(frozen=True)
class DevicesSpec:
    """Which devices: named (`ids`), the freest at launch (`pick`), or other machines' (`hosts`);
    with `pick` and `hosts` the freest of one of these machines.
    With none of these: the freest one in mode single, in other modes all that are free."""

    ids: list[str] | None = None
    """NVML index, GPU UUID, MIG UUID or CPU slot ("cpu:0")."""
    pick: Count | None = None
    """How many of the freest devices to take at launch; with `hosts`, all on one of them."""
    free_gib: Bounded | None = None
    """With `pick`: only devices with so many GiB of free memory. With `share` too, these need not
    be free otherwise."""
    hosts: list[str] | None = None
    """Devices of other machines, one entry per host: "gpu1:0,1", "alice@gpu2:3", "local:0"; without
    ids, all devices of the host. With one host the run is on that host; with several, each is a
    node, in this order. With `pick`: the hosts of which the freest is taken, also as "any" (all of
    hosts.toml, and this machine) or "@lab" (a group of them). "slurm" alone: nodes that Slurm
    chooses, with `pick` GPUs each; "slurm:a100" those of a partition, "slurm:cpu:0,cpu:1" without
    GPUs."""
    share: bool = False
    """Use GPUs even if another run holds them or another process computes on them."""


@dataclass(frozen=True)
class ParallelSpec:
    """How the work is spread over devices and machines."""

    mode: ModeName = "single"
    """One of the modes in `spec.modes`, whose records say what each does."""
    nodes: Count = 1
    """multinode: how many machines take part."""
    node_rank: Whole = 0
    """multinode: which of them this machine is, counted from 0."""
    master_addr: str = "127.0.0.1"
    """multinode: numeric address of node 0, reachable from every node."""
    master_port: Port | None = None
    """TCP port on node 0. 0, on one machine: any free port. Empty: 29500 for several machines,
    any free port on a single one."""
    node_devices: list[Count] | None = None
    """multinode: how many devices each node uses, node 0's first. None: each as many as this."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """auto: nccl on GPUs, gloo on CPU."""
    launcher: Literal["auto", "direct", "torchrun"] = "auto"
    """direct: gpu-panel starts each rank itself. auto: direct on one machine, torchrun for
    several."""
    timeout: Bounded = 300.0
    """Seconds that a collective waits for the other ranks before it fails."""
    bucket_cap_mb: Count | None = None
    """DDP's gradient bucket in MiB; None: PyTorch's default."""
    static_graph: bool = False
    """DDP: promise PyTorch that every step uses the same parameters in the same order."""
    find_unused: bool = False
    """DDP: look for parameters that a step did not use (slower)."""


@dataclass(frozen=True)
class BatchSpec:
    """How many examples a step sees: global = per_gpu × replicas × accumulate."""

    size: Count = 64
    """Examples in one step, for all devices together or for each (`meaning`)."""
    meaning: Literal["global", "per_gpu"] = "global"
    """global: `size` is for all devices together. per_gpu: for each of them."""
    accumulate: Count = 1
    """Backward passes per step: 2 halve the memory for the same global batch."""


@dataclass(frozen=True)
class AmpSpec:
    """Mixed precision."""

    dtype: Literal["off", "bf16", "fp16"] = "off"
    """The type that autocast computes in; off: no autocast. fp16 comes with a GradScaler."""
    tf32: bool = False
    """Let float32 matrix products, convolutions and recurrent layers use TF32 on GPUs that have
    it. false: leave the setting of PyTorch or the task alone."""


@dataclass(frozen=True)
class TrainSpec:
    """How long to train, how fast, and what to keep."""

    epochs: Count | None = None
    """Passes over the training data. Give epochs or steps, not both; with neither: one epoch."""
    steps: Count | None = None
    """Optimizer steps in all. Give epochs or steps, not both; with neither: one epoch."""
    lr: Positive = 3e-4
    """Learning rate, before it is scaled (`lr_scale`)."""
    lr_scale: Literal["none", "linear", "sqrt"] = "none"
    """linear: multiply lr by global batch / `lr_reference_batch`. sqrt: by the square root of
    that."""
    lr_reference_batch: Count | None = None
    """The global batch that lr was chosen for."""
    weight_decay: NotNegative | None = None
    """Weight decay of the default optimizer, AdamW; empty: PyTorch's default, 0.01. A task that
    makes its own optimizer sets it there."""
    seed: Whole = 0
    """Seed of the weights, the order of the examples and all random draws: the same seed gives the
    same training."""
    clip: NotNegative = 0.0
    """Largest gradient norm; 0: gradients are not clipped."""
    workers: Whole = 2
    """DataLoader worker processes per rank; 0: the rank loads its data itself."""
    checkpoint_every: Whole = 500
    """Steps between checkpoints; 0: save only at the end."""
    checkpoint_async: bool = True
    """Copy a checkpoint to host memory and write it while training goes on. If false, or if there
    is no room for the copy, training waits until it is written."""
    keep: Annotated[int, Bounds(ge=2)] = 3
    """How many of the newest checkpoints to keep; at least 2, as the newest may be damaged."""
    best: str | None = None
    """Also keep the checkpoint that is best by this value of the evaluation: "loss" (the least),
    "max:accuracy" (the greatest)."""
    eval_every: Whole = 0
    """Steps between evaluations; 0: after each epoch and at the end."""
    restarts: Whole = 0
    """How often a failed run is restarted, all ranks, from its last checkpoint."""
    on_nonfinite: Literal["stop", "skip", "continue"] = "stop"
    """What to do when the loss of a step is not a finite number."""
    skip_steps: list[str] = field(default_factory=list)
    """Steps that change nothing, as their examples are left out: ["812", "820-830"]. For going on
    from a checkpoint before a loss spike."""
    hang_timeout: NotNegative = 0.0
    """Seconds that a rank may stand still after its first step; then the run is ended as failed,
    with every thread's stack in the logs. Choose more than an evaluation or a checkpoint takes. 0:
    wait for ever."""


@dataclass(frozen=True)
class ProcessSpec:
    """How the processes are run: the section [run]."""

    python: str | None = None
    """Python interpreter for the ranks, which needs torch only; empty: the first one found that has
    torch."""
    limit: Time | None = None
    """How long the run may take: 90s, 5m, 1h30m. Then it stops, saves, and has completed. A resume
    has as much again."""
    limit_from: Literal["step", "start"] = "step"
    """What `limit` counts from: the end of the first step, or the start of the ranks. A command
    without torch that shows no step for so long: from the start."""
    metrics: dict[str, str] | Literal["auto"] | None = None
    """Values that rank 0 prints, recorded as if logged: names, and regular expressions with a
    group for the number, { val_bpb = "val_bpb: (\\S+)" }. auto: numbers of JSON, "loss: 0.3",
    "acc=0.9"."""
    best: str | None = None
    """By which value runs are compared, evaluated, logged or printed: "min:val_bpb",
    "max:accuracy". Empty: as `train.best`, or by the loss."""
    stop_worse: bool = False
    """In a sweep: stop a run, which saves, whose best value at 1/4, 1/2 or 3/4 of its limit or
    steps is worse than the median of those that got there before it."""
    halving: Annotated[int, Bounds(ge=2)] | None = None
    """In a sweep, successive halving: with 3, nine runs rest at 1/9 of their limit or steps, the
    best three of them at 1/3, and the best one goes on."""
    asha: bool = False
    """With run.halving, nobody waits for all others (ASHA): with 3, a run that rests goes on as
    soon as it is in the best third of those that have got there by then."""
    give_way: bool = False
    """In the queue: take devices that are free, and make room for whoever else wants them: runs
    that don't give way, a hold, a process that is not ours. It saves, waits, and goes on where it
    was."""
    give_way_after: Delay = 300.0
    """How long after each start a run that gives way makes no room unless it has saved since: 90s,
    5m. For a process that is not ours it always does."""
    give_way_back: Delay = 60.0
    """How long its devices must have been free before a run that made room goes on: 90s, 5m."""
    give_way_again: bool = False
    """A command that begins anew each time it gives way: it does not go on by itself from what it
    has in {run.dir}."""
    grace: NotNegative = 60.0
    """Seconds that ranks get to stop by themselves before they are killed."""
    grace_most: Delay = 600.0
    """How long a command of your own that still writes, as in saving, may go on beyond run.grace:
    90s, 10m. A task's checkpoint may be finished as long as it grows."""
    stop_signal: Literal["SIGINT", "SIGTERM", "SIGUSR1"] = "SIGINT"
    """What a stop sends to a command of your own; SIGINT is what Ctrl-C sends. What still runs
    after run.grace, and writes nothing, gets SIGTERM, and five seconds later SIGKILL."""
    sync: Literal["none", "send"] = "none"
    """How the code comes to other hosts. none: it is there, as on a shared file system; send: what
    git tracks or does not ignore is sent. Data is never sent."""
    host_wait: NotNegative = 3600.0
    """Seconds for which a restart (train.restarts) waits for hosts that can't be reached, as while
    they reboot."""
    log_mb: Count = 64
    """MiB of output to keep in a rank's log, and the same again in the log file before it."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables for the environment of the ranks, on every machine: NCCL_DEBUG = "INFO",
    HF_HOME = "/data/hf". They come before those that are inherited."""
    sbatch: dict[str, str] = field(default_factory=dict)
    """Options of sbatch by their long names, for a run on Slurm (`devices.hosts = ["slurm"]`):
    account = "vision", time = "04:00:00". "" for one without a value: exclusive = ""."""
    grad_norm: bool = False
    """For a script of your own: also record the norm of each step's gradients, which costs
    a pass over them."""
    oom_snapshot: bool = False
    """When a GPU's memory is used up: write what held it, and name the lines that held most. What
    is allocated is noted from the start, about 2 µs each time by torch's own figure."""


@dataclass(frozen=True)
class RunSpec:
    """Everything a person chooses about one run."""

    name: str = "run"
    """The name of the run."""
    task: TaskSpec = field(default_factory=TaskSpec)
    devices: DevicesSpec = field(default_factory=DevicesSpec)
    parallel: ParallelSpec = field(default_factory=ParallelSpec)
    batch: BatchSpec = field(default_factory=BatchSpec)
    amp: AmpSpec = field(default_factory=AmpSpec)
    train: TrainSpec = field(default_factory=TrainSpec)
    run: ProcessSpec = field(default_factory=ProcessSpec)


SECTIONS: Mapping[str, type] = MappingProxyType({
    f.name: f.default_factory for f in fields(RunSpec) if isinstance(f.default_factory, type)})
"""The class of each section, in the order in which they are written."""

ONE_OF = (("task.use", "task.command"), ("devices.ids", "devices.pick"),
          ("devices.ids", "devices.hosts"), ("train.epochs", "train.steps"))
"""Pairs of keys of which at most one may be given."""

TABLES = ("run.env", "run.metrics", "run.sbatch")
"""Keys whose values have names of a person's own, each of which is set by itself: run.env.NAME."""

LONGEST_NAME = 80
"""How many characters `name` may have."""


@dataclass(frozen=True)
class Key:
    """A key of the spec, read from its field."""

    dotted: str
    """Section and name: "batch.size". The key "name" has no section."""
    kind: Kind
    """The type of its value, bounds included."""
    default: Any

    @property
    def section(self) -> str:
        """The part before the dot; "" for the key "name"."""
        return self.dotted.rpartition(".")[0]

    @property
    def name(self) -> str:
        """The part after the dot."""
        return self.dotted.rpartition(".")[2]


def keys() -> Mapping[str, Key]:
    """All keys by their dotted names: "name" first, then the sections in their order."""
    return _keys(modes.names())


@cache
def _keys(mode_names: tuple[str, ...]) -> Mapping[str, Key]:
    """`keys`, cached for a set of modes."""
    found = {"name": Key("name", kind_of(str), RunSpec().name)}
    for section, cls in SECTIONS.items():
        hints, empty = get_type_hints(cls, include_extras=True), cls()
        for f in fields(cls):
            dotted = f"{section}.{f.name}"
            found[dotted] = Key(dotted, kind_of(hints[f.name]), getattr(empty, f.name))
    return MappingProxyType(found)


def is_key(dotted: str) -> bool:
    """Whether a spec can have a value under this name, also a task's own parameter."""
    return dotted in keys() or dotted.startswith(
        ("task.params.", *(f"{table}." for table in TABLES)))


def known_keys() -> list[str]:
    """Every dotted key but "name", in the order of the sections."""
    return [key for key in keys() if key != "name"]


AUTO = "auto"
"""Of run.metrics: every number that is printed with a name."""


def parse_best(text: str | None, key: str = "train.best") -> tuple[str, bool] | None:
    """Parse `train.best` or `run.best` (`key`) into (name of the value, whether larger is better):
    "loss" and "min:loss" give ("loss", False), "max:accuracy" gives ("accuracy", True). None if it
    is not set. Raises SpecError."""
    if not text:
        return None
    how, colon, name = text.partition(":")
    if not colon:
        return text, False
    if how not in ("min", "max") or not name:
        raise SpecError([Problem(key, text, "expected the name of a value, "
                                 "min:name or max:name")])
    return name, how == "max"


def parse_metrics(metrics: Mapping[str, str] | str | None) -> dict[str, re.Pattern[str]]:
    """Compile the patterns of `run.metrics`, by the names of their values; none for "auto". Raises
    SpecError."""
    found, problems = {}, []
    for name, pattern in metrics.items() if isinstance(metrics, Mapping) else ():
        key = f"run.metrics.{name}"
        try:
            found[name] = re.compile(pattern)
            if found[name].groups != 1:
                problems.append(Problem(key, pattern, "needs one group, (…), for the number, and "
                                        f"has {found[name].groups or 'none'}"))
        except (re.error, OverflowError, RecursionError) as err:
            problems.append(Problem(key, pattern, f"is no regular expression: {err}"))
    if problems:
        raise SpecError(problems)
    return found


def parse_steps(texts: Iterable[str]) -> tuple[range, ...]:
    """Parse `train.skip_steps`: "812" is one step, "820-830" eleven. Raises SpecError."""
    out = []
    for text in texts:
        first, dash, last = text.partition("-")
        try:
            steps = range(int(first), int(last if dash else first) + 1)
        except ValueError:
            steps = range(0)
        if not steps or steps[0] < 1:
            raise SpecError([Problem("train.skip_steps", text, "expected steps, counted from 1: "
                                     "812, or 820-830")])
        out.append(steps)
    return tuple(out)
