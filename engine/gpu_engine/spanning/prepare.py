"""From a spec with `devices.hosts` to what is launched: every host was asked, and nothing is wrong.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpu_engine.common.errors import SpecError
from gpu_engine.devices.records import Inventory
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.spanning import nodes, survey
from gpu_engine.spanning.parts import Part
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import to_dict


def prepare(spec: RunSpec, *, base: tuple[str, RunSpec] | None = None, cwd: Path | None = None,
            before: Sequence[Part] = (), checkpoint: str | None = None) \
        -> tuple[RunSpec, Inventory, LaunchPlan, tuple[Part, ...]]:
    """Ask all hosts of `spec` at once, and work out what each is told: the spec with what follows
    from its hosts, their devices, the plan of the whole, and each host's part of it.

    before: the parts of the attempt before; hosts that were in it go on with their run there, from
    `checkpoint`; None: from the newest that loads.

    Raises SpecError with everything that is wrong on any host, UserError where hosts.toml is.
    """
    spec = nodes.whole(spec)
    asked = nodes.entries(spec)
    here = cwd or Path.cwd()
    met = survey.meet(asked, survey.hosts_of(asked))
    try:
        machines = [one.machine for one in met]
        problems = survey.torches(met, spec)
        if problems:
            raise SpecError(problems)
        # Before they are asked to try ports: what does not fit anyway is told at once.
        nodes.spread(spec, machines, address="127.0.0.1", port=29500, base=base)
        address, port = survey.meeting_point(met, spec) if len(met) > 1 else ("127.0.0.1", None)
        told, plan = nodes.spread(spec, machines, address=address, port=port, base=base)
        folders = [survey.folders_of(m.host, str(here)) for m in machines]
        warnings, places = survey.check(met, [n.spec for n in told], folders,
                                        survey.named_files(spec, here))
        known = {f"{n.name}: {w}" for n in told for w in n.plan.warnings}
    finally:
        survey.part(met)
    plan = replace(plan, warnings=tuple(w for w in warnings if w not in known))
    key = secrets.token_hex(16)
    parts = [Part(
        host=n.machine.host, node=n.number, ranks=tuple(r.rank for r in n.plan.ranks),
        spec=to_dict(n.spec, defaults=False), folders=(place,), key=f"{key}/{n.number}",
        skew=one.skew) for n, one, place in zip(told, met, places, strict=True)]
    known_runs = {p.host.name: p for p in before if p.run is not None}
    return spec, nodes.inventory_of(machines), plan, tuple(
        resumed(p, known_runs.get(p.host.name), checkpoint) for p in parts)


def resumed(part: Part, before: Part | None, checkpoint: str | None = None) -> Part:
    """`part` as another attempt of the run that `before` has there; as it is without one."""
    if before is None:
        return part
    return replace(part, run=before.run, path=before.path, attempt=before.attempt + 1, resume=True,
                   checkpoint=checkpoint)
