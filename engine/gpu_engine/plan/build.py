"""RunSpec + devices → LaunchPlan: what the screen shows is what runs.

Pure: no I/O, no clock, no torch. `check` says what does not fit, `plan` resolves the rest:
the processes that this node's supervisor will start (argument lists and environment), and the
lines a person would type for the same run. Both come from here and from nowhere else.

What only the machine can answer (is the port free, is there such a task) is in `preflight`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpu_engine.common.errors import SpecError
from gpu_engine.devices.records import Device, Inventory
from gpu_engine.plan import modes
from gpu_engine.plan.batch import (
    backend_of,
    batch_of,
    batch_untold,
    learning_rate,
    port_of,
    replicas_of,
)
from gpu_engine.plan.check import check, chosen_devices
from gpu_engine.plan.command_line import lines
from gpu_engine.plan.processes import processes
from gpu_engine.plan.records import RUN_DIR, DeviceUse, LaunchPlan, Process, RankPlan
from gpu_engine.spec.schema import RunSpec

__all__ = ["RUN_DIR", "DeviceUse", "LaunchPlan", "Process", "RankPlan", "check", "plan"]


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
    chosen, _ = chosen_devices(spec, inventory)
    p = spec.parallel
    cpu = chosen[0].is_cpu
    replicas = replicas_of(spec, len(chosen))
    batch = batch_of(spec, replicas) or batch_untold(spec, replicas)
    ranks = _ranks(spec, chosen)
    local = len(ranks)
    mode = modes.get(p.mode)
    nodes = mode.nodes(p.nodes)
    resolved = LaunchPlan(
        name=spec.name, mode=p.mode, backend=backend_of(spec, cpu=cpu),
        device_type="cpu" if cpu else "cuda",
        world_size=local * nodes, local_world_size=local,
        nodes=nodes, node_rank=mode.node_rank(p.node_rank),
        replicas=batch.replicas,
        master_addr=p.master_addr if mode.several_nodes else "127.0.0.1",
        master_port=port_of(spec),
        batch=batch, lr=learning_rate(spec, batch.global_size), ranks=ranks,
        processes=(), lines=(), spec=spec, warnings=tuple(_warnings(spec)),
        unit="slot" if cpu else "GPU",
    )
    started = processes(resolved, chosen, source=inventory.source,
                        python=spec.run.python or python, environ=environ or {})
    return replace(resolved, processes=started,
                   lines=lines(resolved, chosen, source=inventory.source, base=base,
                               python=spec.run.python or "python"))


def _ranks(spec: RunSpec, devices: Sequence[Device]) -> tuple[RankPlan, ...]:
    """Which rank uses what. Under DDP a rank sees all the run's GPUs, as under torchrun, and
    uses cuda:local_rank; a slice (MIG) is alone in its process, so it is cuda:0 there."""
    seen = list(dict.fromkeys(d.id for d in devices))  # a repeated GPU is visible once
    alone = any(d.is_slice for d in devices)

    def use(device: Device) -> DeviceUse:
        name = "cpu" if device.is_cpu else f"cuda:{0 if alone else seen.index(device.id)}"
        return DeviceUse(device.id, device.label, device.uuid, name, device.cores,
                         device.memory_total)

    mode = modes.get(spec.parallel.mode)
    if not mode.process_a_device:
        return (RankPlan(0, 0, 0, tuple(use(d) for d in devices)),)
    node = mode.node_rank(spec.parallel.node_rank)
    first = node * len(devices)
    return tuple(RankPlan(first + i, i, node, (use(d),)) for i, d in enumerate(devices))


def _warnings(spec: RunSpec) -> list[str]:
    p = spec.parallel
    out = []
    if modes.get(p.mode).several_nodes:
        host = p.master_addr
        if host == "localhost" or host.startswith("127."):
            out.append(f"{host} is this machine itself: other machines can't meet there")
    return out
