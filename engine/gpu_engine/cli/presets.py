"""gpu-engine presets: list, print and delete presets."""

from __future__ import annotations

import click


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
@click.option("--delete", is_flag=True, help="Delete NAME, a preset of your own.")
def command(name: str | None, as_json: bool, delete: bool) -> None:
    """List the presets, print NAME's file, or delete it."""
    from gpu_engine.runs.folder import dumps
    from gpu_engine.spec import modes, presets
    from gpu_engine.spec.write import to_dict

    if delete:
        if name is None:
            raise click.UsageError("--delete needs the NAME of a preset of your own")
        path = presets.remove(name)
        click.echo(f"{path} deleted" + ("; the shipped preset of this name is used again"
                                        if presets.ships(name) else ""))
        return
    if name is not None:
        preset = presets.load(name)
        click.echo(dumps(to_dict(preset.spec)) if as_json
                   else preset.path.read_text(encoding="utf-8").rstrip())
        return
    rows = []
    for found in presets.all_presets():
        if isinstance(found, presets.Preset):
            rows.append({"name": found.name, "path": str(found.path), "shipped": found.shipped,
                         "mode": found.spec.parallel.mode, "problem": None})
        else:
            path, why = found
            rows.append({"name": path.stem, "path": str(path), "shipped": None, "mode": None,
                         "problem": why})
    if as_json:
        click.echo(dumps(rows))
        return
    for row in rows:
        what = modes.get(row["mode"]).label if row["mode"] else f"unreadable: {row['problem']}"
        over = "  (hides the shipped one)" \
            if row["shipped"] is not True and presets.ships(row["name"]) else ""
        click.echo(f"{row['name']:<16} {what:<14} {row['path']}{over}")
    click.echo(f"\nYour own are kept in {presets.own_folder()}", err=True)
