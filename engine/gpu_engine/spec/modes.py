"""The modes in which a run trains: one record each, in one registry. Standard library only.

Spec, plan, command line, screen and rank ask the record for what they need to know about a mode;
nothing compares names. The record names the mode's strategy, the class that does the torch side
(`training/strategies`). To add a mode, add its record at the end of this file and write its
strategy, or name an existing one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpu_engine.common.errors import Problem, SpecError

_KEY = "parallel.mode"
MEETING_PORT = 29500
"""Where the ranks of several machines meet unless another is named, as with torchrun."""


@dataclass(frozen=True)
class Mode:
    """One mode: its names, its ranks and replicas, what it needs, how it is launched."""

    name: str
    """The value of parallel.mode."""
    label: str
    """Its name for people."""
    short: str
    """The same for narrow places."""
    help: str
    """A few words on what it does, for the form."""
    strategy: str
    """The strategy's class, as module:Class; see `training/strategies`."""

    process_a_device: bool
    """True: each device has its own rank, and the ranks form a process group. False: one process
    uses all devices."""
    replica_a_device: bool
    """True: a step's examples are divided among the devices. False: they are not divided."""
    scheme: str = ""
    """What stands before the number of replicas in a run's heading ("DDP×4"); empty: `short`."""
    several_nodes: bool = False
    """Whether it runs on `parallel.nodes` machines, which meet at `parallel.master_addr`."""

    needs_gpus: bool = False
    """Whether it can't run on CPU slots."""
    most_devices: int | None = None
    """How many devices of a node it can use; None: any number."""

    keys: frozenset[str] = frozenset()
    """The keys of [parallel], besides mode, that have a meaning in it."""
    launcher: Literal["direct", "torchrun"] = "direct"
    """What parallel.launcher = "auto" stands for: the supervisor starts the ranks itself, or
    torchrun does. One process needs no launcher."""
    port: int = 0
    """The rendezvous port if parallel.master_port is not set; 0: any free port."""

    def applies(self, key: str) -> bool:
        """Whether a key of the spec ("parallel.nodes") has a meaning in this mode."""
        section, _, name = key.partition(".")
        return section != "parallel" or name == "mode" or name in self.keys

    def nodes(self, given: int) -> int:
        """How many machines take part. `given`: the value of `parallel.nodes`."""
        return given if self.several_nodes else 1

    def node_rank(self, given: int) -> int:
        """The number of this machine. `given`: the value of `parallel.node_rank`."""
        return given if self.several_nodes else 0

    def local_processes(self, devices: int) -> int:
        """How many ranks run on a node that has `devices` devices for the run."""
        return devices if self.process_a_device else 1

    def replicas(self, devices: int, nodes: int) -> int:
        """Among how many replicas a step's examples are divided, with `devices` on each node."""
        return devices * self.nodes(nodes) if self.replica_a_device else 1

    def shape(self, replicas: object, nodes: object) -> str:
        """The mode as a run's heading shows it: "single", "DP×2", "DDP×8 on 2 nodes"."""
        if not self.replica_a_device:
            return self.short
        where = f" on {nodes} nodes" if self.several_nodes else ""
        return f"{self.scheme or self.short}×{replicas}{where}"


_MODES: dict[str, Mode] = {}


def register(mode: Mode) -> Mode:
    """Add `mode` to the registry and return it. Raises ValueError if the name is taken."""
    if mode.name in _MODES:
        raise ValueError(f"there is a mode {mode.name!r} already")
    _MODES[mode.name] = mode
    return mode


def names() -> tuple[str, ...]:
    """The values that parallel.mode accepts, in the order in which people see them."""
    return tuple(_MODES)


def every() -> tuple[Mode, ...]:
    """All modes, in the same order."""
    return tuple(_MODES.values())


def find(name: object) -> Mode | None:
    """The mode of that name; None if this version has none. For values from disk, which another
    version may have written."""
    return _MODES.get(name) if isinstance(name, str) else None


def get(name: str) -> Mode:
    """The mode of that name. Raises SpecError if there is none."""
    mode = _MODES.get(name)
    if mode is None:
        raise SpecError([Problem(_KEY, name, "there is no such mode; there are "
                                             + ", ".join(_MODES))])
    return mode


def over_hosts(hosts: int, chosen: str) -> str:
    """The name of the mode in which a run on so many `devices.hosts` trains if `chosen` was asked
    for: several are a node each, and one is no reason for several nodes. Raises SpecError."""
    mode = get(chosen)
    if hosts > 1 and not mode.several_nodes:
        if mode.replica_a_device and not mode.process_a_device:
            raise SpecError([Problem(_KEY, mode.name, f"{mode.label} stays on one machine; over "
                                                      f"{hosts} hosts take multinode")])
        return next(m.name for m in every() if m.several_nodes)
    if hosts == 1 and mode.several_nodes:
        return next(m.name for m in every() if m.process_a_device and not m.several_nodes)
    return chosen


def over_devices(devices: int, chosen: str) -> str:
    """The name of the mode in which a run on so many devices can train: that which was `chosen`,
    unless it can't use so many. Raises SpecError."""
    most = get(chosen).most_devices
    if most is None or devices <= most:
        return chosen
    return next(m.name for m in every() if m.process_a_device and not m.several_nodes)


_RANKS = frozenset({"master_port", "backend", "launcher", "timeout", "bucket_cap_mb",
                    "static_graph", "find_unused"})
_NODES = frozenset({"nodes", "node_rank", "master_addr", "node_devices"})
_DDP = "gpu_engine.training.strategies:Distributed"

register(Mode(
    name="single", label="single", short="single", help="one device",
    strategy="gpu_engine.training.strategies:Strategy",
    process_a_device=False, replica_a_device=False, most_devices=1))
register(Mode(
    name="dp", label="DataParallel", short="DP", help="one process, all ticked devices",
    strategy="gpu_engine.training.strategies:DataParallel",
    process_a_device=False, replica_a_device=True, needs_gpus=True))
register(Mode(
    name="ddp", label="DDP", short="DDP", help="one process a device", strategy=_DDP,
    process_a_device=True, replica_a_device=True, keys=_RANKS))
register(Mode(
    name="multinode", label="multi-node", short="multi-node", scheme="DDP",
    help="DDP over machines", strategy=_DDP,
    process_a_device=True, replica_a_device=True, several_nodes=True, keys=_RANKS | _NODES,
    launcher="torchrun", port=MEETING_PORT))
