"""What is known about runs: gpu-engine show of one, compare of several, code of one or two."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from gpu_engine.cli import tab
from gpu_engine.cli.output import echo, exactly, fields, for_scripts, in_json, table
from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError, meant, with_type
from gpu_engine.common.procs import describe_exit

if TYPE_CHECKING:
    from gpu_engine.events.rank_view import RankView
    from gpu_engine.runs.folder import State

_METRICS = 30
"""How many of a script's own values are shown for a rank."""


@click.command()
@click.argument("run", default="last", shell_complete=tab.runs)
@for_scripts
def show(run: str, as_json: bool) -> None:
    """Show RUN (an id, the beginning of one, or "last"): its state, cause of failure and ranks."""
    from gpu_engine.cli import watch
    from gpu_engine.cli.ranks import print_notices
    from gpu_engine.diagnose import device_times, hangs, steps, verdicts
    from gpu_engine.notify import journal
    from gpu_engine.places.verbs import find
    from gpu_engine.runs import disk_room, job, leftovers, notes
    from gpu_engine.runs.follow import Follower

    found = find(run)
    follower = Follower(found)
    while follower.poll(budget=1.0):
        pass
    state, p = follower.state, follower.progress()
    plan = found.plan()
    devices = device_times.read(found.path, state.began)
    hang = hangs.find_hang(follower.ranks.values(), time.time(), unheard=state.unheard) \
        if state.live else None
    if hang is not None and hang.silent and (unheard := disk_room.silence(found.path)):
        hang = replace(hang, text=unheard, where=())
    if as_json:
        ranks = [view.to_dict() for view in follower.ranks.values()]
        echo(in_json({"state": state, "path": str(found.path),
                      "progress": p, "ranks": ranks, **job.to_dict(found.path),
                      "notes": notes.read(found.path),
                      "diagnosis": verdicts.to_dict(list(follower.ranks.values()), devices),
                      "hang": hang,
                      "plan": plan.for_people().to_dict() if plan is not None else {}}))
        return
    echo(f"{found.id}  {clean(state.name)}  {state.state}  attempt {state.attempt}  "
         f"{found.path}")
    for text in notes.lines(notes.read(found.path)):
        echo(clean(text))
    watch.explain(state)
    print_notices(state)
    slurm = job.read(found.path)
    if slurm is not None and state.reason != (said := slurm.sentence()):
        # Of a job that has ended the ranks have said more.
        nodes = f" on {slurm.nodes}" if slurm.nodes else ""
        echo(clean(f"Slurm job {slurm.id}{nodes}" if slurm.over else said))
    for why in found.odd():
        if why != state.reason:
            echo(clean(f"warning: {why}"))
    if state.state == "lost" and (left := leftovers.processes(found.path)):
        echo(f"processes of it still run: pid {', '.join(map(str, left))}; gpu-engine stop "
             f"{found.id} ends them")
    for text in journal.troubles(found.path):
        echo(clean(text))
    for text in _processes(state):
        echo(text)
    if hang is not None:
        echo(clean(hang.text))
        for line in hang.where:
            echo(f"  {clean(line)}")
        echo(f"gpu-engine stacks {found.id} --rank {hang.rank} says more")
    for verdict in verdicts.of(list(follower.ranks.values()), devices):
        echo(f"{verdict.code}: {verdict.text}")
    for line in plan.lines if plan is not None else ():
        echo(clean(line))
    for view in follower.ranks.values():
        total = f" of {view.total_steps:,}" if view.total_steps else ""
        memory = ", ".join(f"{units.gib(a)}/{units.gib(r)}/{units.gib(k)} GiB" for a, r, k in
                           zip(view.gpu_allocated, view.gpu_reserved, view.gpu_peak, strict=False))
        several = f" (process {view.process} of rank {view.as_rank})" if view.process else ""
        echo(f"rank {view.rank}{several}  "
             f"{clean(view.outcome or _busy(view, live=state.live))}"
             f"{', at its last heartbeat' if view.rank in state.unheard else ''}  "
             f"step {units.count(view.step)}{total}{_training(view)}  "
             f"loss {units.loss(view.loss)}  "
             f"{units.pace(view.samples_per_s, view.steps_per_s)}"
             + (f"  host {units.gib(view.rss)} GiB" if view.rss is not None else "")
             + (f"  GPU allocated/reserved/peak {memory}" if memory else ""))
        if (parts := steps.of_last(view)) is not None:
            echo(f"  {steps.line(parts)}")
        if view.error is not None and state.cause is None:  # the run ended well nevertheless
            echo("  " + clean(with_type(view.error.type, view.error.message)))
        for name, value in view.evaluations.items():
            echo(f"  eval {clean(name)} {units.loss(value)}")
        for name, value in list(view.metrics.items())[-_METRICS:]:
            echo(f"  {clean(name)} {units.loss(value)}")
        if (more := len(view.metrics) - _METRICS) > 0:
            echo(f"  … {units.counted(more, 'value')} under other names (--json has all)")
        if view.checkpoint:
            echo(f"  checkpoint {clean(view.checkpoint)}")
        for warning in view.warnings[-3:]:
            echo(f"  warning: {clean(warning)}")


