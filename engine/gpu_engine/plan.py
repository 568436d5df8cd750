"""RunSpec + devices → LaunchPlan: what the screen shows is what runs.

Pure: no I/O, no clock, no torch. `check` says what does not fit, `plan` resolves the rest:
the processes that this node's supervisor will start (argument lists and environment), and the
lines a person would type for the same run. Both come from here and from nowhere else.

What only the machine can answer (is the port free, is there such a task) is in `preflight`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from gpu_engine import command as cmd
from gpu_engine.devices import Device, Inventory
from gpu_engine.errors import Problem, SpecError
from gpu_engine.spec import MODE_NAMES, RunSpec, to_dict

RUN_DIR = "{run.dir}"
"""Stands in argument lists for the run folder, which has no name before launch."""

WORKER = str(Path(__file__).parent / "worker" / "__main__.py")
"""The rank's program, as a file: it runs in any interpreter that has torch."""


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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
        if self.rule == "none":
            return f"lr {self.base:g}, not scaled"
        return (f"lr {self.scaled:g} = {self.base:g} × {self.factor:g} "
                f"({self.rule}, reference batch {self.reference_batch:,})")


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A device as one rank uses it: the physical one, and the name the rank sees it by."""

    id: str
    label: str
    uuid: str | None
    torch: str
    """"cuda:0", "cpu"."""
    cores: tuple[int, ...] = ()
    memory: int | None = None
    """Bytes on the device; of the machine for a CPU slot."""


@dataclass(frozen=True, slots=True)
class RankPlan:
    rank: int
    local_rank: int
    node: int
    devices: tuple[DeviceUse, ...]

    def sentence(self) -> str:
        """For people: "GPU 0 → cuda:0 rank 0"."""
        where = ", ".join(f"{d.label} → {d.torch}" for d in self.devices)
        return f"{where} rank {self.rank}"


@dataclass(frozen=True, slots=True)
class Process:
    """One process that the supervisor starts: argument list, added environment, where."""

    argv: tuple[str, ...]
    env: dict[str, str]
    ranks: tuple[int, ...]
    """The ranks that live in it or below it."""
    role: Literal["rank", "launcher"] = "rank"
    """launcher: starts the ranks itself (torchrun)."""
    cores: tuple[int, ...] = ()
    log: str = ""
    """Where its output goes, relative to the run folder."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything that one node starts for one run."""

    name: str
    mode: Literal["single", "dp", "ddp", "multinode"]
    backend: Literal["nccl", "gloo", "none"]
    device_type: Literal["cuda", "cpu"]
    world_size: int
    """Processes that train, over all nodes."""
    local_world_size: int
    nodes: int
    node_rank: int
    replicas: int
    """Copies of the model, over all nodes: under DataParallel more than processes."""
    master_addr: str
    master_port: int
    """0: the supervisor takes a free one."""
    batch: Batch
    lr: LearningRate
    ranks: tuple[RankPlan, ...]
    processes: tuple[Process, ...]
    lines: tuple[str, ...]
    """What a person would type, one line a node."""
    spec: RunSpec
    warnings: tuple[str, ...] = ()
    unit: str = field(default="GPU")

    def to_dict(self) -> dict[str, Any]:
        """As plan.json holds it."""
        out = {"version": 1}
        for name in ("name", "mode", "backend", "device_type", "world_size", "local_world_size",
                     "nodes", "node_rank", "replicas", "master_addr", "master_port", "unit"):
            out[name] = getattr(self, name)
        out["batch"], out["lr"] = asdict(self.batch), asdict(self.lr)
        out["ranks"] = [asdict(r) for r in self.ranks]
        out["processes"] = [asdict(p) for p in self.processes]
        out["lines"], out["warnings"] = list(self.lines), list(self.warnings)
        out["spec"] = to_dict(self.spec)
        return out


# --- what fits ---------------------------------------------------------------------------------

