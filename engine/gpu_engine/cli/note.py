"""gpu-engine note: a name, tags and a note of one's own on a run."""

from __future__ import annotations

from dataclasses import asdict, replace

import click

from gpu_engine.cli import tab
from gpu_engine.cli.output import echo, in_json
from gpu_engine.common.clean import clean


@click.command()
@click.argument("run", shell_complete=tab.runs)
@click.argument("text", required=False)
@click.option("--name", help="Shown in place of the name that it was started with; '' removes it.")
@click.option("--tag", "added", multiple=True, metavar="TAG", help="Add a tag, or several: a,b.")
@click.option("--untag", "removed", multiple=True, metavar="TAG", help="Remove a tag.")
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
def command(run: str, text: str | None, name: str | None, added: tuple[str, ...],
            removed: tuple[str, ...], as_json: bool) -> None:
    """Write TEXT on RUN (an id, the beginning of one, or "last") as its note, in place of the one
    before; '' removes it. Without TEXT and options, show what is written on it."""
    from gpu_engine.runs import folder, notes

    path = folder.find(run).path
    plus = [tag for text in added for tag in notes.parse_tags(text)]
    minus = [tag for text in removed for tag in notes.parse_tags(text)]

    def changed(now: notes.Notes) -> notes.Notes:
        return replace(now.with_tags(plus, minus),
                       name=now.name if name is None else name or None,
                       note=now.note if text is None else text)

    if text is not None or name is not None or plus or minus:
        found = notes.change(path, changed)
    else:
        notes.require_readable(path)
        found = notes.read(path)
    if as_json:
        echo(in_json({"id": path.name, **asdict(found)}))
        return
    for line in notes.lines(found) or ["nothing is written on it"]:
        echo(clean(line))
