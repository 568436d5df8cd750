"""The records of a plan: what one node starts for one run, as plan.json holds it. Pure data, of
the standard library alone: the rank reads its plan with them, in whatever environment it runs."""

from __future__ import annotations

import re
import signal
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from gpu_engine.common import units
from gpu_engine.common.clean import shown_env, shown_words
from gpu_engine.common.floors import torch_words
from gpu_engine.common.records import read_record
from gpu_engine.plan import own_command
from gpu_engine.plan.batch import Batch, LearningRate
from gpu_engine.spec.read import from_dict_leniently
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import for_people, to_dict

RUN_DIR = "{run.dir}"
"""Stands in argument lists for the run folder, which has no name before launch."""
MASTER_PORT = "{master_port}"
"""The same for a free port, which is taken at the start."""

_LOG = re.compile(r"((ranks/)?\w[\w.-]*)?")
"""Where a process may write its output: nowhere but in the run folder."""

WORKER = str(Path(__file__).parents[1] / "worker" / "__main__.py")
"""The rank's program, as a file: it runs in any interpreter that has torch."""

@dataclass(frozen=True)
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


@dataclass(frozen=True)
class RankPlan:
    """One rank: its numbers, and the devices that it uses, several under DataParallel."""

    rank: int
    local_rank: int
    node: int
    devices: tuple[DeviceUse, ...]
    host: str | None = None
    """The machine, as devices.hosts names it; None: this one."""

    @property
    def cores(self) -> tuple[int, ...]:
        """The CPU cores of its slots; it keeps to those of all ranks of its node."""
        return tuple(sorted({c for d in self.devices for c in d.cores}))

    def sentence(self) -> str:
        """For people: "GPU 0 → cuda:0 rank 0"."""
        where = ", ".join(f"{d.label} → {d.torch}" for d in self.devices)
        return f"{where} rank {self.rank}" + (f" on {self.host}" if self.host else "")


@dataclass(frozen=True)
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
    unset: tuple[str, ...] = ()
    """Variables that it does not inherit: they would choose among its devices once more."""
    host: str | None = None
    """The machine that it is started on, as devices.hosts names it; None: this one."""


@dataclass(frozen=True)
class PartOf:
    """The run on several machines, or on another one, of which a run is this machine's part."""

    run: str
    """Its id."""
    machine: str
    """The machine that has started it."""


@dataclass(frozen=True)
class ResumeFrom:
    """The checkpoint that one attempt was told to go on from."""

    checkpoint: str
    """Its name."""
    attempt: int
    """For this attempt alone: a restart goes on from what that one saved."""


@dataclass(frozen=True)
class Sending:
    """What one host would be sent of the code."""

    host: str
    folder: str
    """Where the code would be there, or is."""
    there: bool
    files: int
    bytes: int

    def sentence(self) -> str:
        """For people: "gpu1: would be sent 3 files, 1.2 KiB, into /home/me/…/code/a1b2c3d4e5f6"."""
        if self.there:
            return f"{self.host}: has it, in {self.folder}"
        count = f"{self.files:,} file{'' if self.files == 1 else 's'}"
        return (f"{self.host}: would be sent {count}, {units.size(self.bytes)}, into "
                f"{self.folder}")


@dataclass(frozen=True)
class Code:
    """The code that a run's hosts are sent."""

    folder: str
    """Where it was read."""
    files: int
    bytes: int
    name: str
    """The hash of its paths, modes and contents."""
    sendings: tuple[Sending, ...] = ()
    """For a preview: what each host would be sent."""

    def sentence(self) -> str:
        """For people: "code: 42 files, 1.2 MiB (a1b2c3d4e5f6) from /home/me/project"."""
        return (f"code: {units.counted(self.files, 'file')}, {units.size(self.bytes)} "
                f"({self.name[:12]}) from {self.folder}")


@dataclass(frozen=True)
class Interpreter:
    """The interpreter that the ranks of a task run in."""

    path: str
    why: str
    """Why it was taken, for people: "run.python", "the .venv of /home/me/project"."""
    python: str | None = None
    """Its version; None: it is not known."""
    torch: str | None = None
    """Its torch's version, "2.13.0+cu130"; None: that is not known."""
    cuda: str | None = None
    """The CUDA that its torch was built for; None: none, or that is not known."""
    hip: str | None = None
    """The same of AMD's ROCm."""
    folder: str | None = None
    """The folder from which virtual environments were looked for."""

    def sentence(self) -> str:
        """For people: "/x/.venv/bin/python: Python 3.12.4, torch 2.13.0+cu130 for CUDA 13.0 (the
        .venv of /x)"."""
        told = [f"Python {self.python}"] if self.python else []
        told += [torch_words(self.torch, self.cuda, self.hip)] if self.torch else []
        return f"{self.path}: {', '.join(told) or 'not asked what it has'} ({self.why})"


