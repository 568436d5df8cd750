"""gpu-engine settings: the settings in force, and where each comes from."""

from __future__ import annotations

import os

import click

from gpu_engine.cli.output import echo, in_json
from gpu_engine.common.values import in_toml
from gpu_engine.settings import file, schema


@click.command()
@click.option("--init", "begin", is_flag=True,
              help="Write settings.toml, with every default as a comment.")
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
def command(begin: bool, as_json: bool) -> None:
    """Show the settings in force, and where each comes from: the environment, settings.toml or the
    default. The environment outranks the file; the file outranks what the panel remembers."""
    if begin:
        echo(f"{file.begin()}: take the # away from a line to change it")
        return
    found = file.read()
    rows = []
    for setting in schema.every().values():
        section, _, key = setting.name.partition(".")
        rows.append((setting, getattr(getattr(found, section), key),
                     file.source(setting, found, os.environ)))
    if as_json:
        echo(in_json({"path": str(file.path()), "keys": dict(found.keys), "settings": [
            {"name": s.name, "value": list(v) if isinstance(v, tuple) else v, "source": where,
             "default": list(s.default) if isinstance(s.default, tuple) else s.default,
             "help": s.help} for s, v, where in rows]}))
        return
    for setting, value, where in rows:
        echo(f"{setting.name:<20} {in_toml(value):<16} {where}")
    for action, typed in found.keys.items():
        echo(f"keys.{action:<15} {in_toml(typed):<16} file")
    for own in found.commands:
        echo(f"{f'commands.{own.name}.key':<20} {in_toml(own.key):<16} file")
    if found.keys or found.commands:
        echo("\ngpu-panel --keys says whether its keys are free", err=True)
    there = file.path().exists()
    echo(f"\n{file.path()}" + ("" if there else ": not there; --init writes it"), err=True)
