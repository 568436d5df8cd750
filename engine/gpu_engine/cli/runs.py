"""gpu-engine runs: list and delete runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import click

from gpu_engine.cli import tab
from gpu_engine.cli.output import agreed, echo, fields, for_scripts, in_json, table
from gpu_engine.common import paths, units, values
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import SpecError, UserError, meant
from gpu_engine.common.table import texts

if TYPE_CHECKING:
    from gpu_engine.cli.outputs import Listed
    from gpu_engine.remote.run.removal import Outcome
    from gpu_engine.report.listing import Row
    from gpu_engine.runs.folder import Run

ORDERS = ("created", "loss", "best", "steps", "took", "name", "state")
_YES = "Remove without asking. Scripts need it."


@click.group(invoke_without_command=True)
@for_scripts
@click.option("-n", "count", type=click.IntRange(1),
              help="How many runs to list (20, or runs.listed of settings.toml).")
@click.option("--filter", "-f", "wanted", default="", metavar="WORDS",
              help="Only runs that match all words: text, or FIELD:TEXT with one of id, name, "
                   "preset, task, mode, tag, state, note and verdict, or KEY=VALUE of the "
                   "spec; -WORD leaves runs out.")
@click.option("--since", "span", metavar="TIME",
              help="Only runs that were made in this time: 12h, 90m, 2d.")
@click.option("--best", metavar="VALUE",
              help="The best first by this value, evaluated, logged or printed: min:val_bpb, "
                   "max:accuracy.")
@click.option("--sort", "order", type=click.Choice(ORDERS),
              help="By the newest, the least loss, the best value, the most steps, the "
                   "longest time, the name or the state.  [default: created]")
@click.option("--reverse", is_flag=True, help="The other way round.")
@click.pass_context
def command(ctx: click.Context, as_json: bool, count: int | None, wanted: str,
            span: str | None, best: str | None, order: str | None, reverse: bool) -> None:
    """List the runs, newest first."""
    from gpu_engine.report import listing

    if ctx.invoked_subcommand is not None:
        return
    from gpu_engine.runs import query
    from gpu_engine.settings import file
    from gpu_engine.spec.schema import parse_best

    count = count or file.read().runs.listed
    take_up()
    now = time.time()
    asked = query.parse(wanted)
    if asked.doubt:
        raise UserError(f"--filter {wanted}: {asked.doubt}; in quotes it is text")
    try:
        value = parse_best(best, "--best")
    except SpecError as err:
        raise UserError(str(err)) from None
    if (long := values.seconds(span or "0")) is None:
        raise UserError(f"--since {span}: no length of time; give 12h, 90m or 2d")
    order = order or ("best" if best else "created")
    rows, more = listing.found_runs(asked, count, by=order, reverse=reverse, compared=best,
                                    since=now - long if span else 0.0)
    if value and rows and all(row.best is None for row in rows):
        there = dict.fromkeys(name for row in rows for name in row.figures.values)
        echo(f"none of these runs has recorded {value[0]!r}; {meant(value[0], there)}", err=True)
    if as_json:
        echo(in_json([_to_dict(row) for row in rows]))
        return
    # Parts of others' runs have no figures to be filtered or sorted by.
    parts = listing.parts(count, now) if not (asked or span or best or reverse) \
        and order == "created" else []
    for line in (*table(texts(listing.COLUMNS, rows) if rows else []), *table(parts)):
        echo(line)
    if not rows and (asked or span):
        echo("no run matches", err=True)
    elif not rows and not parts:
        echo("no runs yet; gpu-engine run default starts one", err=True)
    elif more:
        echo(f"and {more:,} {'older' if order == 'created' and not reverse else 'more'}; "
             "-n shows more", err=True)
    if parts:
        echo("parts are stopped where their run was started: gpu-engine stop RUN, there", err=True)


def take_up() -> None:
    """Have all go on whose process here was killed, and be told of what is elsewhere."""
    from gpu_engine.places import verbs
    from gpu_engine.runs import waiting

    verbs.look_at_all()
    folder = paths.queue_folder()
    if waiting.ids(folder) or any(folder.glob("s*.lock")):
        from gpu_engine.queue import serve  # only where runs wait, or rest

        with suppress(UserError):  # the list is printed all the same
            serve.ensure()


def _to_dict(row: Row) -> dict[str, object]:
    from gpu_engine.runs import job

    one, said = row.one, row.one.digest
    told: Listed = {
        "path": str(one.run.path), "notes": one.notes, "task": said.task, "mode": said.mode,
        "seconds": said.seconds, "steps": row.figures.steps, "loss": row.figures.loss,
        "best": None if row.best is None else {"name": row.by.name, "value": row.best}}
    return one.run.state().to_dict() | told | job.to_dict(one.run.path)


def _require_agreed(yes: bool, runs: Sequence[Run], which: str, *, only_here: bool = False
                    ) -> None:
    """Unless `yes`, ask whether these runs, called `which`, may be removed. Raises click.Abort if
    not, UserError where nobody can be asked."""
    from gpu_engine.places.verbs import what_goes

    if yes or not runs:
        return
    what = what_goes(runs, only_here=only_here)
    if sys.stdin is None or not sys.stdin.isatty():
        raise UserError(f"{what} Nobody can be asked here: --yes removes {which} without asking")
    if not agreed(f"{what} Remove {which}?", enter=False):
        raise click.Abort


@command.command()
@click.argument("run", nargs=-1, required=True, shell_complete=tab.runs)
@click.option("--yes", is_flag=True, help=_YES)
@click.option("--here", is_flag=True, help="Of runs on other hosts, delete only what is here.")
@click.option("--key", is_flag=True, hidden=True)
@for_scripts
def rm(run: tuple[str, ...], yes: bool, here: bool, key: bool, as_json: bool) -> None:
    """Remove RUNs that have ended, with their checkpoints and all that their hosts have. Says what
    goes, and asks."""
    from gpu_engine.places.verbs import find, remove

    if key:
        from gpu_engine.remote.there.part import started_by

        found = [one for one in map(started_by, run) if one is not None]
    else:
        found = list({one.path: one for one in map(find, run)}.values())
    for one in found:  # one that goes on elsewhere is live
        one.require_removable()
    _require_agreed(yes, found, ", ".join(one.id for one in found), only_here=here)
    told, whole, away = [], True, {}
    for one in found:
        outcome = remove(one, away, only_here=here)
        told.append(fields(outcome, id=one.id))
        whole &= outcome.here is not None if as_json else _removed(one.id, outcome)
    if as_json:
        echo(in_json(told))
    if not whole:
        sys.exit(1)


def _removed(run: str, outcome: Outcome) -> bool:
    """Say what was removed and what stays. Returns whether it was removed here."""
    for text in outcome.gone:
        echo(clean(f"{run} on {text}"))
    for text in outcome.stays:
        echo(clean(f"{run} on {text}"), err=True)
    if outcome.here is None:
        echo(f"{run} stays here, so that the rest of it can be removed later; --here "
             "removes it here all the same", err=True)
        return False
    echo(f"{run} removed, {units.size(outcome.here.freed)} freed")
    return True


@command.command()
@click.option("--keep", type=click.IntRange(0), required=True,
              help="How many of the newest to keep.")
@click.option("--yes", is_flag=True, help=_YES)
def prune(keep: int, yes: bool) -> None:
    """Remove all but the newest of the runs that have ended, as rm does. Says what goes, and
    asks."""
    from gpu_engine.places import verbs
    from gpu_engine.runs import folder

    verbs.look_at_all()
    going = [r for r in folder.all_runs() if r.state().state in folder.FINAL][keep:]
    total, away = 0, {}
    _require_agreed(yes, going, f"all but the newest {keep}" if keep else "all")
    for one in going:
        size = one.size()
        try:
            total += size if _removed(one.id, verbs.remove(one, away)) else 0
        except (OSError, UserError) as err:
            echo(f"{one.id}: {err}", err=True)
    echo(f"{units.size(total)} in all", err=True)


@click.command()
@click.argument("run", shell_complete=tab.runs)
@click.argument("text", required=False)
@click.option("--name", help="Shown in place of the name that it was started with; '' removes it.")
@click.option("--tag", "added", multiple=True, metavar="TAG", help="Add a tag, or several: a,b.")
@click.option("--untag", "removed", multiple=True, metavar="TAG", help="Remove a tag.")
@click.option("--keep", "verdict", flag_value="keep",
              help="Say that its result is worth keeping; so is its code, then.")
@click.option("--discard", "verdict", flag_value="discard", help="Say that it is not.")
@click.option("--undecided", "verdict", flag_value="", help="Take back what was said of it.")
@for_scripts
def note(run: str, text: str | None, name: str | None, added: tuple[str, ...],
            removed: tuple[str, ...], verdict: Literal["keep", "discard", ""] | None,
            as_json: bool) -> None:
    """Write TEXT on RUN (an id, the beginning of one, or "last") as its note, in place of the one
    before; '' removes it. Without TEXT and options, show what is written on it."""
    from gpu_engine.runs import folder, notes

    path = folder.find(run).path
    plus = notes.parse_tags(added)
    minus = notes.parse_tags(removed)

    def changed(now: notes.Notes) -> notes.Notes:
        return replace(now.with_tags(plus, minus),
                       name=now.name if name is None else name or None,
                       note=now.note if text is None else text,
                       verdict=now.verdict if verdict is None else verdict or None)

    if (text, name, verdict) != (None, None, None) or plus or minus:
        found = notes.change(path, changed)
    else:
        notes.require_readable(path)
        found = notes.read(path)
    if as_json:
        echo(in_json(fields(found, id=path.name)))
        return
    for line in notes.lines(found) or ["nothing is written on it"]:
        echo(clean(line))