@dataclass(frozen=True)
class LaunchPlan:
    """Everything that one node starts for one run. Its fields are given by name."""

    mode: str
    """The name of its record in `modes`."""
    device_type: Literal["cuda", "cpu"]
    source: str
    """The backend of its devices: a name in `devices.backends.registry.BACKENDS`."""
    world_size: int
    """Processes that train, over all nodes."""
    local_world_size: int
    batch: Batch
    lr: LearningRate
    spec: RunSpec
    name: str = ""
    backend: Literal["nccl", "gloo", "none"] = "none"
    nodes: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    """0: the supervisor takes a free one."""
    ranks: tuple[RankPlan, ...] = ()
    """Those of this node."""
    processes: tuple[Process, ...] = ()
    lines: tuple[str, ...] = ()
    """What a person would type, one line a node."""
    warnings: tuple[str, ...] = ()
    unit: str = "GPU"
    """What a replica runs on, for people: "GPU", "slot"."""
    id: str | None = None
    """The run's; None before there is a run folder."""
    cwd: str | None = None
    """The folder that the run was started in; None before there is a run folder."""
    copy: str | None = None
    """The copy of its code as it was at the submission, which the processes start in instead; None:
    it had not changed."""
    origin: str | None = None
    """The word of whoever on another machine asked for it; None: it was started here."""
    part_of: PartOf | None = None
    """None: it is a run of its own."""
    resume_from: ResumeFrom | None = None
    """None: every attempt goes on from the newest checkpoint that loads."""

    chosen: str | None = None
    """Which devices were chosen and why, for people: "on GPU 2: the freest of 8". None: they were
    named."""
    code: Code | None = None
    """What hosts are sent; None: nothing."""
    fits: str | None = None
    """The largest batch that `gpu-engine fit` has found for this, in words."""
    not_compared: str | None = None
    """For people: which code has to be on the hosts already and is not looked at there. None: it is
    sent, or is gpu-panel's own."""
    interpreter: Interpreter | None = None
    """What the ranks of a task run in here; None: the run is a person's own command, or is on
    hosts."""

    @property
    def replicas(self) -> int:
        """Copies of the model, over all nodes: under DataParallel more than processes."""
        return self.batch.replicas

    @property
    def whole(self) -> str:
        """The id of the run that people know: of the whole one, if this is a machine's part."""
        return self.part_of.run if self.part_of is not None else self.id or ""

    @property
    def stop_signal(self) -> signal.Signals:
        """What a stop sends first: a task saves at SIGTERM."""
        command = self.spec.task.command is not None
        return signal.Signals[self.spec.run.stop_signal] if command else signal.SIGTERM

    @property
    def on_hosts(self) -> bool:
        """Whether its ranks are on other machines: their process ids and device ids mean nothing
        on this one."""
        return any(r.host is not None for r in self.ranks)

    def sentences(self) -> list[str]:
        """Batch and learning rate for people. Of a person's own command no more than it is told:
        whatever else it trains with is its own affair."""
        command = self.spec.task.command
        if command is None:
            return [self.batch.sentence(self.unit), self.lr.sentence()]
        told, out = own_command.used(command), []
        whole = self.batch.accumulate == 1 or "batch.accumulate" in told
        if whole and not told.isdisjoint(("batch.per_gpu", "batch.global")):
            out.append(self.batch.sentence(self.unit))
        if "lr" in told:
            out.append(self.lr.sentence())
        if told and not out:
            out.append(f"your command is told {', '.join(sorted(told))}")
        return out or ["your command sets its own batch size and lr"]

    def for_people(self) -> LaunchPlan:
        """The plan as it is shown to others, without what looks like a secret."""
        return replace(self, spec=for_people(self.spec), processes=tuple(
            replace(p, env=shown_env(p.env), argv=tuple(shown_words(p.argv)))
            for p in self.processes))

    @property
    def runs_in(self) -> str:
        """The folder that the processes start in."""
        return self.copy or self.cwd or "/"

    def to_dict(self) -> dict[str, object]:
        """As plan.json holds it."""
        known: dict[str, object] = {
            name: value for name, value in asdict(self).items() if value is not None}
        return {"version": 1, "replicas": self.replicas} | known | {"spec": to_dict(self.spec)}

    @classmethod
    def from_dict(cls, data: object) -> LaunchPlan | None:
        """The plan in the dict of a plan.json, the inverse of `to_dict`. None if a field without a
        default is missing or has a wrong type. As another version, or a person, may have written
        it, unknown keys are ignored, and a value of a wrong type is replaced by the default."""
        if not isinstance(data, dict):
            return None
        data = data | {"spec": from_dict_leniently(data.get("spec"))}
        try:
            plan = read_record(cls, data)
        except ValueError:
            return None
        return plan if all(_LOG.fullmatch(p.log) for p in plan.processes) else None


