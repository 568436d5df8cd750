"""gpu-engine runs: list and delete runs."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from gpu_engine.cli.group import Commands
from gpu_engine.cli.output import echo
from gpu_engine.cli.tables import table
from gpu_engine.common.errors import UserError

if TYPE_CHECKING:
    from gpu_engine.remote.run.removal import Outcome
    from gpu_engine.runs.folder import Run
    from gpu_engine.runs.summary import Digest
    from gpu_engine.sweep.figures import Figures

_ORDERS = ("created", "loss", "best", "steps", "took", "name", "state")


@click.group(cls=Commands, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
@click.option("-n", "count", type=click.IntRange(1),
              help="How many runs to list (20, or runs.listed of settings.toml).")
@click.option("--filter", "-f", "wanted", default="", metavar="WORDS",
              help="Only runs that match all words: text, or FIELD:TEXT with one of id, name, "
                   "preset, task, mode, tag, state and note; -WORD leaves runs out.")
@click.option("--sort", "order", type=click.Choice(list(_ORDERS)), default="created",
              help="By which column: the newest, the least loss, the best evaluation, the most "
                   "steps, the longest first.")
@click.option("--reverse", is_flag=True, help="The other way round.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only runs with this tag.")
@click.pass_context
def command(ctx: click.Context, as_json: bool, count: int | None, wanted: str,
            order: str, reverse: bool, tags: tuple[str, ...]) -> None:
    """List the runs, newest first."""
    if ctx.invoked_subcommand is not None:
        return
    from gpu_engine.launching.reattach import take_up_all
    from gpu_engine.report import listing
    from gpu_engine.runs import folder, query
    from gpu_engine.settings import file
    from gpu_engine.slurm import watch

    count = count or file.read().runs.listed
    take_up_all()
    _go_on_with_the_queue()
    watch.refresh()
    now = time.time()
    asked = query.parse(wanted)
    if asked.doubt:
        raise UserError(f"--filter {wanted}: {asked.doubt}; in quotes it is text")
    rows, more = listing.found_runs(asked, tags, count, listing.Order(order, reverse, now))
    if as_json:
        echo(folder.dumps([_to_dict(one, figures, now) for one, figures in rows]))
        return
    heads, lines = listing.cells(rows, now)
    for line in table([heads, *lines] if lines else []):
        echo(line)
    if not rows and (asked or tags):
        echo("no run matches", err=True)
    elif not rows:
        echo("no runs yet; gpu-engine run default starts one", err=True)
    elif more:
        echo(f"and {more:,} {'older ones' if order == 'created' and not reverse else 'more'}; "
             "-n shows more", err=True)


def _go_on_with_the_queue() -> None:
    from gpu_engine.common import paths
    from gpu_engine.runs import waiting

    if waiting.any_here(paths.queue_folder()):
        from gpu_engine.queue import waiter  # only where runs wait

        with suppress(UserError):  # the list is printed all the same
            waiter.ensure()


def _to_dict(one: Digest, figures: Figures, now: float) -> dict[str, object]:
    from dataclasses import asdict

    from gpu_engine.events.convert import json_safe
    from gpu_engine.report import listing
    from gpu_engine.runs import job

    best = listing.best_evaluation(one, figures)
    return one.state.to_dict() | {
        "path": str(one.run.path), "notes": asdict(one.notes), "task": one.task, "mode": one.mode,
        "seconds": one.state.took(now), "steps": figures.steps,
        "loss": json_safe(listing.last_loss(figures)),
        "best": None if best is None else {"name": best[0], "value": best[1]},
        } | job.to_dict(one.run.path)


@command.command()
@click.argument("run", nargs=-1, required=True)
@click.option("--here", is_flag=True, help="Of runs on other hosts, delete only what is here.")
def rm(run: tuple[str, ...], here: bool) -> None:
    """Delete RUNs that have ended, with their checkpoints, here and on their hosts."""
    from gpu_engine.launching.lookup import find
    from gpu_engine.remote.run.removal import Removal

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
    from gpu_engine.launching.reattach import take_up_all
    from gpu_engine.remote.run.removal import Removal
    from gpu_engine.runs import folder
    from gpu_engine.slurm import watch

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