def check(spec: RunSpec, inventory: Inventory) -> list[Problem]:
    """Everything that does not fit together or does not fit this machine; empty: it fits."""
    devices, problems = _devices(spec, inventory)
    problems += _check_task(spec)
    if devices:
        problems += _check_mode(spec, devices)
        problems += _check_precision(spec, devices)
    problems += _check_nodes(spec)
    if devices and not any(p.key.startswith(("devices", "parallel")) for p in problems):
        problems += _check_batch(spec, replicas_of(spec, len(devices)))
    if spec.train.lr_scale != "none" and spec.train.lr_reference_batch is None:
        problems.append(Problem("train.lr_reference_batch", None,
                                f"lr_scale = \"{spec.train.lr_scale}\" needs the global batch "
                                "that lr was chosen for"))
    return problems


def replicas_of(spec: RunSpec, devices: int) -> int:
    """Copies of the model over all nodes, taking every node to have as many devices."""
    if spec.parallel.mode == "multinode":
        return devices * spec.parallel.nodes
    return devices if spec.parallel.mode in ("dp", "ddp") else 1


def batch_of(spec: RunSpec, replicas: int) -> Batch | None:
    """The batch arithmetic, or None where a global size does not divide."""
    b = spec.batch
    if b.meaning == "per_gpu":
        total = b.size * replicas * b.accumulate
        return Batch(b.size, b.meaning, b.accumulate, replicas, total, b.size)
    per_gpu, rest = divmod(b.size, replicas * b.accumulate)
    if rest or not per_gpu:
        return None
    return Batch(b.size, b.meaning, b.accumulate, replicas, b.size, per_gpu)


