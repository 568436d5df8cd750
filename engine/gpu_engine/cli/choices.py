"""What there is to choose from: gpu-engine presets, describe and settings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from gpu_engine.cli import tab
from gpu_engine.cli.output import echo, fields, for_scripts, in_json
from gpu_engine.common import values

if TYPE_CHECKING:
    from gpu_engine.cli.outputs import Preset
    from gpu_engine.spec.catalog import TaskField


@click.command()
@click.argument("name", required=False, shell_complete=tab.presets)
@for_scripts
@click.option("--keys", "list_keys", is_flag=True, help="List all keys of presets and --set.")
def presets(name: str | None, as_json: bool, list_keys: bool) -> None:
    """List the presets and their files, or print NAME's."""
    from gpu_engine.spec import presets as files
    from gpu_engine.spec.catalog import key_docs
    from gpu_engine.spec.schema import keys
    from gpu_engine.spec.write import to_dict

    if list_keys:
        for key in keys().values():
            default = values.show(key.default)
            echo(f"{key.dotted}: {values.describe(key.kind)}"
                 + (f"; unless given: {default}" if default else ""))
            echo(f"    {key_docs()[key.dotted]}")
    elif name is None:
        _list(as_json)
    else:
        preset = files.load(name)
        echo(in_json(to_dict(preset.spec)) if as_json
             else preset.path.read_text(encoding="utf-8").rstrip())


def _list(as_json: bool) -> None:
    """Print a line for each preset, and below it what it is for and how it differs from the shipped
    one of its name."""
    from gpu_engine.spec import modes
    from gpu_engine.spec import presets as files

    rows: list[Preset] = []
    for found in files.all_presets():
        row: Preset = {"name": "", "path": "", "shipped": None, "mode": None, "problem": None,
                       "description": "", "changes": None}
        if isinstance(found, files.Preset):
            name, path, changes = found.name, found.path, files.changes(found)
            row.update({
                "shipped": found.shipped, "mode": found.spec.parallel.mode,
                "description": files.about(found), "changes": None if changes is None else [
                    {"key": c.key, "shipped": c.before, "own": c.after} for c in changes]})
        else:
            path, row["problem"] = found
            name = path.stem
        row.update({"name": name, "path": str(path)})
        rows.append(row)
        if as_json:
            continue
        what = modes.get(row["mode"]).label if row["mode"] else f"unreadable: {row['problem']}"
        over = "  (hides the shipped one)" if not row["shipped"] and files.ships(name) else ""
        echo(f"{name:<16} {what:<14} {path}{over}")
        for line in ([row["description"]] if row["description"] else []) + [
                f"{c['key']}: {c['shipped'] or 'not set'} → {c['own'] or 'not set'}"
                for c in row["changes"] or ()]:
            echo(f"{'':<16} {line}")
    if as_json:
        echo(in_json(rows))
    else:
        echo(f"\nYour own are kept in {files.own_folder()}", err=True)


@click.command()
@click.argument("task", required=False)
@for_scripts
def describe(task: str | None, as_json: bool) -> None:
    """Show the parameters of TASK (module:Class or path/to/file.py:Class), or list the built-in
    tasks. Read from the source: nothing is imported or run."""
    from gpu_engine.spec import catalog

    infos = [catalog.describe(task)] if task else catalog.builtin()
    found: list[Any] = [fields(info, "whole", file=str(info.file),
                               fields=[_field(f) for f in info.fields]) for info in infos]
    if as_json:
        echo(in_json(found[0] if task else found))
        return
    for info in found:
        echo(info["use"])
        if info["doc"]:
            echo("  " + info["doc"].splitlines()[0])
        for f in info["fields"]:
            default = f"= {f['default']!r}" if "default" in f else "required"
            echo(f"  {f['name']}: {f['type']} {default}"
                 + (f"  {' '.join(f['help'].split())}" if f["help"] else ""))
        echo()


def _field(f: TaskField) -> dict[str, Any]:
    choices = [text for text, _ in f.kind.without_none.choices]
    return {"name": f.name, "type": f.type, "help": f.help} \
        | ({} if f.required else {"default": f.default}) | ({"choices": choices} if choices else {})


@click.command()
@click.option("--init", "begin", is_flag=True,
              help="Write settings.toml, with every default as a comment.")
@click.option("--schema", "asked", metavar="[NAME]", is_flag=False, flag_value="preset",
              help="Print the JSON schema of presets, for an editor; with NAME, of what that "
                   "command prints with --json, as 'sweep show'. list: the names.")
@for_scripts
def settings(begin: bool, asked: str | None, as_json: bool) -> None:
    """Show the settings in force, and where each comes from: the environment, settings.toml or the
    default. The environment outranks the file; the file outranks what the panel remembers."""
    from gpu_engine.settings import file, schema

    if asked is not None:
        from gpu_engine.cli import outputs

        echo(in_json(outputs.schema(asked)))
        return
    if begin:
        echo(f"{file.begin()}: take the # away from a line to change it")
        return
    found = file.read()
    rows = [(setting, getattr(getattr(found, section), key),
             file.source(setting, found, os.environ))
            for setting in schema.every().values()
            for section, _, key in [setting.name.partition(".")]]
    if as_json:
        echo(in_json({"path": str(file.path()), "keys": dict(found.keys), "settings": [
            fields(s, "kind", "env", value=value, source=where)
            for s, value, where in rows]}))
        return
    lines = [(f"{setting.name:<20}", value, where) for setting, value, where in rows]
    lines += [(f"keys.{action:<15}", typed, "file") for action, typed in found.keys.items()]
    lines += [(f"{f'commands.{own.name}.key':<20}", own.key, "file") for own in found.commands]
    for name, value, where in lines:
        echo(f"{name} {values.in_toml(value):<16} {where}")
    if found.keys or found.commands:
        echo("\ngpu-panel --keys says whether its keys are free", err=True)
    there = file.path().exists()
    echo(f"\n{file.path()}" + ("" if there else ": not there; --init writes it"), err=True)