@click.command()
@click.argument("run", default="last", shell_complete=tab.runs)
@click.argument("value", required=False)
@click.option("-n", "count", type=click.IntRange(2), default=200, show_default=True,
              help="At most so many points.")
@for_scripts
def curve(run: str, value: str | None, count: int, as_json: bool) -> None:
    """Print a VALUE of RUN over its steps: loss, eval:accuracy, or a name that was logged or
    printed; by default the one of run.best."""
    from gpu_engine.places.verbs import find
    from gpu_engine.runs import digest

    found = find(run)
    _, track, exact = digest.track_of(found.path)
    there = track.extents()
    asked = digest.of(found).best
    name = value or digest.compared_by(asked, there).name
    if not (value or asked) and name not in there:
        name = next(iter(there), name)
    if name not in there:
        raise UserError(f"run {found.id} has recorded no {name}; {meant(name, there)}", "value",
                        name)
    points, extent = sorted(track.curve(name).items()), there[name]
    chosen = sorted({round(i * (len(points) - 1) / (count - 1)) for i in range(count)})
    if as_json:
        echo(in_json(fields(extent, id=found.id, value=name, recorded=len(points), exact=exact,
                            points=[points[i] for i in chosen])))
        return
    for i in chosen:
        echo(clean(f"{points[i][0]} {units.loss(points[i][1])}"))


def _busy(view: RankView, *, live: bool) -> str:
    if not view.busy:
        return "not started" if live else "has recorded nothing"
    return view.busy if live else f"ended in {view.busy}"


def _training(view: RankView) -> str:
    """" (training 3: step 12)" if the script has trained before in the same process, else ""."""
    if view.training is None or view.step is None:
        return ""
    return f" (training {view.training}: step {units.count(view.step - (view.training_from or 0))})"


def _processes(state: State) -> list[str]:
    """How each attempt and each process ended, in words."""
    out = []
    for a in state.attempts if state.attempt > 1 else ():
        took = units.clock(a.ended - a.started) if a.ended is not None else ""
        how = a.outcome or ("goes on" if state.live and a.number == state.attempt else "not known")
        other = f"  with {' '.join(map(shlex.quote, a.changed))}" if a.changed else ""
        out.append(clean(f"attempt {a.number}  {how}  {took}{other}  "
                         f"{a.reason or ''}").rstrip())
    if state.state not in ("completed", "stopped"):
        out += [f"rank {p.rank}  pid {p.pid}  {describe_exit(p.exit)}"
                for p in state.processes if p.exit is not None]
    return out


@click.command()
@click.argument("runs", nargs=-1, required=True, shell_complete=tab.runs)
@for_scripts
@click.option("--markdown", is_flag=True, help="As a table for a report or an issue.")
def compare(runs: tuple[str, ...], as_json: bool, markdown: bool) -> None:
    """Show how RUNS (ids, beginnings of ids, or "last") ended, and in which settings, commits and
    versions they differ."""
    from gpu_engine.places.verbs import find_each
    from gpu_engine.runs import compare as comparison

    if len(runs) < 2:
        raise click.UsageError("name two runs or more; gpu-engine runs lists them")
    found = find_each(runs)
    read = [comparison.read(run)[0] for run in found]
    parts = comparison.parts(read)
    settings = parts[1][1]
    if as_json:
        echo(in_json({"runs": read,
                      "differences": {row.name: list(row.values) for row in settings}}))
        return
    if markdown:
        lines = comparison.markdown(read)
    else:
        rows: list[Sequence[str] | str] = [["", *comparison.heads(read)]]
        for title, differing in parts:
            rows += ["", title] if title and differing else []
            rows += [[row.name, *map(comparison.cell, row.values)] for row in differing]
        lines = table(rows)
    for line in lines:
        echo(line)
    if not settings and not markdown:
        echo("no setting differs")


@click.command()
@click.argument("run", shell_complete=tab.runs)
@click.option("--to", metavar="RUN", shell_complete=tab.runs,
              help="To the code of this run, and not to the folder as it is now.")
def code(run: str, to: str | None) -> None:
    """Print what was changed since in the code that RUN was started with, as a patch: `gpu-engine
    code RUN | git apply -R` brings that code back."""
    from gpu_engine.code import difference
    from gpu_engine.runs import folder

    found, other = folder.find(run), folder.find(to) if to else None
    before = difference.of_run(found)
    patch, left = difference.between(
        before, difference.of_run(other) if other else difference.now(found))
    exactly(patch)
    theirs = [difference.not_compared(each) for each in (found, other) if each is not None]
    for line in (*(left or ([] if patch else ["no file differs"])), *filter(None, theirs)):
        echo(clean(line, None), err=True)
