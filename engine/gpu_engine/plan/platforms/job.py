"""What a platform is asked to run: the part of a plan that does not depend on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_engine.common.errors import Problem, SpecError
from gpu_engine.devices.records import Device
from gpu_engine.plan import own_command
from gpu_engine.plan.batch import ranks_a_node
from gpu_engine.plan.processes import placeholders
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.spec import modes
from gpu_engine.spec.schema import DevicesSpec, RunSpec
from gpu_engine.spec.write import differences

_HERE = "\0"
"""Holds the place of torchrun's options in an argument list; no argument can hold it."""


@dataclass(frozen=True, slots=True)
class Job:
    """One node's command and what it needs; all nodes are alike."""

    name: str
    """A DNS label: small letters, digits and dashes."""
    nodes: int
    gpus: int
    """On each node; 0: it runs on the processor."""
    model: str | None
    """The GPUs' name by their driver; None on the processor."""
    slots: int
    """CPU slots of each node; 0 with GPUs."""
    processes: int
    """Ranks on each node."""
    before: tuple[str, ...]
    """The argument list; of a rank that several nodes share, the part before the options with
    which torchrun finds the other nodes."""
    behind: tuple[str, ...] = ()
    """The part after them."""
    meets: bool = False
    """Whether there are such options between the two."""
    port: int = 0
    """Where nodes meet, on node 0."""
    timeout: int = 0
    """Seconds that torchrun waits for the other nodes."""
    env: Mapping[str, str] | None = None
    notes: tuple[str, ...] = ()
    """What a person should know before this is started, a sentence or two each."""


def refuse(spec: RunSpec) -> None:
    """Raise SpecError for what no platform can be asked for, before this machine is looked at."""
    problems = []
    if spec.devices.hosts is not None:
        problems.append(Problem("devices.hosts", spec.devices.hosts,
                                "a platform chooses the machines itself; name devices of this one "
                                "(devices.pick) and parallel.nodes"))
    told = spec.parallel.node_devices
    if told and len(set(told)) > 1:
        problems.append(Problem("parallel.node_devices", told,
                                "all nodes of a platform's job have the same number of devices"))
    command = spec.task.command or []
    if "run.dir" in own_command.used(command):
        problems.append(Problem("task.command", "{run.dir}",
                                "there is no run folder on a platform; name a folder there"))
    if spec.parallel.nodes > 1 and "node_rank" in own_command.used(command):
        problems.append(Problem("task.command", "{node_rank}",
                                "every node gets the same command; torchrun tells it the node's "
                                "number in GROUP_RANK"))
    if problems:
        raise SpecError(problems)


def job(plan: LaunchPlan, devices: Sequence[Device]) -> Job:
    """The job of a plan that was made for `devices`, those of this machine. Raises SpecError for
    what can't be asked for."""
    refuse(plan.spec)
    used = {d.id for r in plan.ranks for d in r.devices}
    mine = [d for d in devices if d.id in used]
    cpu = plan.device_type == "cpu"
    _refuse_devices(plan, mine)
    count = len(mine)
    out = Job(name=_label(plan.name), nodes=plan.nodes, gpus=0 if cpu else count,
              model=None if cpu else mine[0].name, slots=count if cpu else 0,
              processes=plan.local_world_size, before=(), port=plan.master_port,
              timeout=max(int(plan.spec.parallel.timeout), 1))
    out = _with_command(out, plan)
    return replace(out, env=_environment(plan), notes=tuple(_notes(plan, out)))


def _refuse_devices(plan: LaunchPlan, mine: Sequence[Device]) -> None:
    ids = plan.spec.devices.ids
    problems = []
    if any(d.is_slice for d in mine):
        problems.append(Problem("devices.ids", ids, "slices of a GPU can't be asked for there; "
                                                    "choose whole GPUs"))
    if len({d.name for d in mine if not d.is_cpu}) > 1:
        problems.append(Problem("devices.ids", ids, "a job has GPUs of one model; here are "
                                + ", ".join(sorted({d.name for d in mine}))))
    if modes.get(plan.mode).process_a_device and len(mine) < plan.local_world_size:
        problems.append(Problem("devices.ids", ids, "each rank gets a GPU of its own there; name "
                                                    "each once"))
    if problems:
        raise SpecError(problems)


