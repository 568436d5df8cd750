"""The records of a plan: what one node starts for one run. Pure data.

As plan.json holds it, so a rank in another environment reads it without this module.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from gpu_engine.plan import own_command as cmd
from gpu_engine.plan.batch import Batch, LearningRate
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import to_dict

RUN_DIR = "{run.dir}"
"""Stands in argument lists for the run folder, which has no name before launch."""

WORKER = str(Path(__file__).parents[1] / "worker" / "__main__.py")
"""The rank's program, as a file: it runs in any interpreter that has torch."""


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
    mode: str
    """The name of its record in `modes`."""
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

    def sentences(self) -> list[str]:
        """Batch and learning rate for people. Of a person's own command no more than it is told:
        whatever else it trains with is its own affair."""
        command = self.spec.task.command
        if command is None:
            return [self.batch.sentence(self.unit), self.lr.sentence()]
        told = cmd.used(command)
        out = []
        whole = self.batch.accumulate == 1 or "batch.accumulate" in told
        if whole and not told.isdisjoint(("batch.per_gpu", "batch.global")):
            out.append(self.batch.sentence(self.unit))
        if "lr" in told:
            out.append(self.lr.sentence())
        train, batch = self.spec.train, self.batch
        values = {"batch.per_gpu": f"{batch.per_gpu:,} per {self.unit}",
                  "batch.global": f"{batch.global_size:,} global",
                  "batch.size": f"batch size {batch.size:,}",
                  "batch.accumulate": f"accumulate {batch.accumulate}",
                  "amp": f"amp {self.spec.amp.dtype}", "epochs": f"epochs {train.epochs or 1}",
                  "steps": f"steps {train.steps or 0}", "seed": f"seed {train.seed}",
                  "workers": f"workers {train.workers}"}
        hidden = ("batch.per_gpu", "batch.global") if out and whole else ()
        rest = [words for name, words in values.items() if name in told and name not in hidden]
        if rest:
            out.append("told: " + ", ".join(rest))
        return out or ["your command is told neither batch size nor lr: it has its own"]

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
