"""RunSpec + devices → LaunchPlan: what the screen shows is what runs.

Pure: no I/O, no clock, no torch. `check` says what does not fit and works out the batch,
`resolve` the rest: the processes that this node's supervisor will start (argument lists and
environment), and the lines a person would type for the same run. Both come from here and from
nowhere else, for a rank that torchrun or srun has started as well.

What only the machine can answer (is the port free, is there such a task) `launch.preflight` asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpu_engine.common.errors import SpecError
from gpu_engine.devices.backends.registry import torch_type
from gpu_engine.devices.records import Device, Inventory
from gpu_engine.plan import own_command
from gpu_engine.plan.batch import Layout, backend_of, learning_rate
from gpu_engine.plan.check import Checked, check
from gpu_engine.plan.command_line import lines
from gpu_engine.plan.processes import processes
from gpu_engine.plan.records import DeviceUse, LaunchPlan, RankPlan
from gpu_engine.spec import modes
from gpu_engine.spec.schema import RunSpec


def plan(spec: RunSpec, inventory: Inventory, *, python: str,
         base: tuple[str, RunSpec] | None = None, environ: Mapping[str, str] | None = None,
         layout: Layout | None = None) -> LaunchPlan:
    """Check and resolve `spec` on this machine; see `check` and `resolve`. Raises SpecError."""
    return resolve(check(spec, inventory, layout), python=python, base=base, environ=environ)


def resolve(checked: Checked, *, python: str, base: tuple[str, RunSpec] | None = None,
            environ: Mapping[str, str] | None = None) -> LaunchPlan:
    """Make the plan of a checked spec. Raises SpecError with all problems that were found.

    python: the interpreter for the ranks, if the spec names none.
    base: the preset (its name or path, and its spec) that the command line may name.
    environ: the environment that the processes inherit.
    For a rank that a person's own launcher has started, no processes and command lines are planned,
    as it runs already.
    """
    spec, layout, batch = checked.spec, checked.layout, checked.batch
    if checked.problems or batch is None:
        raise SpecError(checked.problems)
    p = spec.parallel
    cpu = checked.devices[0].is_cpu
    resolved = LaunchPlan(
        name=spec.name, mode=p.mode, backend=backend_of(spec, cpu=cpu),
        device_type=torch_type(checked.source), source=checked.source, world_size=layout.world_size,
        local_world_size=layout.local_world_size, nodes=layout.nodes, node_rank=layout.node,
        master_addr=layout.master_addr, master_port=layout.master_port,
        batch=batch, lr=learning_rate(spec, batch.global_size), ranks=_ranks(checked), spec=spec,
        unit="slot" if cpu else "GPU",
    )
    if layout.launched_by is not None:
        return resolved
    devices, own, warnings = checked.devices, spec.run.python, []
    if modes.get(p.mode).several_nodes and (
            p.master_addr == "localhost" or p.master_addr.startswith("127.")):
        warnings.append(f"{p.master_addr} is this machine itself: other machines can't meet there")
    ranks, many = own_command.said(spec.task.command or ()).ranks, len({d.id for d in devices})
    if ranks is not None and ranks[1] != many and layout.nodes == 1 and not cpu:
        warnings.append(f"your command starts {ranks[1]} rank{'s' * (ranks[1] != 1)} ({ranks[0]}), "
                        f"and the run has {many} GPU{'s' * (many != 1)}: for a GPU each, "
                        f"--mode ddp -n {ranks[1]}")
    return replace(
        resolved, warnings=tuple(warnings),
        processes=processes(resolved, devices, python=own or python, environ=environ or {}),
        lines=lines(resolved, devices, base=base, python=own or "python"))


def _ranks(checked: Checked) -> tuple[RankPlan, ...]:
    """The devices of each rank. With DDP a rank sees all GPUs of the run, as with torchrun, and
    uses cuda:local_rank; a MIG slice is the only device of its process, so it is cuda:0."""
    devices, layout = checked.devices, checked.layout
    seen = list(dict.fromkeys(d.id for d in devices))  # a repeated GPU is visible once
    alone = any(d.is_slice for d in devices)
    kind = torch_type(checked.source)

    def use(device: Device) -> DeviceUse:
        if kind == "cpu":  # there is one
            name = kind
        elif layout.launched_by is not None:  # which devices are visible was the launcher's choice
            name = f"{kind}:{device.visible_index}"
        else:
            name = f"{kind}:{0 if alone else seen.index(device.id)}"
        return DeviceUse(device.id, device.label, device.uuid, name, device.cores,
                         device.memory_total)

    if not modes.get(checked.spec.parallel.mode).process_a_device:
        return (RankPlan(layout.first_rank, layout.first_local_rank, layout.node,
                         tuple(use(d) for d in devices)),)
    return tuple(RankPlan(layout.first_rank + i, layout.first_local_rank + i, layout.node,
                          (use(devices[i]),)) for i in range(layout.ranks))
