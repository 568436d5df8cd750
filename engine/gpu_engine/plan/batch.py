"""What follows from a spec by arithmetic: ranks, batch, learning rate, backend, port. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from gpu_engine.spec import modes
from gpu_engine.spec.schema import RunSpec


@dataclass(frozen=True)
class Batch:
    """The batch arithmetic: global_size = per_gpu × replicas × accumulate."""

    size: int
    meaning: Literal["global", "per_gpu"]
    accumulate: int
    replicas: int
    global_size: int
    per_gpu: int
    """Examples in one replica's forward pass."""

    def sentence(self, unit: str = "GPU") -> str:
        """For people: "256 global = 128 per GPU × 2 GPUs × 1"."""
        many = unit if self.replicas == 1 else unit + "s"
        return (f"{self.global_size:,} global = {self.per_gpu:,} per {unit} "
                f"× {self.replicas} {many} × {self.accumulate}")


@dataclass(frozen=True)
class LearningRate:
    """The learning rate and how it came about.

    linear: lr × B/Bref (Goyal et al. 2017, arXiv:1706.02677); sqrt: lr × √(B/Bref)
    (Krizhevsky 2014, arXiv:1404.5997). B is the global batch.
    """

    base: float
    rule: Literal["none", "linear", "sqrt"]
    reference_batch: int | None
    factor: float
    scaled: float

    def sentence(self) -> str:
        """For people: "lr 0.0006 = 0.0003 × 2 (linear, reference batch 128)"."""
        if self.rule == "none":
            return f"lr {self.base:g}, not scaled"
        return (f"lr {self.scaled:g} = {self.base:g} × {self.factor:g} "
                f"({self.rule}, reference batch {self.reference_batch:,})")


@dataclass(frozen=True)
class Layout:
    """Which ranks are planned, among how many, and where all of them meet."""

    first_rank: int
    first_local_rank: int
    ranks: int
    """How many are planned: those of a node, or the one whose process this is."""
    world_size: int
    local_world_size: int
    node: int
    nodes: int
    master_addr: str
    master_port: int
    """0: any free one."""
    launched_by: str | None = None
    """"torchrun", "srun", …, where a launcher of the person's own has started the rank, and shown
    it its devices; None where gpu-panel starts the ranks."""


def layout_of(spec: RunSpec, devices: int) -> Layout:
    """The ranks of this node. Every node has as many devices, unless parallel.node_devices says
    how many each has."""
    p = spec.parallel
    mode = modes.get(p.mode)
    local, node, nodes = mode.local_processes(devices), mode.node_rank(p.node_rank), \
        mode.nodes(p.nodes)
    each = ranks_a_node(spec, local)
    return Layout(first_rank=sum(each[:node]), first_local_rank=0, ranks=local,
                  world_size=sum(each), local_world_size=local, node=node, nodes=nodes,
                  master_addr=p.master_addr if mode.several_nodes else "127.0.0.1",
                  master_port=port_of(spec))


def ranks_a_node(spec: RunSpec, local: int) -> tuple[int, ...]:
    """Processes of each node, node 0's first, where this one has `local`."""
    nodes = modes.get(spec.parallel.mode).nodes(spec.parallel.nodes)
    told = spec.parallel.node_devices
    return tuple(told) if told and nodes > 1 and len(told) == nodes else (local,) * nodes


def replicas_of(spec: RunSpec, layout: Layout, devices: int) -> int:
    """Copies of the model over all nodes. `devices`: of this node, or of the one process."""
    mode = modes.get(spec.parallel.mode)
    if mode.process_a_device:
        return layout.world_size if mode.replica_a_device else 1
    return mode.replicas(devices, layout.nodes)


def batch_of(spec: RunSpec, replicas: int) -> Batch | None:
    """The batch arithmetic; None if a global size can't be divided evenly."""
    b = spec.batch
    if b.meaning == "per_gpu":
        total = b.size * replicas * b.accumulate
        return Batch(b.size, b.meaning, b.accumulate, replicas, total, b.size)
    per_gpu, rest = divmod(b.size, replicas * b.accumulate)
    if rest or not per_gpu:
        return None
    return Batch(b.size, b.meaning, b.accumulate, replicas, b.size, per_gpu)


def batch_untold(spec: RunSpec, replicas: int) -> Batch:
    """The batch arithmetic for a person's own command that uses none of it. It need not divide
    evenly: each replica's share is rounded down."""
    b = spec.batch
    return Batch(b.size, b.meaning, b.accumulate, replicas, b.size,
                 max(b.size // (replicas * b.accumulate), 1))


def nearest_batches(size: int, divisor: int) -> tuple[int, int]:
    """The two multiples of `divisor` on either side of `size` (both positive)."""
    below = max(size // divisor, 1) * divisor
    return (below, below + divisor)


def backend_of(spec: RunSpec, *, cpu: bool) -> Literal["nccl", "gloo", "none"]:
    """The backend of the process group; "none" if the mode has only one process. `cpu`: whether it
    runs on CPU slots."""
    if not modes.get(spec.parallel.mode).process_a_device:
        return "none"
    if spec.parallel.backend != "auto":
        return spec.parallel.backend
    return "gloo" if cpu else "nccl"


def port_of(spec: RunSpec) -> int:
    """The rendezvous port. If the spec names none it is the mode's: 29500, as with torchrun, for
    several nodes, which must all know it; else 0, any free port."""
    if spec.parallel.master_port is not None:
        return spec.parallel.master_port
    return modes.get(spec.parallel.mode).port


def learning_rate(spec: RunSpec, global_size: int) -> LearningRate:
    """The learning rate of `spec`, scaled for a global batch of `global_size` examples."""
    t = spec.train
    ratio = 1.0 if t.lr_scale == "none" else global_size / (t.lr_reference_batch or global_size)
    factor = math.sqrt(ratio) if t.lr_scale == "sqrt" else ratio
    return LearningRate(t.lr, t.lr_scale, t.lr_reference_batch, factor, t.lr * factor)
