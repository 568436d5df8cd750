"""gpu-engine fit: the largest batch that the devices train."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, replace

import click

from gpu_engine.cli.output import echo, for_scripts, in_json, said_once, table
from gpu_engine.cli.spec_options import SpecChoice, WithCommand, spec_options
from gpu_engine.common import paths, units
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.common.programs import own_program
from gpu_engine.devices.records import Device
from gpu_engine.launching import fit
from gpu_engine.runs import notes
from gpu_engine.runs.folder import Run, all_runs
from gpu_engine.spec.schema import RunSpec

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])i?B?|B)?", re.IGNORECASE)


@click.command(cls=WithCommand)
@click.option("--memory", metavar="SIZE", callback=lambda *given: given[-1] and to_bytes(given[-1]),
              help="What a rank may use on CPU slots: 2GiB.")
@click.option("--write", is_flag=True, help="Write what is proposed into the preset, as yours.")
@for_scripts
@spec_options
def command(choice: SpecChoice, as_json: bool, memory: int | None, write: bool) -> None:
    """Find the largest batch per GPU that PRESET trains, by real steps in throwaway runs on the
    chosen devices, and the examples a second at each size that was tried. For a command of your own
    the words must have {batch.per_gpu}. Ends with a proposal that keeps the global batch."""
    from gpu_engine.places.verbs import prepare

    spec, base = choice.spec, choice.base
    fit.require_triable(spec)
    if write and base is None:
        raise UserError("--write needs a preset to write into")
    first = prepare(spec, base=base)
    spec = first.spec
    names = [(f"{rank.host}:" if rank.host else "") + device.id
             for rank in first.plan.ranks for device in rank.devices]
    devices = [d for d in map(first.inventory.find, names) if d is not None]
    if all(d.is_cpu for d in devices):
        fit.require_triable(replace(spec, devices=replace(
            spec.devices, hosts=spec.devices.hosts and names)))
        if memory is None:
            raise UserError("on CPU slots say what a rank may use, for example --memory 2GiB")
    elif memory is not None:
        raise UserError("--memory is for CPU slots: a GPU has its own limit")
    for number in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal, or panel: as Ctrl-C
        signal.signal(number, lambda received, _: signal.raise_signal(signal.SIGINT))
    unit = first.plan.unit
    room = memory or min((d.memory_total for d in devices if d.memory_total), default=None)
    # What is left where this process is killed is removed once its end of the pipe is closed.
    # It is started first, as the trial's ranks may run before `start` has returned.
    watcher = subprocess.Popen(own_program("gpu_engine.cli.fit", _tag(os.getpid())),
                               stdin=subprocess.PIPE, start_new_session=True, cwd="/")
    with _held(devices, names if spec.devices.hosts else (), f"fit of {spec.name}"), watcher:
        trials = fit.search(lambda size: _tried(spec, size, memory, unit), room)
    batch = first.plan.batch
    largest = fit.largest(trials)
    if largest is not None and fit.least_bad(trials) is not None:
        fit.remember(spec, devices, largest, memory)
    knee = fit.knee(trials)
    proposed = fit.proposal(batch, largest) if largest is not None else None
    if as_json:
        echo(in_json({"largest": largest, "knee": knee.size if knee else None,
                      "trials": [asdict(t) for t in trials],
                      "proposal": asdict(proposed) if proposed else None}))
    else:
        for line in lines(spec, trials, unit):
            echo(line)
        if largest is None:
            raise UserError(fit.advice(spec, trials))
        echo("\n" + clean(fit.verdict(trials, unit), 300))
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


def _held(devices: Sequence[Device], there: Sequence[str], why: str
          ) -> AbstractContextManager[object]:
    """Keeps others from these devices between the trials; `there`: their names, where a host has
    them. Raises UserError."""
    from gpu_engine.devices import leases
    from gpu_engine.remote.reach import call, hosts

    if not there:
        hold = leases.Hold(leases.new_name(), why, None)
        return leases.acquire(paths.leases_folder(), devices, None, hold=hold, waits=said_once())
    ids = ",".join(name.partition(":")[2] for name in there)
    return call.typed(hosts.find(there[0].partition(":")[0]),
                      ("hold", "--devices", ids, "--why", why, "--", "cat"), " held while")


def _tried(spec: RunSpec, size: int, memory: int | None, unit: str) -> fit.Trial:
    """Train a few steps with so many examples per GPU, in a run that is removed. Ctrl-C ends it."""
    from gpu_engine.cli import watch
    from gpu_engine.places.verbs import prepare, start
    from gpu_engine.runs import digest
    from gpu_engine.runs.follow import Follower

    watch.hold()
    echo(f"{size:,} per {unit}: ", err=True, nl=False)
    with fit.limited(memory):
        prepared = prepare(fit.trial_spec(spec, size))
        run = start(prepared, tell=False, tags=[_tag(os.getpid())])
    follower, progress = Follower(run), fit.Progress(prepared.plan.world_size)
    live, asked = True, False
    try:
        while live:
            watch.release()
            live = run.state().live
            for rank, event in follower.poll(budget=2.0):
                progress.fold(rank, event)
            if live and progress.done and not asked:
                asked = True
                with suppress(UserError):  # it has just ended by itself
                    run.stop(now=True)
            if live:
                follower.wait(0.25)
        if follower.state.state == "stopped" and not asked:
            raise UserError(f"the trial of {size:,} per {unit} was stopped: nothing is known of it")
        rate = digest.figures(run.path).samples_per_s
        found = fit.outcome(size, progress, follower.state, follower, rate, memory)
    except KeyboardInterrupt:
        echo("stopped: the trial is removed, and nothing of it is kept", err=True)
        raise
    finally:
        watch.hold()  # what is removed is removed whole
        _end(run)
    less = f"no batch had more than {found.size:,}, which " if found.examples else ""
    echo(f"{less}fits, {units.size(found.memory)}, {units.pace(found.samples_per_s, None)}"
         if found.fits else clean(found.why or "", 200), err=True)
    return found


def _tag(pid: int) -> str:
    return f"fit-{pid}"


def _end(run: Run) -> None:
    """End a trial, and remove it."""
    from gpu_engine.places.verbs import remove

    with suppress(UserError):
        run.stop(now=True)
    while run.state().live:
        time.sleep(0.05)
    remove(run)


def lines(spec: RunSpec, trials: Sequence[fit.Trial], unit: str) -> list[str]:
    """A table of the trials, with a chart of their rates, and why some don't fit."""
    best, knee = max((t.samples_per_s or 0.0 for t in trials), default=0.0), fit.knee(trials)
    # What a script does with its batch, such as to accumulate several, is not known.
    rate = "steps/s × size" if spec.task.command else "examples/s"
    return table([(f"per {unit}", "memory", rate, ""), *(
        (f"{t.size:,}", units.size(t.memory) if t.memory else "",
         units.short(t.samples_per_s) if t.samples_per_s else "",
         ("━" * round(20 * (t.samples_per_s or 0.0) / best) if best else "") + " knee" * (t is knee)
         if t.fits else f"does not fit: {clean(t.why or '', 80)}")
        for t in sorted(trials, key=lambda t: t.size))])


def to_bytes(text: str) -> int:
    """ "2GiB" in bytes; a plain number is of bytes. Raises UserError."""
    found = _SIZE.fullmatch(text.strip())
    power = " KMGT".index((found[2] or " ").upper()) if found else 0
    size = int(float(found[1]) * 1024 ** power) if found else 0
    if size < 1 << 20:
        raise UserError(f"{text}: no size of memory; give 2GiB or 800MiB")
    return size


if __name__ == "__main__":
    sys.stdin.read()
    for each in all_runs():
        if sys.argv[1] in notes.read(each.path).tags:
            _end(each)
