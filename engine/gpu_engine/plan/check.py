"""Checks a spec against a machine: which devices it uses, the resulting batch, and everything that
does not fit. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpu_engine.common.errors import Problem, SpecError
from gpu_engine.devices.backends import registry
from gpu_engine.devices.backends.visible import hides_all
from gpu_engine.devices.records import Device, Inventory
from gpu_engine.plan import own_command
from gpu_engine.plan.batch import (
    Batch,
    Layout,
    backend_of,
    batch_of,
    batch_untold,
    layout_of,
    nearest_batches,
    replicas_of,
)
from gpu_engine.spec import modes
from gpu_engine.spec.host_names import HostDevices
from gpu_engine.spec.schema import RunSpec, parse_best, parse_metrics, parse_steps

_MOST_STEPS = 1 << 53
"""Beyond it a step is no exact number in the events."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A spec that was checked against a machine's devices."""

    spec: RunSpec
    devices: tuple[Device, ...]
    """Those that it uses, in the order of the spec."""
    source: str
    """The backend that they come from."""
    layout: Layout
    batch: Batch | None
    """None if a problem keeps it from being worked out."""
    problems: tuple[Problem, ...]
    """Everything that does not fit; empty if all does."""


def check(spec: RunSpec, inventory: Inventory, layout: Layout | None = None) -> Checked:
    """Work out devices, layout and batch of `spec` on this machine, and everything in it that does
    not fit together or does not fit the machine.

    layout: given for a rank that a person's own launcher has started; `inventory` then holds the
    devices that the launcher has made visible. None: gpu-panel starts the ranks, and the layout
    follows from the devices.
    """
    if layout is None:
        devices, problems = chosen_devices(spec, inventory)
        layout = layout_of(spec, len(devices))
        problems += _check_task(spec)
        if devices:
            problems += _check_mode(spec, devices)
            problems += _check_said(spec, inventory, devices)
        problems += _check_nodes(spec, len(devices)) + _check_launcher(spec, layout.nodes)
        problems += own_command.check_heard(spec)
    else:
        devices, problems = list(inventory.devices), _check_launched(spec, layout)
        problems += _check_kind(spec, devices)
    problems += _check_environment(spec) + _check_sbatch(spec)
    if devices and devices[0].is_cpu and spec.amp.dtype == "fp16" \
            and _has_effect(spec, "amp.dtype"):
        problems.append(Problem("amp.dtype", "fp16", "fp16 needs a GPU; on CPU take bf16 or off",
                                "amp.dtype=bf16"))
    batch = None
    # With other devices or another mode the arithmetic would be of a run that nobody meant.
    if devices and not any(p.key.startswith(("devices", "parallel")) for p in problems):
        replicas = replicas_of(spec, layout, len(devices))
        batch = batch_of(spec, replicas)
        # What divides unevenly is a problem where it reaches what runs, be it by a scaled rate.
        if batch is None and (_scaled(spec) or _has_effect(spec, "batch.meaning")):
            below, above = nearest_batches(spec.batch.size, replicas * spec.batch.accumulate)
            parts = f"{replicas} replicas" if replicas > 1 else "1 replica"
            if spec.batch.accumulate > 1:
                parts += f" × {spec.batch.accumulate} accumulation steps"
            problems.append(Problem(
                "batch.size", spec.batch.size,
                f"a global batch must divide by {parts}; {below} or {above} would",
                f"batch.size={below} or batch.size={above}"))
        elif batch is None:
            batch = batch_untold(spec, replicas)
    problems += [Problem(f"train.{name}", many, f"at most {_MOST_STEPS:,} are counted")
                 for name in ("steps", "epochs")
                 if (many := getattr(spec.train, name) or 0) > _MOST_STEPS]
    if _scaled(spec) and spec.train.lr_reference_batch is None:
        problems.append(Problem("train.lr_reference_batch", None,
                                f"lr_scale = \"{spec.train.lr_scale}\" needs the global batch "
                                "that lr was chosen for"))
    parsed: list[Callable[[], object]] = [lambda: parse_best(spec.run.best, "run.best"),
                                           lambda: parse_metrics(spec.run.metrics)]
    if spec.task.command is None:
        # These have no effect on a command; `without_effect` says so.
        parsed += [lambda: parse_best(spec.train.best), lambda: parse_steps(spec.train.skip_steps)]
    for parse in parsed:
        try:
            parse()
        except SpecError as err:
            problems += err.problems
    return Checked(spec, tuple(devices), inventory.source, layout, batch, tuple(problems))


