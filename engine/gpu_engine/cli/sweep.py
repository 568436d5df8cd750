"""gpu-engine sweep: runs that differ in the values of a grid, compared."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gpu_engine.cli.output import echo, fields, for_scripts, in_json, table
from gpu_engine.common import units
from gpu_engine.common.errors import UserError

if TYPE_CHECKING:
    from gpu_engine.cli.outputs import Sweep
    from gpu_engine.runs.digest import By
    from gpu_engine.sweep.group import Done, Group
    from gpu_engine.sweep.table import One, Point


class _Sweep(click.Group):
    """A first word that is no command is a sweep's id: `sweep ID` is `sweep show ID`."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple:
        if args[0] not in self.commands:
            args = ["show", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=_Sweep, invoke_without_command=True, subcommand_metavar="[ID | COMMAND] …")
@for_scripts
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List the sweeps; with ID (or the beginning of one, or "last") show the table of one.

    gpu-engine run PRESET --grid KEY=V1,V2 submits a sweep.
    """
    from gpu_engine.cli.runs import take_up

    take_up()  # `retry` must not start again what goes on elsewhere
    if ctx.invoked_subcommand is not None:
        return
    from gpu_engine.sweep import group
    from gpu_engine.sweep.table import count

    groups = group.all_groups()
    members = [group.without_figures(g) for g in groups]
    if as_json:
        told: list[Sweep] = [{"id": g.id, "name": g.name, "begun": g.begun, "keys": g.keys,
                              "members": g.of, "counts": count(one.state for one in m)}
                             for g, m in zip(groups, members, strict=True)]
        echo(in_json(told))
        return
    now = time.time()
    for g, m in zip(groups, members, strict=True):
        echo(f"{g.id:<6} {g.name:<20.20} {g.summary(m):<40} {', '.join(g.keys)}  "
             f"{units.ago(now - g.begun)}")
    if not groups:
        echo("no sweeps yet; gpu-engine run PRESET --grid KEY=V1,V2 submits one", err=True)


@command.command(hidden=True)
@click.argument("sweep")
@click.option("--by", metavar="VALUE",
              help="What decides which is best: loss (the default, or what run.best or "
                   "train.best says), "
                   "eval:NAME, or the name of a value that was logged; max:NAME for the greatest.")
@for_scripts
def show(sweep: str, by: str | None, as_json: bool) -> None:
    """The table of a sweep: a line for each combination of values, the best first."""
    from gpu_engine.sweep import group, study
    from gpu_engine.sweep.table import parse_by, points

    found = group.find(sweep)
    members = group.read(found)
    chosen = parse_by(by, members) if by is not None else group.default_by(found, members)
    progress = study.so_far(found, members)
    if progress is not None:
        with contextlib.suppress(UserError):  # Optuna was removed since
            progress = study.with_shares(progress, found, members)
    if as_json:
        echo(in_json({
            "id": found.id, "name": found.name, "begun": found.begun, "members": found.of,
            "by": chosen.text, "search": progress if found.search else None,
            "points": [fields(p, "members", counts=p.counts, runs=[one.id for one in p.members])
                       for p in points(members, chosen)],
            "runs": [fields(one, "extents", "rungs", "why", best=one.best(chosen),
                            last=one.last(chosen), cause=one.why) for one in members]}))
    else:
        for line in _lines(found, members, points(members, chosen), chosen):
            echo(line)
        for line in ("", *progress.lines()) if progress else ():
            echo(line)


@command.command()
@click.argument("sweep")
@click.option("--now", is_flag=True, help="Kill the ranks of running members at once.")
@click.option("--wait/--no-wait", default=True, help="Wait until all have ended (the default).")
def stop(sweep: str, now: bool, wait: bool) -> None:
    """Stop all members of SWEEP: those that wait leave the queue, those that run save and end."""
    from gpu_engine.places import verbs
    from gpu_engine.sweep import group

    found = group.find(sweep)
    done = group.stop(found, now=now)
    if not done.runs and not done.trouble:
        echo(f"{done.search}; all its runs have ended" if done.search else
             f"all members of {found.id} have ended")
        return
    following = {verbs.Followed(run): run for run in done.runs}
    while wait and any(goes_on(run.state()) for goes_on, run in following.items()):
        time.sleep(0.1)
    _print(done, "stopped" if wait else "asked to stop")


@command.command()
@click.argument("sweep")
@click.option("--stopped", is_flag=True, help="Those too that were stopped, by hand or with the "
              "sweep.")
def retry(sweep: str, stopped: bool) -> None:
    """Try the members of SWEEP again that have failed or are lost: they wait for another attempt,
    which goes on from their last checkpoint."""
    from gpu_engine.sweep import group

    _print(group.retry(group.find(sweep), stopped=stopped), "will be tried again")


def _print(done: Done, what: str) -> None:
    if done.runs:
        echo(f"{units.counted(len(done.runs), 'run')} {what}: "
             + ", ".join(run.id for run in done.runs))
    if done.search:
        echo(done.search)
    for text in done.trouble:
        echo(text, err=True)
    if done.trouble:
        sys.exit(1)


def _lines(found: Group, members: Sequence[One], rows: Sequence[Point], by: By) -> list[str]:
    from gpu_engine.sweep.table import FAILED, causes, cells, heads, notes

    out = [f"{found.id} {found.name}: {found.summary(members)}", ""]
    out += table([heads(found.keys, by), *(cells(p) for p in rows)])
    told = notes(rows, by, found.of)
    out += ["", *told] if told else []
    out += [line for _, cause in causes(members) for line in ("", cause)]
    failed = any(one.kind == FAILED for one in members)
    if failed or any(one.by_hand for one in members) or (found.to_come and not found.asks):
        which = "" if failed else " --stopped"
        out += ["", f"have it go on: gpu-engine sweep retry {found.id}{which}"]
    return out
