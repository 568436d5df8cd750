"""gpu-engine fit: the largest batch that the devices train."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import asdict, replace

import click

from gpu_engine.cli.output import echo, for_scripts, in_json, table
from gpu_engine.cli.spec_options import SpecChoice, WithCommand, spec_options
from gpu_engine.common import paths, units
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.launching import fit
from gpu_engine.spec.schema import RunSpec

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])i?B?|B)?", re.IGNORECASE)


@click.command(cls=WithCommand)
@click.option("--memory", metavar="SIZE", help="What a rank may use on CPU slots: 2GiB.")
@click.option("--write", is_flag=True, help="Write what is proposed into the preset, as yours.")
@for_scripts
@spec_options
def command(choice: SpecChoice, as_json: bool, memory: str | None, write: bool) -> None:
    """Find the largest batch per GPU that PRESET trains, by real steps in throwaway runs on the
    chosen devices, and the examples a second at each size that was tried. For a command of your own
    the words must have {batch.per_gpu}. Ends with a proposal that keeps the global batch."""
    from gpu_engine.devices import leases
    from gpu_engine.launching.launcher import pick, prepare

    spec, base = choice.spec, choice.base
    words = spec.task.command
    if words is not None and not any("{batch.per_gpu}" in word for word in words):
        raise UserError("the command is not told the batch: write {batch.per_gpu} where it takes "
                        "one")
    if spec.devices.hosts or spec.parallel.nodes > 1:
        raise UserError("fit tries one machine: run it on each")
    if write and base is None:
        raise UserError("--write needs a preset to write into")
    first = prepare(spec, base=base)
    inventory = first.inventory
    spec = pick(spec, inventory)
    limit = _bytes(memory) if memory is not None else None
    devices = [d for d in map(inventory.find, spec.devices.ids or ()) if d is not None]
    if all(d.is_cpu for d in devices):
        if limit is None:
            raise UserError("on CPU slots say what a rank may use, for example --memory 2GiB")
    elif limit is not None:
        raise UserError("--memory is for CPU slots: a GPU has its own limit")
    room = limit or min((d.memory_total for d in devices if d.memory_total), default=None)
    hold = leases.Hold(leases.new_name(), f"fit of {spec.name}", None)
    with leases.acquire(paths.leases_folder(), devices, None, hold=hold):
        trials = fit.search(lambda size: _tried(spec, size, limit, as_json), room)
    batch = first.plan.batch
    largest = max((t.size for t in trials if t.fits), default=None)
    if largest is not None:
        fit.remember(spec, devices, largest, limit)
    knee = fit.knee(trials)
    proposed = fit.proposal(batch, largest) if largest is not None else None
    if as_json:
        echo(in_json({"largest": largest, "knee": knee.size if knee else None,
                      "trials": [asdict(t) for t in trials],
                      "proposal": asdict(proposed) if proposed else None}))
    else:
        _print(trials, knee)
        if largest is None:
            raise UserError(fit.advice(spec, trials))
        unit = "slot" if inventory.is_cpu else "GPU"
        echo(f"\nfits: up to {largest:,} per {unit}")
        if proposed is not None:
            echo(proposed.sentence(unit) + f": --set batch.meaning=per_gpu --set batch.size="
                 f"{proposed.size} --set batch.accumulate={proposed.accumulate}")
    if write and base is not None and proposed is not None:
        from gpu_engine.spec import presets

        kept = presets.load(base[0])
        path = presets.save(base[0].rpartition("/")[2].removesuffix(".toml"), replace(
            kept.spec, batch=replace(kept.spec.batch, size=proposed.size, meaning="per_gpu",
                                     accumulate=proposed.accumulate)))
        echo(f"written into {path}", err=True)


def _tried(spec: RunSpec, size: int, memory: int | None, quiet: bool) -> fit.Trial:
    """Train a few steps with so many examples per GPU, in a run that is removed."""
    from gpu_engine.cli import watch
    from gpu_engine.launching.launcher import prepare, start
    from gpu_engine.remote.run.removal import Removal
    from gpu_engine.sweep import figures

    watch.hold()
    with fit.limited(memory):
        prepared = prepare(fit.trial_spec(spec, size))
        run = start(prepared, tell=False)
    follower, progress = watch.Follower(run), fit.Progress(prepared.plan.world_size)
    asked = False

    def look(last: bool) -> None:
        nonlocal asked
        for rank, event in follower.poll(budget=1.0):
            progress.fold(rank, event)
        if progress.done and not asked and not last:
            asked = True
            with suppress(UserError):  # it has just ended by itself
                run.stop(now=True)

    try:
        state = watch.watch(follower, quiet=True, each=look)
        if state.state == "stopped" and not asked:
            raise click.Abort
        rate = figures.of(run.path).samples_per_s
        found = fit.outcome(size, progress.done, state, follower, rate)
    finally:
        if run.state().live:  # after a fault of ours
            with suppress(UserError):
                run.stop(now=True)
        while run.state().live:
            time.sleep(0.05)
        Removal().remove(run)
    if not quiet:
        echo(f"{size:,}: " + (f"fits, {units.size(found.memory)}" if found.fits and found.memory
                              else "fits" if found.fits else clean(found.why or "", 200)),
             err=True)
    return found


def _print(trials: list[fit.Trial], knee: fit.Trial | None) -> None:
    best = max((t.samples_per_s or 0.0 for t in trials), default=0.0)
    rows = [("per GPU", "memory", "examples/s", "")]
    rows += [(f"{t.size:,}", units.size(t.memory) if t.memory else "", f"{t.samples_per_s:,.0f}"
              if t.samples_per_s else "", ("━" * round(20 * (t.samples_per_s or 0.0) / best)
                                           if best else "")
              + (" knee" if t is knee else "") if t.fits else "does not fit")
             for t in sorted(trials, key=lambda t: t.size)]
    for line in table(rows):
        echo(line)


def _bytes(text: str) -> int:
    """ "2GiB" in bytes; a plain number is of bytes. Raises UserError."""
    found = _SIZE.fullmatch(text.strip())
    power = " KMGT".index((found[2] or " ").upper()) if found else 0
    size = int(float(found[1]) * 1024 ** power) if found else 0
    if size < 1 << 20:
        raise UserError(f"--memory {text}: no size; give 2GiB or 800MiB")
    return size
