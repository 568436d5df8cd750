"""RunSpec: everything that a person chooses about a run.

A key of the spec is a field here, with its docstring, default and bounds. What else there is of it
(`--set`, the form, presets, plan.json, what a rank reads) follows from the field. The names are a
public contract (presets, `--set`, other people's scripts): add, never rename.

Reading and checking is in `read`, writing in `write`; whether the values fit each other and this
machine is asked in `plan.check`. Standard library only: a rank imports this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_type_hints

from gpu_engine.common.values import Bounds, Kind, OneOf, kind_of
from gpu_engine.spec import modes

Count = Annotated[int, Bounds(ge=1)]
Whole = Annotated[int, Bounds(ge=0)]
Port = Annotated[int, Bounds(ge=0, le=65535)]
NotNegative = Annotated[float, Bounds(ge=0)]
Positive = Annotated[float, Bounds(gt=0)]

ModeName = Annotated[str, OneOf(modes.names)]


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What is trained: a task class (`use`) or the person's own command, never both."""

    use: str | None = None
    """`module:Class` or `path/to/file.py:Class`."""
    command: list[str] | None = None
    """Own script, unchanged: the argument list; `{batch.per_gpu}` and the like are filled in."""
    params: dict[str, Any] = field(default_factory=dict)
    """The task's own fields, by name."""


@dataclass(frozen=True, slots=True)
class DevicesSpec:
    """Which devices: named (`ids`), the freest at launch (`pick`), or other machines' (`hosts`)."""

    ids: list[str] | None = None
    """NVML index, GPU UUID, MIG UUID or CPU slot ("cpu:0")."""
    pick: Count | None = None
    """How many of the freest devices to take at launch."""
    hosts: list[str] | None = None
    """Devices of other machines, a host each: "gpu1:0,1", "alice@gpu2:3", "local:0"; without ids
    all that the host has. One host: the run is there. Several: a node each, in this order."""
    share: bool = False
    """Take GPUs although another run holds them or another process computes on them."""


@dataclass(frozen=True, slots=True)
class ParallelSpec:
    """How the work is spread over devices and machines."""

    mode: ModeName = "single"
    """single: one process, one device. dp: DataParallel, one process, several GPUs. ddp: a process
    for each device. multinode: DDP over several machines."""
    nodes: Count = 1
    """multinode: how many machines take part."""
    node_rank: Whole = 0
    """multinode: which of them this one is, counted from 0."""
    master_addr: str = "127.0.0.1"
    """multinode: numeric address of node 0, reachable from every node."""
    master_port: Port | None = None
    """TCP port on node 0; 0 on one machine: any free one. None: 29500 for several machines, any
    free one on a single machine."""
    node_devices: list[Count] | None = None
    """multinode: how many devices each node uses, node 0's first. None: all as many as this one."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """auto: nccl on GPUs, gloo on CPU."""
    launcher: Literal["auto", "direct", "torchrun"] = "auto"
    """auto: rank by rank on one machine, torchrun for several."""
    timeout: Positive = 300.0
    """Seconds that a collective may wait before the ranks give up."""
    bucket_cap_mb: Count | None = None
    """DDP's gradient bucket in MiB; None leaves PyTorch's own."""
    static_graph: bool = False
    """DDP: promise that every step uses the same parameters in the same order."""
    find_unused: bool = False
    """DDP: look for parameters that a step did not use (slower)."""


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """How many examples a step sees: global = per_gpu × replicas × accumulate."""

    size: Count = 64
    """Examples in one step; `meaning` says whose."""
    meaning: Literal["global", "per_gpu"] = "global"
    """Whether `size` is what all replicas see in a step together, or one replica's share."""
    accumulate: Count = 1
    """Backward passes a step."""


@dataclass(frozen=True, slots=True)
class AmpSpec:
    """Mixed precision."""

    dtype: Literal["off", "bf16", "fp16"] = "off"
    """What autocast computes in; off: as the task has it. fp16 comes with a GradScaler."""
    tf32: bool = False
    """Let float32 matrix products, convolutions and recurrent layers use TF32 on GPUs that have
    it; false leaves it as PyTorch or the task has it."""


