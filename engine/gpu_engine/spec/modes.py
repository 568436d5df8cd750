"""The modes in which a run trains: one record each, in one registry. Standard library only.

Spec, plan, command line, screen and rank ask the record what they need to know of a mode, and
compare no names. What torch does in a mode is its strategy, a class that the record names; see
`training/strategies`. To add a mode, add its record at the end of this file and write its strategy
(or name one that there is).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpu_engine.common.errors import Problem, SpecError

_KEY = "parallel.mode"


@dataclass(frozen=True)
class Mode:
    """One mode: what it is called, what follows from it, what it needs, how it is launched."""

    name: str
    """The value of parallel.mode."""
    label: str
    """Its name for people."""
    short: str
    """The same where there is little room."""
    help: str
    """A few words on what it does, for the form."""
    strategy: str
    """The class that does it in a rank, as module:Class; see `training/strategies`."""

    process_a_device: bool
    """Each device has a rank of its own, and the ranks form a process group; otherwise one process
    uses all devices."""
    replica_a_device: bool
    """Each device sees its own share of a step's examples; otherwise one share is all there is."""
    scheme: str = ""
    """What stands before the number of replicas in a run's heading ("DDP×4"); empty: `short`."""
    several_nodes: bool = False
    """It runs on `parallel.nodes` machines, which meet at `parallel.master_addr`."""

    needs_gpus: bool = False
    most_devices: int | None = None
    """Devices that it can use on a node; None: any number."""

    keys: frozenset[str] = frozenset()
    """The keys of [parallel], besides mode, that mean something in it."""
    launcher: Literal["direct", "torchrun"] = "direct"
    """What parallel.launcher = "auto" means: the supervisor starts the ranks itself, or torchrun
    does. One process needs no launcher."""
    port: int = 0
    """The rendezvous port where parallel.master_port names none; 0: any free one."""

    def applies(self, key: str) -> bool:
        """Whether a key of the spec ("parallel.nodes") means something in this mode."""
        section, _, name = key.partition(".")
        return section != "parallel" or name == "mode" or name in self.keys

    def nodes(self, asked: int) -> int:
        """Machines that take part, where `parallel.nodes` is `asked`."""
        return asked if self.several_nodes else 1

    def node_rank(self, asked: int) -> int:
        """Which machine this one is, where `parallel.node_rank` is `asked`."""
        return asked if self.several_nodes else 0

    def local_processes(self, devices: int) -> int:
        """Ranks of a node that has so many devices for the run."""
        return devices if self.process_a_device else 1

    def replicas(self, devices: int, nodes: int) -> int:
        """Shares into which a step's examples are divided: `devices` on each of `nodes`."""
        return devices * self.nodes(nodes) if self.replica_a_device else 1

    def shape(self, replicas: object, nodes: object) -> str:
        """How a run's heading says it: "single", "DP×2", "DDP×8 on 2 nodes"."""
        if not self.replica_a_device:
            return self.short
        where = f" on {nodes} nodes" if self.several_nodes else ""
        return f"{self.scheme or self.short}×{replicas}{where}"


_MODES: dict[str, Mode] = {}


def register(mode: Mode) -> Mode:
    """Add `mode` to the registry. Raises ValueError where the name is taken."""
    if mode.name in _MODES:
        raise ValueError(f"there is a mode {mode.name!r} already")
    _MODES[mode.name] = mode
    return mode


def names() -> tuple[str, ...]:
    """The values that parallel.mode takes, in the order in which people see them."""
    return tuple(_MODES)


def every() -> tuple[Mode, ...]:
    """All modes, in the same order."""
    return tuple(_MODES.values())


def find(name: object) -> Mode | None:
    """The mode of that name; None where this version knows none: what is on disk may come from
    another version."""
    return _MODES.get(name) if isinstance(name, str) else None


def get(name: str) -> Mode:
    """The mode of that name. Raises SpecError where there is none."""
    mode = _MODES.get(name)
    if mode is None:
        raise SpecError([Problem(_KEY, name, "there is no such mode; there are "
                                             + ", ".join(_MODES))])
    return mode


_RANKS = frozenset({"master_port", "backend", "launcher", "timeout", "bucket_cap_mb",
                    "static_graph", "find_unused"})
_NODES = frozenset({"nodes", "node_rank", "master_addr", "node_devices"})
_DDP = "gpu_engine.training.strategies.distributed:Distributed"

register(Mode(
    name="single", label="single", short="single", help="one device",
    strategy="gpu_engine.training.strategies.single:Single",
    process_a_device=False, replica_a_device=False, most_devices=1))
register(Mode(
    name="dp", label="DataParallel", short="DP", help="one process, several GPUs",
    strategy="gpu_engine.training.strategies.data_parallel:DataParallel",
    process_a_device=False, replica_a_device=True, needs_gpus=True))
register(Mode(
    name="ddp", label="DDP", short="DDP", help="one process a device", strategy=_DDP,
    process_a_device=True, replica_a_device=True, keys=_RANKS))
register(Mode(
    name="multinode", label="multi-node", short="multi-node", scheme="DDP",
    help="DDP over machines", strategy=_DDP,
    process_a_device=True, replica_a_device=True, several_nodes=True, keys=_RANKS | _NODES,
    launcher="torchrun", port=29500))