def nearest_batches(size: int, divisor: int) -> tuple[int, int]:
    """The two multiples of `divisor` on either side of `size` (both positive)."""
    below = max(size // divisor, 1) * divisor
    return (below, below + divisor)


def _check_batch(spec: RunSpec, replicas: int) -> list[Problem]:
    if batch_of(spec, replicas) is not None:
        return []
    below, above = nearest_batches(spec.batch.size, replicas * spec.batch.accumulate)
    parts = f"{replicas} replicas" if replicas > 1 else "1 replica"
    if spec.batch.accumulate > 1:
        parts += f" × {spec.batch.accumulate} accumulation steps"
    return [Problem("batch.size", spec.batch.size,
                    f"a global batch must divide by {parts}; {below} or {above} would")]


def _check_task(spec: RunSpec) -> list[Problem]:
    task = spec.task
    if task.use is None and task.command is None:
        return [Problem("task.use", None, "name a task (module:Class or path/to/file.py:Class), "
                                          "or give your own command in task.command")]
    if task.command is not None and not task.command:
        return [Problem("task.command", [], "the command is empty")]
    if task.command is not None:
        return cmd.check(task.command)
    return []


def _devices(spec: RunSpec, inventory: Inventory) -> tuple[list[Device], list[Problem]]:
    ids = spec.devices.ids
    offered = ", ".join(d.id for d in inventory.devices) or "none"
    if not ids:
        if spec.devices.pick:
            have = len(inventory.devices)
            if spec.devices.pick > have:
                return [], [Problem("devices.pick", spec.devices.pick,
                                    f"this machine offers {have}: {offered}")]
            return list(inventory.devices[:spec.devices.pick]), []
        return [], [Problem("devices.ids", ids, f"choose at least one device; there are {offered}")]
    found, problems = [], []
    for name in ids:
        device = inventory.find(name)
        if device is None:
            problems.append(Problem("devices.ids", name,
                                    f"there is no such device here; there are {offered}"))
        else:
            found.append(device)
    kinds = {"cpu" if d.kind == "cpu" else "gpu" for d in found}
    if len(kinds) > 1:
        problems.append(Problem("devices.ids", ids, "CPU slots and GPUs can't train together"))
    return ([] if problems else found), problems


def _check_mode(spec: RunSpec, devices: Sequence[Device]) -> list[Problem]:
    p, n = spec.parallel, len(devices)
    cpu = devices[0].kind == "cpu"
    out = []
    repeated = n != len({d.id for d in devices})
    backend = backend_of(spec, cpu=cpu)
    if p.mode == "single" and n > 1:
        out.append(Problem("parallel.mode", "single",
                           f"single trains on one device and {n} are chosen; "
                           "untick all but one, or take ddp"))
    if p.mode == "dp":
        if cpu:
            out.append(Problem("parallel.mode", "dp",
                               "DataParallel needs GPUs; on CPU slots take ddp"))
        elif repeated:
            out.append(Problem("devices.ids", spec.devices.ids,
                               "DataParallel takes each GPU once"))
        elif n > 1 and any(d.kind == "mig" for d in devices):
            # NVIDIA MIG user guide: one process sees one compute instance.
            out.append(Problem("parallel.mode", "dp",
                               "one process can use one MIG slice only; take ddp"))
    if p.backend == "nccl" and cpu:
        out.append(Problem("parallel.backend", "nccl", "nccl needs GPUs; on CPU take gloo or auto"))
    if p.mode in ("ddp", "multinode") and repeated:
        if cpu:
            out.append(Problem("devices.ids", spec.devices.ids,
                               "each CPU slot carries one rank; name each once"))
        elif backend == "nccl":
            out.append(Problem("devices.ids", spec.devices.ids,
                               "nccl refuses two ranks on one GPU; to debug DDP code on one GPU "
                               "set parallel.backend = \"gloo\""))
    if p.launcher == "torchrun" and p.mode in ("single", "dp"):
        out.append(Problem("parallel.launcher", "torchrun",
                           f"{MODE_NAMES[p.mode]} is one process and needs no launcher"))
    return out


def _check_precision(spec: RunSpec, devices: Sequence[Device]) -> list[Problem]:
    if devices[0].kind == "cpu" and spec.amp.dtype == "fp16":
        return [Problem("amp.dtype", "fp16", "fp16 needs a GPU; on CPU take bf16 or off")]
    return []


def _check_nodes(spec: RunSpec) -> list[Problem]:
    p = spec.parallel
    if p.mode != "multinode":
        if p.nodes > 1:
            return [Problem("parallel.nodes", p.nodes,
                            f"{MODE_NAMES[p.mode]} stays on one machine; "
                            "take multinode, or 1 node")]
        return []
    out = []
    if p.nodes < 2:
        out.append(Problem("parallel.nodes", p.nodes,
                           "multi-node needs 2 or more; on one machine take ddp"))
    elif p.node_rank >= p.nodes:
        out.append(Problem("parallel.node_rank", p.node_rank,
                           f"with {p.nodes} nodes the ranks are 0 to {p.nodes - 1}"))
    if p.master_port == 0:
        out.append(Problem("parallel.master_port", 0,
                           "all nodes must know the port; name one, for example 29500"))
    if not _is_host(p.master_addr):
        out.append(Problem("parallel.master_addr", p.master_addr,
                           "expected the numeric address of node 0, for example 10.0.0.1"))
    return out


def _is_host(text: str) -> bool:
    return bool(text) and text[0].isalnum() | (text[0] in ":[") \
        and all(c.isalnum() or c in ".-:[]%_" for c in text)


# --- the plan ----------------------------------------------------------------------------------

def backend_of(spec: RunSpec, *, cpu: bool) -> Literal["nccl", "gloo", "none"]:
    if spec.parallel.mode in ("single", "dp"):
        return "none"
    if spec.parallel.backend != "auto":
        return spec.parallel.backend
    return "gloo" if cpu else "nccl"


def port_of(spec: RunSpec) -> int:
    """The rendezvous port: torchrun's 29500 where nodes must agree on one without asking each
    other, 0 (any free one) where they need not."""
    if spec.parallel.master_port is not None:
        return spec.parallel.master_port
    return 29500 if spec.parallel.mode == "multinode" else 0


def learning_rate(spec: RunSpec, global_size: int) -> LearningRate:
    t = spec.train
    ratio = 1.0 if t.lr_scale == "none" else global_size / (t.lr_reference_batch or global_size)
    factor = math.sqrt(ratio) if t.lr_scale == "sqrt" else ratio
    return LearningRate(t.lr, t.lr_scale, t.lr_reference_batch, factor, t.lr * factor)


def plan(
    spec: RunSpec,
    inventory: Inventory,
    *,
    python: str,
    base: tuple[str, RunSpec] | None = None,
    environ: Mapping[str, str] | None = None,
) -> LaunchPlan:
    """Resolve `spec` on this machine.

    python: the interpreter that runs ranks where the spec names none.
    base: the preset (name or path, its spec) that the typed line may build on.
    environ: what the processes inherit; only OMP_NUM_THREADS is looked at.
    Raises SpecError with all that `check` finds.
    """
    problems = check(spec, inventory)
    if problems:
        raise SpecError(problems)
    chosen, _ = _devices(spec, inventory)
    p = spec.parallel
    cpu = chosen[0].kind == "cpu"
    batch = batch_of(spec, replicas_of(spec, len(chosen)))
    ranks = _ranks(spec, chosen)
    local = len(ranks)
    many = p.mode == "multinode"
    resolved = LaunchPlan(
        name=spec.name, mode=p.mode, backend=backend_of(spec, cpu=cpu),
        device_type="cpu" if cpu else "cuda",
        world_size=local * (p.nodes if many else 1), local_world_size=local,
        nodes=p.nodes if many else 1, node_rank=p.node_rank if many else 0,
        replicas=batch.replicas,
        master_addr=p.master_addr if many else "127.0.0.1", master_port=port_of(spec),
        batch=batch, lr=learning_rate(spec, batch.global_size), ranks=ranks,
        processes=(), lines=(), spec=spec, warnings=tuple(_warnings(spec)),
        unit="slot" if cpu else "GPU",
    )
    from dataclasses import replace

    from gpu_engine.plan_lines import lines
    from gpu_engine.plan_processes import processes

    started = processes(resolved, chosen, python=spec.run.python or python, environ=environ or {})
    return replace(resolved, processes=started,
                   lines=lines(resolved, chosen, base=base, python=spec.run.python or "python"))


def _ranks(spec: RunSpec, devices: Sequence[Device]) -> tuple[RankPlan, ...]:
    """Which rank uses what. Under DDP a rank sees all the run's GPUs, as under torchrun, and
    uses cuda:local_rank; a MIG slice is alone in its process, so it is cuda:0 there."""
    seen = list(dict.fromkeys(d.id for d in devices))  # a repeated GPU is visible once
    alone = any(d.kind == "mig" for d in devices)

    def use(device: Device) -> DeviceUse:
        name = "cpu" if device.kind == "cpu" else f"cuda:{0 if alone else seen.index(device.id)}"
        return DeviceUse(device.id, device.label, device.uuid, name, device.cores,
                         device.memory_total)

    if spec.parallel.mode in ("single", "dp"):
        return (RankPlan(0, 0, 0, tuple(use(d) for d in devices)),)
    node = spec.parallel.node_rank if spec.parallel.mode == "multinode" else 0
    first = node * len(devices)
    return tuple(RankPlan(first + i, i, node, (use(d),)) for i, d in enumerate(devices))


def _warnings(spec: RunSpec) -> list[str]:
    p = spec.parallel
    out = []
    if p.mode == "multinode":
        host = p.master_addr
        if host == "localhost" or host.startswith("127."):
            out.append(f"{host} is this machine itself: other machines can't meet there")
        elif any(c.isalpha() for c in host) and ":" not in host:
            out.append(f"{host} is a name: a numeric address avoids nodes resolving it differently")
    return out
