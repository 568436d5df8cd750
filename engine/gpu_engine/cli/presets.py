"""gpu-engine presets: which there are, and what one says."""

from __future__ import annotations

import click


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
def command(name: str | None, as_json: bool) -> None:
    """List the presets, or print NAME's file."""
    from gpu_engine import presets
    from gpu_engine.runs import dumps
    from gpu_engine.spec import MODE_NAMES, to_dict

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
        what = MODE_NAMES[row["mode"]] if row["mode"] else f"unreadable: {row['problem']}"
        click.echo(f"{row['name']:<16} {what:<14} {row['path']}")
    click.echo(f"\nYour own are kept in {presets.own_folder()}", err=True)