def _has_effect(spec: RunSpec, key: str) -> bool:
    """Whether this key reaches what trains: always with a task, through placeholders with a
    person's own command."""
    return own_command.is_told(spec.task.command, key)


def _scaled(spec: RunSpec) -> bool:
    return spec.train.lr_scale != "none" and _has_effect(spec, "train.lr")


def _check_task(spec: RunSpec) -> list[Problem]:
    task = spec.task
    if task.use is None and task.command is None:
        return [Problem("task.use", None, "name a task (module:Class or path/to/file.py:Class), "
                                          "or give your own command in task.command")]
    if task.command is not None and not task.command:
        return [Problem("task.command", [], "the command is empty")]
    if task.command is None:
        return []
    found = own_command.check(task.command)
    told = own_command.used(task.command)
    if spec.train.steps is None and "steps" in told and "epochs" not in told:
        found.append(Problem("train.steps", None, "say how many: the command has {steps}"))
    return found


def _check_said(spec: RunSpec, inventory: Inventory, devices: Sequence[Device]) -> list[Problem]:
    """The problems of a command that takes other devices than the run, whatever its environment
    lists."""
    ours = registry.environment(inventory.source, devices)
    here, out = ", ".join(d.label for d in devices), []
    for variable, written, names in own_command.said(spec.task.command or ()).devices:
        found = [d.id for d in map(inventory.find, map(str.strip, names.split(","))) if d]
        none = hides_all(names)
        same = none if devices[0].is_cpu else \
            spec.devices.ids is not None and set(found) == {d.id for d in devices}
        if variable not in ours or same:
            continue
        cure = f" and take them by --devices {names} (in the panel, tick them)" if found else \
            " and take the processor by --devices cpu:0 (in the panel, c)" if none else ""
        out.append(Problem("task.command", written, f"the run has {here}, and its command would "
                                                    f"use other devices: leave this out{cure}"))
    return out


def _check_launcher(spec: RunSpec, nodes: int) -> list[Problem]:
    """The problem of a command that starts its own ranks on several machines, and does not tell
    them of each other: each would train alone."""
    command = spec.task.command or ()
    name = own_command.launcher(command)
    # What stands behind the script is told to the script, and not to its launcher.
    told = tuple(itertools.takewhile(lambda word: not word.endswith(".py"), command))
    if nodes < 2 or name is None or "node_rank" in own_command.used(told):
        return []
    instead = "name what it starts" if own_command.in_shell(command) else "leave it out"
    return [Problem("task.command", None,
                    f"{name} would start a training of its own on each of {nodes} machines: "
                    f"{instead} (the ranks are started here), or write "
                    "{nodes}, {node_rank}, {master_addr}, {master_port}")]


def names_none(spec: RunSpec) -> bool:
    """Whether a spec leaves it open which devices it uses, and how many."""
    d = spec.devices
    return d.ids is None and d.pick is None and d.hosts is None


def chooses_host(spec: RunSpec) -> bool:
    """Whether one of several machines is to be chosen for it."""
    d = spec.devices
    return d.hosts is not None and (
        d.pick is not None or any(HostDevices(host).several for host in d.hosts))


def counted(spec: RunSpec) -> RunSpec:
    """`spec` with `devices.pick` = 1 where it names no devices and its mode takes one. The other
    modes then take all that are free."""
    one = (names_none(spec) or (chooses_host(spec) and spec.devices.pick is None)) \
        and modes.get(spec.parallel.mode).most_devices == 1
    return replace(spec, devices=replace(spec.devices, pick=1)) if one else spec


def _offered(inventory: Inventory) -> str:
    """The ids of a machine's devices, in words, and what hides others: "GPU 0" is not to be read
    as no GPU."""
    ids = ", ".join(d.id for d in inventory.devices) or "no devices"
    what = "" if inventory.is_cpu or not inventory.devices else \
        "GPU " if len(inventory.devices) == 1 else "GPUs "
    visible = inventory.inherited_visible
    why = "" if visible is None or inventory.is_cpu else \
        f', as {inventory.visible_variable} is "{visible}"'
    return what + ids + why