@dataclass(frozen=True, slots=True)
class TrainSpec:
    """How long, how fast, and what is kept."""

    epochs: Count | None = None
    """Passes over the training data; one of epochs | steps (neither: one epoch)."""
    steps: Count | None = None
    """Optimizer steps in all; one of epochs | steps (neither: one epoch)."""
    lr: Positive = 3e-4
    """Learning rate, before `lr_scale`."""
    lr_scale: Literal["none", "linear", "sqrt"] = "none"
    """Scale lr by the global batch over `lr_reference_batch`, or by its square root."""
    lr_reference_batch: Count | None = None
    """The global batch that lr was chosen for."""
    weight_decay: NotNegative | None = None
    """Weight decay of the default optimizer, AdamW; None: PyTorch's own, 0.01. A task that makes
    its own optimizer sets it there."""
    seed: Whole = 0
    """One seed, the same training: weights, order of the examples, random draws."""
    clip: NotNegative = 0.0
    """Largest gradient norm; 0 leaves gradients alone."""
    workers: Whole = 2
    """DataLoader worker processes a rank."""
    checkpoint_every: Whole = 500
    """Steps between checkpoints; 0 saves at the end alone."""
    checkpoint_async: bool = True
    """Copy what a checkpoint holds to host memory and write it while training goes on; false, or
    where there is no room for the copy: training waits until it is written."""
    keep: Annotated[int, Bounds(ge=2)] = 3
    """How many of the newest checkpoints stay; at least 2, as the newest may be damaged."""
    best: str | None = None
    """Evaluation value whose best checkpoint is kept too: "loss", or "max:accuracy"."""
    eval_every: Whole = 0
    """Steps between evaluations; 0 evaluates after each epoch and at the end."""
    restarts: Whole = 0
    """Whole-run restarts from the last checkpoint after a failure."""
    on_nonfinite: Literal["stop", "skip", "continue"] = "stop"
    """What to do when the loss of a step is not a finite number."""
    hang_timeout: NotNegative = 0.0
    """Seconds that a rank may stand still after its first step before the run is ended as failed,
    with every thread's stack in the logs; longer than an evaluation or a checkpoint takes. 0: wait
    for ever."""


@dataclass(frozen=True, slots=True)
class HowSpec:
    """How the processes are run."""

    python: str | None = None
    """Interpreter for the ranks (needs torch alone); None: the one gpu-panel runs in."""
    grace: NotNegative = 60.0
    """Seconds between asking ranks to stop and ending them."""
    log_mb: Count = 64
    """MiB of output kept a rank in the log, and as much again of what came before."""
    grad_norm: bool = False
    """Of a person's own script: also record the norm of the gradients of each step."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Everything a person chooses about one run."""

    name: str = "run"
    """What the run is called."""
    task: TaskSpec = field(default_factory=TaskSpec)
    devices: DevicesSpec = field(default_factory=DevicesSpec)
    parallel: ParallelSpec = field(default_factory=ParallelSpec)
    batch: BatchSpec = field(default_factory=BatchSpec)
    amp: AmpSpec = field(default_factory=AmpSpec)
    train: TrainSpec = field(default_factory=TrainSpec)
    run: HowSpec = field(default_factory=HowSpec)


SECTIONS: Mapping[str, type] = MappingProxyType({
    f.name: f.default_factory for f in fields(RunSpec) if isinstance(f.default_factory, type)})
"""Section → its class, in the order in which they are written."""

ONE_OF = (("task.use", "task.command"), ("devices.ids", "devices.pick"),
          ("devices.ids", "devices.hosts"), ("devices.pick", "devices.hosts"),
          ("train.epochs", "train.steps"))
"""Pairs of keys of which one may be given."""

LONGEST_NAME = 80
"""Characters of `name`."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the spec, as its field has it."""

    dotted: str
    """"batch.size"; "name" has no section."""
    kind: Kind
    """What it takes, bounds included."""
    default: Any

    @property
    def section(self) -> str:
        """"" for `name`."""
        return self.dotted.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.dotted.rpartition(".")[2]


def keys() -> Mapping[str, Key]:
    """Dotted name → key, sections in their order; `name` leads."""
    return _keys(modes.names())


@cache
def _keys(mode_names: tuple[str, ...]) -> Mapping[str, Key]:
    """`keys`, worked out once for the modes that there are."""
    found = {"name": Key("name", kind_of(str), RunSpec().name)}
    for section, cls in SECTIONS.items():
        hints, empty = get_type_hints(cls, include_extras=True), cls()
        for f in fields(cls):
            dotted = f"{section}.{f.name}"
            found[dotted] = Key(dotted, kind_of(hints[f.name]), getattr(empty, f.name))
    return MappingProxyType(found)


def known_keys() -> list[str]:
    """Every dotted key, in the order of the sections."""
    return [key for key in keys() if key != "name"]
