"""gpu-engine run: start a run, and follow it to its end or detach from it; or have it wait. What
would run: plan. Another attempt: resume."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gpu_engine.cli import tab
from gpu_engine.cli.output import echo, in_json
from gpu_engine.cli.spec_options import (
    SpecChoice,
    WithCommand,
    grid_options,
    show,
    spec_options,
    spelled_out,
    sweep_of,
)
from gpu_engine.common import paths, units
from gpu_engine.common.clean import clean
from gpu_engine.runs import notes

if TYPE_CHECKING:
    from gpu_engine.queue.turns import When
    from gpu_engine.runs.folder import Run


@click.command(cls=WithCommand)
@click.option("--detach", is_flag=True, help="Print the run's id and return at once.")
@click.option("--json", "as_json", is_flag=True,
              help="Print lines of JSON: what the ranks record, and at the end the run's state "
                   "(with --detach: its id).")
@click.option("--quiet", "-q", is_flag=True,
              help="Print only what the ranks print, and the result.")
@click.option("--queue", "queued", is_flag=True,
              help="Print the run's id and return at once; it starts when its devices are free and "
                   "the runs before it have theirs.")
@click.option("--after", metavar="RUN", shell_complete=tab.runs,
              help="With --queue: not before RUN has completed.")
@click.option("--begin", metavar="TIME",
              help="With --queue: not before TIME, as 22:00, +90m or 2026-11-23 22:00.")
@click.option("--priority", type=int, metavar="N",
              help="With --queue: before waiting runs with a lower one (0 unless given).")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Tag the run; or several: a,b.")
@click.option("--part", hidden=True)
@grid_options
@click.option("--no-notify", is_flag=True,
              help="Send no notifications about this run, whatever notify.toml says.")
@spec_options
def run(choice: SpecChoice, detach: bool, as_json: bool, quiet: bool, queued: bool,
        after: str | None, begin: str | None, priority: int | None, tags: tuple[str, ...],
        no_notify: bool, part: str | None, **sweep_options: Any) -> None:
    """Start a run from PRESET (a name, a .toml file, or -: JSON on standard input), or from your
    own command behind --.

    The run does not need this terminal: closing it leaves the run alone; Ctrl-C stops the run.

    With --grid or --repeat it is a sweep: many runs, which wait in the queue. gpu-engine sweep
    compares them.
    """
    if part is not None:
        from gpu_engine.remote.there import part as others

        _started(others.begin(choice.spec, part), as_json)
        return
    (members, search), tagged = sweep_of(choice, **sweep_options), notes.parse_tags(tags)
    if no_notify and (queued or members):
        raise click.UsageError("--no-notify is for a run that starts at once")
    if members:
        from gpu_engine.sweep import group

        sweep = group.submit(members, when(after, begin, priority), choice.spec.name,
                             choice.base, tagged, search)
        _warn(*sweep.warnings)
        more = "" if search is None else \
            f" of {search.of:,}; the next values are asked for when a place has room"
        echo(in_json({"id": sweep.id, "runs": [run.id for run in sweep.runs]})
             if as_json else f"{sweep.id}: {units.counted(len(sweep.runs), 'run')} in the queue"
                             f"{more}; gpu-engine sweep {sweep.id} compares them")
        return
    if queued:
        _wait(choice, as_json, when(after, begin, priority), tagged)
        return
    for option, value in (("--after", after), ("--begin", begin), ("--priority", priority)):
        if value is not None:
            raise click.UsageError(f"{option} goes with --queue, as the run starts at once without")
    from gpu_engine.cli import watch
    from gpu_engine.places.verbs import prepare, start

    prepared = prepare(choice.spec, base=choice.base)
    if not detach:
        watch.hold()  # from here on Ctrl-C stops the run
    started = start(prepared, tell=not no_notify, tags=tagged)
    if not detach:
        sys.exit(watch.to_the_end(started, prepared.plan, as_json=as_json, quiet=quiet))
    if prepared.plan.chosen is not None:
        echo(prepared.plan.chosen, err=True)
    _warn(*prepared.plan.warnings)
    _started(started, as_json)


def when(after: str | None, begin: str | None, priority: int | None) -> When:
    """When a run that waits may start. Raises UserError."""
    from gpu_engine.places import verbs
    from gpu_engine.queue.submit import moment
    from gpu_engine.queue.turns import When

    first = verbs.find(after).id if after is not None else None
    return When(first, None if begin is None else moment(begin, time.time()), priority or 0)


def _wait(choice: SpecChoice, as_json: bool, when: When, tags: Sequence[str]) -> None:
    from gpu_engine.queue import submit

    prepared = submit.prepare(choice.spec, choice.inventory)
    run = submit.submit(choice.spec, when, prepared, base=choice.base, tags=tags)
    _warn(prepared.kept.doubt, *run.require_plan().warnings)
    _started(run, as_json)


def _started(run: Run, as_json: bool) -> None:
    echo(in_json({"id": run.id, "path": str(run.path)}) if as_json else run.id)


def _warn(*warnings: str | None) -> None:
    for warning in filter(None, warnings):
        echo(f"warning: {warning}", err=True)


@click.command(cls=WithCommand)
@click.option("--json", "as_json", is_flag=True, help="The whole plan, for scripts.")
@click.option("--now", is_flag=True,
              help="Refuse what could not start now, as run would: devices in use, a full disk. "
                   "Hosts are sent the code that they lack.")
@grid_options
@spec_options
def plan(choice: SpecChoice, as_json: bool, now: bool, **sweep_options: Any) -> None:
    """Show what would run: batch arithmetic, devices, processes, and the command line for it. With
    --grid or --repeat: the runs of the sweep."""
    from gpu_engine.places.verbs import prepare
    from gpu_engine.plan.build import typed
    from gpu_engine.runs import disk_room
    from gpu_engine.slurm import submit as slurm

    members, search = sweep_of(choice, **sweep_options)
    if members:
        if now:
            raise click.UsageError("--now is for one run: those of a sweep wait")
        show(members, choice, as_json=as_json, search=search)
        return
    if now:
        disk_room.require(paths.runs_folder())
    prepared = prepare(choice.spec, base=choice.base, only_plan=not now)
    planned = replace(prepared.plan.for_people(), cwd=paths.here())
    if as_json:
        echo(in_json(planned.to_dict()))
        return
    code, python = planned.code, planned.interpreter
    lines = [f"{planned.name}: {planned.mode}, world size {planned.world_size}"
             + (f", backend {planned.backend}" if planned.backend != "none" else ""),
             *planned.sentences(), planned.chosen,
             *((code.sentence(), *(s.sentence() for s in code.sendings)) if code else ()),
             planned.fits, planned.not_compared and f"code: {planned.not_compared}",
             python and python.sentence(), *(rank.sentence() for rank in planned.ranks),
             *(f"warning: {warning}" for warning in planned.warnings)]
    for line in filter(None, lines):
        echo(clean(line, None))
    echo()
    for node, line in enumerate(planned.lines):
        echo((f"# node {node}\n" if len(planned.lines) > 1 else "") + line)
    echo()
    if slurm.is_meant(choice.spec):
        echo(slurm.script_of(choice.spec), nl=False)
    for process in planned.processes:
        echo(f"# process of rank {', '.join(map(str, process.ranks))}"
             + (f", on cores {','.join(map(str, process.cores))}" if process.cores else ""))
        echo(typed(process.env, process.unset, process.argv))


@click.command()
@click.argument("run", shell_complete=tab.runs)
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE",
              shell_complete=tab.sets,
              help="Change a key for this attempt and those after it.")
@click.option("--from", "start", metavar="best|STEP", default="newest",
              help="Continue from the best checkpoint (by train.best), or from the one of a step; "
                   "later checkpoints are moved aside.")
@click.option("--detach", is_flag=True, help="Return at once.")
@click.option("--json", "as_json", is_flag=True, help="Print lines of JSON, as run does.")
@click.option("--quiet", "-q", is_flag=True,
              help="Print only what the ranks print, and the result.")
def resume(run: str, sets: tuple[str, ...], start: str, detach: bool,
           as_json: bool, quiet: bool) -> None:
    """Continue RUN (an id, the beginning of one, or "last") from its newest checkpoint that loads.

    With the same mode and number of ranks, the losses continue bit for bit as if the run had never
    ended. With another mode or number of ranks, the checkpoint is loaded too.
    """
    from gpu_engine.cli import ranks, watch
    from gpu_engine.places import verbs
    from gpu_engine.runs import job

    found = verbs.find(run)
    # Before its ranks print more: what they have printed in earlier attempts isn't said again.
    output = None if detach or as_json else ranks.of_ranks(found, new=True)
    prepared = verbs.resume(found, spelled_out(sets), start=start)
    submitted = job.read(found.path)
    if submitted is not None and not as_json:
        echo(f"run {found.id} submitted: {clean(submitted.sentence())}")
        return
    if detach or submitted is not None:
        _started(found, as_json)
        return
    sys.exit(watch.to_the_end(found, prepared.plan, as_json=as_json, quiet=quiet, output=output))