def chosen_devices(spec: RunSpec, inventory: Inventory) -> tuple[list[Device], list[Problem]]:
    """The devices that `spec` names, in its order, and what is wrong with them (then none)."""
    spec = counted(spec)
    ids = spec.devices.ids
    offered = _offered(inventory)
    if not ids:
        if spec.devices.pick or (names_none(spec) and inventory.devices):
            have = len(inventory.devices)
            if (spec.devices.pick or 0) > have:
                return [], [Problem("devices.pick", spec.devices.pick,
                                    f"at most {have} can be taken: {offered}",
                                    f"devices.pick={have}")]
            return list(inventory.devices[:spec.devices.pick]), []
        return [], [Problem("devices.ids", ids,
                            f"choose at least one device; this machine has {offered}")]
    found, problems = [], []
    if spec.devices.free_gib is not None:
        problems.append(Problem("devices.free_gib", spec.devices.free_gib,
                                "goes with devices.pick, which says how many devices to take"))
    for name in ids:
        device = inventory.find(name)
        if device is None and name.startswith("cpu:") and not inventory.is_cpu:
            problems.append(Problem("devices.ids", name,
                                    "CPU slots and GPUs can't train together"))
        elif device is None and inventory.is_cpu and not name.startswith("cpu:"):
            slots = ",".join(d.id for d in inventory.devices[:len(ids)])
            problems.append(Problem("devices.ids", ids,
                                    "this machine has no GPU that can be used"
                                    + (f" ({inventory.problem})" if inventory.problem else "")
                                    + f", only its processor: --devices {slots}, or -n "
                                    f"{min(len(ids), len(inventory.devices))} for the freest of "
                                    f"{offered}", f"devices.ids={slots}"))
            break  # of all others the same would be said
        elif device is None:
            problems.append(Problem("devices.ids", name,
                                    f"there is no such device; this machine has {offered}"))
        else:
            found.append(device)
    return ([] if problems else found), problems


def _check_launched(spec: RunSpec, layout: Layout) -> list[Problem]:
    """The problems for a rank that a person's own launcher has started. The launcher decides how
    many ranks there are and where, not the spec."""
    out = _check_task(spec)
    if not out and spec.task.command is not None:
        out.append(Problem("task.use", None, "name a task; a command of your own needs no "
                                             "gpu_engine.worker"))
    mode = modes.get(spec.parallel.mode)
    if layout.world_size > 1 and not mode.process_a_device:
        out.append(Problem("parallel.mode", mode.name,
                           f"is one process, but {layout.launched_by} started "
                           f"{layout.world_size}; add --set parallel.mode=ddp"))
    return out


def _check_kind(spec: RunSpec, devices: Sequence[Device]) -> list[Problem]:
    """The problems for what this kind of device can't do."""
    p, mode, out = spec.parallel, modes.get(spec.parallel.mode), []
    if devices[0].is_cpu and mode.needs_gpus and spec.task.command is None:
        out.append(Problem("parallel.mode", mode.name,
                           f"{mode.label} needs GPUs; on CPU slots take ddp", "parallel.mode=ddp"))
    if devices[0].is_cpu and p.backend == "nccl":
        out.append(Problem("parallel.backend", "nccl", "nccl needs GPUs; on CPU take gloo or auto",
                           "parallel.backend=gloo"))
    return out