def _with_command(out: Job, plan: LaunchPlan) -> Job:
    """As `command_line.lines`, without the names of this machine's presets and devices."""
    spec, command = plan.spec, plan.spec.task.command
    python = spec.run.python or "python"
    if command is None and plan.nodes == 1:
        return replace(out, before=(python, "-m", "gpu_engine", "run", *_sets(_placed(plan))))
    if command is None:
        argv: Sequence[str] = (python, "-m", "gpu_engine.worker", *_sets(_placed(plan)))
    else:
        argv = own_command.fill(command, placeholders(plan))
        if not modes.get(plan.mode).process_a_device or own_command.launches_itself(command):
            return replace(out, before=tuple(argv))
    if plan.nodes == 1:
        return replace(out, before=own_command.under_torchrun(
            argv, ("--standalone", f"--nproc-per-node={ranks_a_node(spec, out.processes)[0]}")))
    whole = own_command.under_torchrun(argv, (_HERE,))
    cut = whole.index(_HERE)
    return replace(out, before=whole[:cut], behind=whole[cut + 1:], meets=True)


def _placed(plan: LaunchPlan) -> RunSpec:
    """The spec without this machine's device ids and its place among the nodes."""
    spec, fresh = plan.spec, RunSpec().parallel
    used = [d.id for r in plan.ranks for d in r.devices]
    share = spec.devices.share
    if plan.device_type == "cpu":
        devices = DevicesSpec(ids=used, share=share)
    elif plan.nodes == 1:
        devices = DevicesSpec(pick=len(used), share=share)
    else:
        devices = DevicesSpec()
    return replace(spec, devices=devices, parallel=replace(
        spec.parallel, node_rank=fresh.node_rank, master_addr=fresh.master_addr,
        master_port=fresh.master_port, node_devices=None))


def _sets(spec: RunSpec) -> list[str]:
    return [word for one in differences(RunSpec(), spec) for word in ("--set", one)]


def _environment(plan: LaunchPlan) -> dict[str, str]:
    """Output at once, the number of threads that the plan gives the command, and run.env."""
    threads = {k: v for p in plan.processes for k, v in p.env.items() if k == "OMP_NUM_THREADS"}
    own = plan.spec.task.command is not None
    return {"PYTHONUNBUFFERED": "1"} | (threads if own else {}) | plan.spec.run.env


def _notes(plan: LaunchPlan, out: Job) -> list[str]:
    spec = plan.spec
    notes = [f"{plan.name}: {plan.mode}, {plan.nodes} "
             f"{'node' if plan.nodes == 1 else 'nodes'}, world size {plan.world_size}",
             *plan.sentences()]
    if spec.task.command is None:
        notes.append("The image there needs torch and gpu-panel. Runs and checkpoints are kept "
                     "below GPU_PANEL_HOME; set it to a disk that lasts.")
    else:
        notes.append("The command runs as it is: gpu-panel need not be there, and does not "
                     "observe it.")
    if out.gpus:
        used = ", ".join(d.id for r in plan.ranks for d in r.devices)
        notes.append(f"Planned with GPU {used}; which ones are used is the platform's choice.")
    if out.slots:
        notes.append("Planned on CPU slots: no GPU is asked for. Ranks are not bound to cores of "
                     "their own there.")
    alone = spec.task.command is not None or plan.nodes > 1
    kept = [f"train.{k}" for k in ("restarts", "hang_timeout") if getattr(spec.train, k)]
    if alone and kept:
        notes.append(f"Not done there, as no supervisor of gpu-panel runs: {', '.join(kept)}.")
    return notes


def _label(name: str) -> str:
    """A name that both platforms take: a DNS label of at most 40 characters, as Kubernetes adds
    to it."""
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower())
    parts = "-".join(p for p in plain.split("-") if p)
    label = parts if parts[:1].isalpha() else f"run-{parts}"
    return label[:40].rstrip("-")
