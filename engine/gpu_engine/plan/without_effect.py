"""Keys of the spec that have no effect where a run would be: by place, by mode, without another
key, outside of a sweep. One table for all that start runs. Only what a person has set counts, which
is another value than the default. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpu_engine.common.errors import Problem, SpecError
from gpu_engine.plan import own_command
from gpu_engine.spec import modes
from gpu_engine.spec.schema import RunSpec, keys

SLURM, BY_HAND = "slurm", "by hand"
"""A job of Slurm; and below a launcher of the person's own (torchrun, srun, `python -m
gpu_engine.worker`), where no supervisor of ours starts the ranks."""
_HERE, _HOSTS = "here", "hosts"


@dataclass(frozen=True)
class Place:
    """What has no effect at a place."""

    where: str
    """Follows "has no effect "."""
    instead: str | None
    """What to do in order to have it, but for leaving it out."""
    told: tuple[str, ...]
    """Keys that are left without effect, with a warning: a preset that has them goes on."""
    refused: tuple[str, ...] = ()
    """Keys without which the run would be another."""


_HELD = ("run.log_mb", "run.sync", "run.stop_worse", "devices.share", "devices.free_gib",
         "parallel.launcher")
_KEPT = ("run.metrics", "run.halving", "train.restarts", "train.hang_timeout")
PLACES = {
    _HERE: Place("on this machine", "name hosts in devices.hosts", ("run.sync", "run.host_wait")),
    _HOSTS: Place("with devices.hosts, whose order says it", None,
                  ("parallel.node_rank", "parallel.node_devices")),
    SLURM: Place("on Slurm, which chooses nodes and devices", None,
                 ("run.sync", "run.host_wait", "devices.share", "devices.free_gib",
                  "parallel.node_rank", "parallel.node_devices", "parallel.master_addr")),
    BY_HAND: Place("below {by}, where nothing supervises the ranks", "start it by gpu-engine run",
                   (*_HELD, "run.python"), ("devices.hosts", "run.limit", "run.give_way", *_KEPT))}
"""By place; what is in none of these rows has its effect everywhere."""
NEEDS = {"run.limit_from": "run.limit", "run.host_wait": "train.restarts",
         "train.lr_reference_batch": "train.lr_scale", "run.give_way_after": "run.give_way",
         "run.give_way_back": "run.give_way", "run.give_way_again": "run.give_way",
         "run.asha": "run.halving"}
"""Keys that change another one, and have no effect without it."""
_NO_ROOM = {
    _HERE: "a run makes room from the queue, in which it then waits again: add --queue (in the "
           "panel Q)",
    _HOSTS: "a run makes room in the queue of its own machine: queue it there, or leave this out",
    SLURM: "on Slurm a job makes room by its QOS, where that is preempted with REQUEUE: leave this "
           "out, and take -o qos=…"}
IN_SWEEP = ("run.stop_worse", "run.halving", "run.asha")


def refused(spec: RunSpec, place: str, *, by: str = "") -> list[Problem]:
    """The problems with a spec at such a place. `by`: what starts the ranks there."""
    at = PLACES[place]
    return [Problem(key, _value(spec, key), f"has no effect {at.where.format(by=by)}: "
                                            f"{_cure('it', at.instead)}")
            for key in at.refused if _is_set(spec, key)]


def no_room(spec: RunSpec, place: str | None = None) -> list[Problem]:
    """The problem of a run that is to make room for others where it can't. `place`: as for
    `told`."""
    place = place or (_HERE if spec.devices.hosts is None else _HOSTS)
    return [Problem("run.give_way", True, _NO_ROOM[place])] if spec.run.give_way else []


def told(spec: RunSpec, place: str | None = None, *, by: str = "", in_sweep: bool = False
         ) -> tuple[str, ...]:
    """A warning for each reason why keys have no effect. `place`: SLURM, BY_HAND; None: as the spec
    says. `in_sweep`: it is compared with others."""
    place = place or (_HERE if spec.devices.hosts is None else _HOSTS)
    at, out, named = PLACES[place], list[str](), set[str]()

    def tell(found: Iterable[str], where: str, instead: str | None = None) -> None:
        names = [key for key in found if key not in named and _is_set(spec, key)]
        named.update(names)  # each once, by its first reason
        if names:
            many, it = ("have", "them") if len(names) > 1 else ("has", "it")
            out.append(f"{', '.join(names)} {many} no effect {where}: {_cure(it, instead)}")

    tell(at.told, at.where.format(by=by), at.instead)
    if place == _HOSTS and _other_nodes(spec):
        tell(["parallel.nodes"], "with devices.hosts, each of which is a node",
             "name so many hosts")
    tell(*_outside_of_mode(spec, place))
    tell(_unheard(spec), "on this command", "set it in your script")
    for key, other in NEEDS.items():
        if not _is_set(spec, other):
            tell([key], f"without {other}", f"set {other} too")
    if not in_sweep:
        tell(IN_SWEEP, "outside of a sweep", "make one by --grid or --repeat")
    return tuple(out)


def _cure(it: str, instead: str | None) -> str:
    return f"leave {it} out" + (f", or {instead}" if instead is not None else "")


def _value(spec: RunSpec, key: str) -> object:
    section, _, name = key.partition(".")
    return getattr(getattr(spec, section), name)


def _is_set(spec: RunSpec, key: str) -> bool:
    return _value(spec, key) != keys()[key].default


def _other_nodes(spec: RunSpec) -> bool:
    """Whether it asks for another number of nodes than it names hosts. On one host the preset
    multinode, whose nodes are two, means no other."""
    hosts = 1 if spec.devices.pick is not None else len(spec.devices.hosts or ())
    return spec.parallel.nodes != hosts and (
        hosts > 1 or not modes.get(spec.parallel.mode).several_nodes)


def _outside_of_mode(spec: RunSpec, place: str) -> tuple[list[str], str]:
    """The keys of [parallel] that are for other modes, and which ones."""
    name, hosts = spec.parallel.mode, spec.devices.hosts
    if hosts is not None and spec.devices.pick is None and place != SLURM:
        try:
            name = modes.over_hosts(len(hosts), name)
        except SpecError:  # refused for that
            return [], ""
    mode = modes.get(name)
    found = [key for key in keys() if not mode.applies(key) and _is_set(spec, key)
             and not (key == "parallel.nodes" and hosts)]  # the preset multinode, on one host
    able = [m.name for m in modes.every() if all(map(m.applies, found))]
    return found, f"in mode {name}, only in {' and '.join(able)}"


def _unheard(spec: RunSpec) -> Iterator[str]:
    """The keys of [parallel] that a command of one's own is not started by."""
    command, p = spec.task.command, spec.parallel
    if not command:
        return
    itself = own_command.launches_itself(command)
    auto = modes.get(p.mode).launcher if spec.devices.hosts is None else "direct"
    if itself or (auto if p.launcher == "auto" else p.launcher) != "torchrun":
        yield "parallel.timeout"
    if itself:
        yield "parallel.launcher"
        if "master_port" not in own_command.used(command):
            yield "parallel.master_port"