def _check_mode(spec: RunSpec, devices: Sequence[Device]) -> list[Problem]:
    p, n = spec.parallel, len(devices)
    mode = modes.get(p.mode)
    cpu = devices[0].is_cpu
    out = _check_kind(spec, devices)
    repeated = n != len({d.id for d in devices})
    backend = backend_of(spec, cpu=cpu)
    if mode.most_devices is not None and n > mode.most_devices:
        most = "one device" if mode.most_devices == 1 else f"at most {mode.most_devices} devices"
        but = "one" if mode.most_devices == 1 else str(mode.most_devices)
        command, other = spec.task.command, "the mode ddp"
        if command and not own_command.launches_itself(command):
            other = "a mode: --mode ddp starts your command once for each, --mode dp once with " \
                    "all of them (it may start its own ranks)"
        out.append(Problem("parallel.mode", p.mode,
                           f"{mode.label} trains on {most} and {n} are chosen; "
                           f"choose {but}, or {other}", "parallel.mode=ddp"))
    elif mode.needs_gpus and cpu and spec.task.command is None:
        pass  # said already
    elif not mode.process_a_device and repeated:
        out.append(Problem("devices.ids", spec.devices.ids,
                           f"{mode.label} takes each GPU once"))
    elif not mode.process_a_device and n > 1 and any(d.is_slice for d in devices):
        # NVIDIA MIG user guide: one process sees one compute instance.
        out.append(Problem("parallel.mode", p.mode,
                           "one process can use one MIG slice only; take ddp", "parallel.mode=ddp"))
    if mode.process_a_device and repeated:
        if cpu:
            out.append(Problem("devices.ids", spec.devices.ids,
                               "each CPU slot carries one rank; name each once"))
        elif backend == "nccl":
            out.append(Problem("devices.ids", spec.devices.ids,
                               "nccl refuses two ranks on one GPU; to debug DDP code on one GPU "
                               "set parallel.backend = \"gloo\""))
    if p.launcher == "torchrun" and not mode.process_a_device:
        out.append(Problem("parallel.launcher", "torchrun",
                           f"{mode.label} is one process and needs no launcher"))
    return out


_OURS = frozenset({
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT", "PYTHONUNBUFFERED"})
_DEVICES = frozenset({
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK", "ZE_ENABLE_PCI_ID_DEVICE_ORDER"})


def _check_environment(spec: RunSpec) -> list[Problem]:
    out = []
    for name, text in spec.run.env.items():
        key = f"run.env.{name}"
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            out.append(Problem("run.env", name, "is no name of a variable: expected letters, "
                                                "digits and _, not beginning with a digit"))
        elif name in _DEVICES:
            out.append(Problem(key, text, "the devices are chosen by devices.ids, devices.pick or "
                                          "devices.hosts"))
        elif name in _OURS or name.startswith("GPU_PANEL_"):
            out.append(Problem(key, text, "gpu-panel itself sets it for each rank; leave it out"))
        elif "\0" in text:
            out.append(Problem(key, text, "no variable can hold the character NUL"))
    return out


def _check_sbatch(spec: RunSpec) -> list[Problem]:
    """Options of sbatch of a run that is for no Slurm: one for Slurm is checked without them."""
    return [Problem(f"run.sbatch.{key}", value, "is for a run on Slurm: --set devices.hosts=slurm "
                                                "(or leave it out)")
            for key, value in spec.run.sbatch.items()]


def _check_nodes(spec: RunSpec, devices: int) -> list[Problem]:
    p = spec.parallel
    mode = modes.get(p.mode)
    if not mode.several_nodes:
        if p.nodes > 1:
            return [Problem("parallel.nodes", p.nodes,
                            f"{mode.label} stays on one machine; "
                            "take multinode, or 1 node")]
        return []
    out = []
    if p.nodes < 2:
        out.append(Problem("parallel.nodes", p.nodes,
                           f"{mode.label} needs 2 or more; on one machine take ddp",
                           "parallel.mode=ddp"))
    elif p.node_rank >= p.nodes:
        out.append(Problem("parallel.node_rank", p.node_rank,
                           f"with {p.nodes} nodes the ranks are 0 to {p.nodes - 1}"))
    elif p.node_devices and len(p.node_devices) != p.nodes:
        out.append(Problem("parallel.node_devices", p.node_devices,
                           f"expected a number for each of {p.nodes} nodes"))
    elif p.node_devices and devices and p.node_devices[p.node_rank] != devices:
        out.append(Problem("parallel.node_devices", p.node_devices,
                           f"node {p.node_rank} would use {p.node_devices[p.node_rank]}, and "
                           f"{devices} {'is' if devices == 1 else 'are'} chosen here"))
    if p.master_port == 0:
        out.append(Problem("parallel.master_port", 0,
                           "all nodes must know the port; name one, for example "
                           f"{modes.MEETING_PORT}"))
    if not _is_host(p.master_addr):
        out.append(Problem("parallel.master_addr", p.master_addr,
                           "expected node 0's numeric address or host name, for example "
                           "10.0.0.1"))
    return out


def _is_host(text: str) -> bool:
    return bool(text) and text[0].isalnum() | (text[0] in ":[") \
        and all(c.isalnum() or c in ".-:[]%_" for c in text)
