"""gpu-engine runs: list and delete runs."""

from __future__ import annotations

import math
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import click

from gpu_engine.cli.group import Commands
from gpu_engine.cli.output import echo
from gpu_engine.cli.tables import table
from gpu_engine.common.errors import UserError
from gpu_engine.common.frozen import frozen

if TYPE_CHECKING:
    from gpu_engine.remote.run.removal import Outcome
    from gpu_engine.runs.folder import Run
    from gpu_engine.runs.query import Query
    from gpu_engine.runs.summary import Digest
    from gpu_engine.sweep.figures import Figures

    Row: TypeAlias = tuple[Digest, Figures]

_ORDERS = ("created", "loss", "best", "steps", "took", "name", "state")
_HEADS = ("id", "state", "name", "mode", "steps", "loss", "best eval", "took", "created", "")
_MAY_LACK = ("steps", "loss", "best eval", "")
"""Columns that are left out where no run has anything in them."""


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
    rows, more = _found(asked, tags, count, _Order(order, reverse, now))
    if as_json:
        echo(folder.dumps([_to_dict(one, figures, now) for one, figures in rows]))
        return
    lines = [_line(one, figures, now) for one, figures in rows]
    kept = [at for at, head in enumerate(_HEADS) if head not in _MAY_LACK
            or any(line[at] for line in lines)]
    for line in table([[line[at] for at in kept] for line in (_HEADS, *lines)] if lines else []):
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


@frozen(slots=True)
class _Order:
    """In which order runs are listed."""

    by: str
    reverse: bool
    now: float

    def sorted(self, rows: list[Row]) -> list[Row]:
        """The rows in this order; those that lack the value last."""
        told = [(self._key(row), row) for row in rows]
        known = [(key, row) for key, row in told if key is not None]
        known.sort(key=lambda each: each[0], reverse=self.reverse)
        return [row for _, row in known] + [row for key, row in told if key is None]

    def _key(self, row: Row) -> float | str | None:
        one, figures = row
        best, took = _best(one, figures), one.state.took(self.now)
        if self.by == "loss":
            return _finite(_loss(figures))
        if self.by == "best":
            return None if best is None else -best[1] if best[2] else best[1]
        if self.by == "steps":
            return None if figures.steps is None else -figures.steps
        if self.by == "took":
            return None if took is None else -took
        return {"created": -one.state.created, "name": one.name, "state": one.state.state}[self.by]


def _found(asked: Query, tags: tuple[str, ...], count: int, order: _Order
           ) -> tuple[list[Row], int]:
    """The first `count` runs that match, with their figures, and how many more do."""
    from gpu_engine.runs import folder, summary
    from gpu_engine.sweep.figures import FiguresOf

    every, figures = folder.all_runs(), FiguresOf()
    newest = order.by == "created" and not order.reverse
    if newest and not asked and not tags:
        found, more = [summary.read(run) for run in every[:count]], max(len(every) - count, 0)
    else:
        found = [one for one in map(summary.read, every)
                 if set(tags).issubset(one.notes.tags) and asked.matches(one.asked)]
        found, more = found[:count] if newest else found, max(len(found) - count, 0)
    rows = [(one, figures.read(one.run, one.state)) for one in found]
    figures.keep()
    return (rows if newest else order.sorted(rows)[:count]), more


def _line(one: Digest, figures: Figures, now: float) -> tuple[str, ...]:
    """The cells of a run, as `_HEADS` names them."""
    from gpu_engine.common import units
    from gpu_engine.common.clean import clean

    state, best = one.state, _best(one, figures)
    tags = [f"[{', '.join(one.notes.tags)}]"] if one.notes.tags else []
    return (one.run.id, state.state, clean(one.name, 16),
            f"{clean(one.mode, 10) or '?'} ×{one.world_size or '?'}",
            "" if figures.steps is None else units.count(figures.steps),
            "" if _loss(figures) is None else units.loss(_loss(figures)),
            "" if best is None else f"{clean(best[0], 10)} {units.loss(best[1])}",
            units.clock(state.took(now)), units.ago(now - state.created),
            " ".join([*tags, "; ".join(map(clean, _why(one)))]).strip())


def _loss(figures: Figures) -> float | None:
    """The loss of the last step, which may not be finite; None: not known."""
    found = figures.values.get("loss")
    return None if found is None else found.last


def _best(one: Digest, figures: Figures) -> tuple[str, float, bool] | None:
    """The best value of the evaluations: (its name, the value, whether larger is better). By
    train.best, else by the loss or the accuracy, whichever there is."""
    from gpu_engine.spec.best import parse_best

    try:
        asked = parse_best(one.best)
    except UserError:
        asked = None
    for name, largest in ([asked] if asked else [("loss", False), ("accuracy", True)]):
        found = figures.values.get(f"eval:{name}")
        value = None if found is None else found.greatest if largest else found.least
        if value is not None:
            return name, value, largest
    return None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _to_dict(one: Digest, figures: Figures, now: float) -> dict[str, object]:
    from dataclasses import asdict

    from gpu_engine.events.convert import json_safe
    from gpu_engine.runs import job

    best = _best(one, figures)
    return one.state.to_dict() | {
        "path": str(one.run.path), "notes": asdict(one.notes), "task": one.task, "mode": one.mode,
        "seconds": one.state.took(now), "steps": figures.steps, "loss": json_safe(_loss(figures)),
        "best": None if best is None else {"name": best[0], "value": best[1]},
        } | job.to_dict(one.run.path)


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
