"""gpu-engine runs: list and delete runs."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from gpu_engine.cli.output import echo
from gpu_engine.common.errors import UserError

if TYPE_CHECKING:
    from gpu_engine.runs.digest import Digest
    from gpu_engine.runs.folder import Run
    from gpu_engine.runs.query import Query
    from gpu_engine.spanning.removal import Outcome


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
@click.option("-n", "count", type=click.IntRange(1),
              help="How many runs to list (20, or runs.listed of settings.toml).")
@click.option("--filter", "-f", "wanted", default="", metavar="WORDS",
              help="Only runs that match all words: text, or FIELD:TEXT with one of id, name, "
                   "preset, task, mode, tag, state and note; -WORD leaves runs out.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only runs with this tag.")
@click.pass_context
def command(ctx: click.Context, as_json: bool, count: int | None, wanted: str,
            tags: tuple[str, ...]) -> None:
    """List the runs, newest first."""
    if ctx.invoked_subcommand is not None:
        return
    from gpu_engine.common import units
    from gpu_engine.common.clean import clean
    from gpu_engine.launch.taking_up import take_up_all
    from gpu_engine.runs import folder, query
    from gpu_engine.settings import file
    from gpu_engine.slurm import watch

    count = count or file.read().runs.listed
    take_up_all()
    watch.refresh()
    now = time.time()
    asked = query.parse(wanted)
    rows, more = _found(asked, tags, count)
    if as_json:
        echo(folder.dumps([_to_dict(one, now) for one in rows]))
        return
    for one in rows:
        run, state = one.run, one.state
        labels = f" [{', '.join(one.notes.tags)}]" if one.notes.tags else ""
        echo(f"{run.id:<6} {state.state:<10} {clean(one.name):<20.20} "
                   f"{clean(one.mode) or '?':<9} ×{one.world_size or '?':<3} "
                   f"{units.clock(state.took(now)):>8}  {units.ago(now - state.created):<12}"
                   + labels
                   + "".join(f" {clean(why)};" for why in _why(one)).rstrip(";"))
    if not rows and (asked or tags):
        echo("no run matches" + (f": {asked.doubt}" if asked.doubt else ""), err=True)
    elif not rows:
        echo("no runs yet; gpu-engine run default starts one", err=True)
    elif more:
        echo(f"and {more:,} older ones; -n shows more", err=True)


def _found(asked: Query, tags: tuple[str, ...], count: int) -> tuple[list[Digest], int]:
    """The newest `count` runs that match, and how many more do."""
    from gpu_engine.runs import digest, folder

    every = folder.all_runs()
    if not asked and not tags:
        return [digest.read(run) for run in every[:count]], max(len(every) - count, 0)
    found = [one for one in map(digest.read, every)
             if set(tags).issubset(one.notes.tags) and asked.matches(one.asked)]
    return found[:count], max(len(found) - count, 0)


def _to_dict(one: Digest, now: float) -> dict[str, object]:
    from dataclasses import asdict

    from gpu_engine.runs import job

    return one.state.to_dict() | {"path": str(one.run.path), "notes": asdict(one.notes),
                                  "task": one.task, "mode": one.mode,
                                  "seconds": one.state.took(now)} | job.to_dict(one.run.path)


def _why(one: Digest) -> list[str]:
    """The reason for a run's state, and the first file of its folder that can't be read."""
    reason = one.state.reason
    odd = [why for why in one.run.odd()[:1] if why != reason]
    told = [f"warning: {notice.message}" for notice in one.state.warnings[:1]]
    if len(one.state.warnings) > 1:
        told = [f"{told[0]} (and {len(one.state.warnings) - 1} more)"]
    return [*([reason] if reason else []), *told, *odd]


@command.command()
@click.argument("run", nargs=-1, required=True)
@click.option("--here", is_flag=True, help="Of runs on other hosts, delete only what is here.")
def rm(run: tuple[str, ...], here: bool) -> None:
    """Delete RUNs that have ended, with their checkpoints, here and on their hosts."""
    from gpu_engine.launch.found import find
    from gpu_engine.spanning.removal import Removal

    found, whole = [find(name) for name in run], True  # one that goes on elsewhere is live
    with Removal(only_here=here) as removal:
        for one in found:
            whole = _removed(one, removal.remove(one)) and whole
    if not whole:
        sys.exit(1)


def _removed(run: Run, outcome: Outcome) -> bool:
    """Say what was removed and what stays. Returns whether it was removed here."""
    from gpu_engine.common import units
    from gpu_engine.common.clean import clean

    for text in outcome.gone:
        echo(clean(f"{run.id} on {text}"))
    for text in outcome.stays:
        echo(clean(f"{run.id} on {text}"), err=True)
    if outcome.here is None:
        echo(f"{run.id} stays here, so that the rest of it can be removed later; --here "
                   "removes it here all the same", err=True)
        return False
    echo(f"{run.id} removed, {units.size(outcome.here)} freed")
    return True


@command.command()
@click.option("--keep", type=click.IntRange(0), required=True,
              help="How many of the newest to keep.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
def prune(keep: int, dry_run: bool) -> None:
    """Delete all but the newest of the runs that have ended, here and on their hosts."""
    from gpu_engine.common import units
    from gpu_engine.launch.taking_up import take_up_all
    from gpu_engine.runs import folder
    from gpu_engine.slurm import watch
    from gpu_engine.spanning.removal import Removal

    take_up_all()
    watch.refresh()
    ended = [r for r in folder.all_runs() if r.state().state in folder.FINAL]
    total = 0
    with Removal() as removal:
        for one in ended[keep:]:
            size = one.size()
            if dry_run:
                echo(f"{one.id} would be removed, {units.size(size)}")
            else:
                try:
                    if not _removed(one, removal.remove(one)):
                        continue
                except (OSError, UserError) as err:
                    echo(f"{one.id}: {err}", err=True)
                    continue
            total += size
    echo(f"{units.size(total)} in all", err=True)
