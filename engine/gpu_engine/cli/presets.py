"""gpu-engine presets: list, print, describe, rename, copy and delete presets."""

from __future__ import annotations

from typing import Any

import click

from gpu_engine.cli import tab
from gpu_engine.cli.output import echo, in_json
from gpu_engine.common import values
from gpu_engine.spec import modes, presets
from gpu_engine.spec.key_docs import docs
from gpu_engine.spec.schema import keys
from gpu_engine.spec.write import to_dict


@click.command()
@click.argument("name", required=False, shell_complete=tab.presets)
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
@click.option("--keys", "list_keys", is_flag=True, help="List all keys of presets and --set.")
@click.option("--describe", metavar="TEXT", help="Say what NAME is for; an empty TEXT removes it.")
@click.option("--rename", metavar="NEW", help="Give NAME, a preset of your own, another name.")
@click.option("--duplicate", metavar="NEW", help="Copy NAME as a preset of your own.")
@click.option("--delete", is_flag=True, help="Delete NAME, a preset of your own.")
def command(name: str | None, as_json: bool, list_keys: bool, describe: str | None,
            rename: str | None, duplicate: str | None, delete: bool) -> None:
    """List the presets, print NAME's file, or change which there are."""
    if list_keys:
        _keys()
        return
    asked = {"--describe": describe is not None, "--rename": rename is not None,
             "--duplicate": duplicate is not None, "--delete": delete}
    given = [option for option, there in asked.items() if there]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} can't be given together")
    if given and name is None:
        raise click.UsageError(f"{given[0]} needs the NAME of a preset")
    if name is None:
        _list(as_json)
    elif delete:
        path = presets.remove(name)
        echo(f"{path} deleted" + ("; the shipped preset of this name is used again"
                                        if presets.ships(name) else ""))
    elif rename is not None:
        echo(f"now {presets.rename(name, rename)}")
    elif duplicate is not None:
        echo(f"copied to {presets.duplicate(name, duplicate)}")
    elif describe is not None:
        echo(f"{presets.describe(name, describe)} changed")
    else:
        preset = presets.load(name)
        echo(in_json(to_dict(preset.spec)) if as_json
             else preset.path.read_text(encoding="utf-8").rstrip())


def _keys() -> None:
    """Print each key with what it takes and means."""
    for key in keys().values():
        default = f"; unless given: {values.show(key.default)}" if values.show(key.default) else ""
        echo(f"{key.dotted}: {values.describe(key.kind)}{default}\n    {docs()[key.dotted]}")


def _list(as_json: bool) -> None:
    """Print a line for each preset, and below it what it is for and how it differs from the shipped
    one of its name."""
    rows: list[dict[str, Any]] = []
    for found in presets.all_presets():
        if isinstance(found, presets.Preset):
            changes = presets.changes(found)
            rows.append({"name": found.name, "path": str(found.path), "shipped": found.shipped,
                         "mode": found.spec.parallel.mode, "problem": None,
                         "description": presets.about(found),
                         "changes": None if changes is None else [
                             {"key": c.key, "shipped": c.before, "own": c.after} for c in changes]})
        else:
            path, why = found
            rows.append({"name": path.stem, "path": str(path), "shipped": None, "mode": None,
                         "problem": why, "description": "", "changes": None})
    if as_json:
        echo(in_json(rows))
        return
    for row in rows:
        what = modes.get(row["mode"]).label if row["mode"] else f"unreadable: {row['problem']}"
        over = "  (hides the shipped one)" \
            if row["shipped"] is not True and presets.ships(row["name"]) else ""
        echo(f"{row['name']:<16} {what:<14} {row['path']}{over}")
        if row["description"]:
            echo(f"{'':<16} {row['description']}")
        for change in row["changes"] or ():
            echo(f"{'':<16} {change['key']}: {change['shipped'] or 'not set'} → "
                 f"{change['own'] or 'not set'}")
    echo(f"\nYour own are kept in {presets.own_folder()}", err=True)
