"""gpu-engine describe: a task's parameters, read from its source."""

from __future__ import annotations

import click


@click.command()
@click.argument("task", required=False)
@click.option("--json", "as_json", is_flag=True, help="For scripts and forms.")
def command(task: str | None, as_json: bool) -> None:
    """Show the parameters of TASK (module:Class or path/to/file.py:Class), or list the built-in
    tasks."""
    from dataclasses import asdict

    from gpu_engine import catalog
    from gpu_engine.runs import dumps

    found = [catalog.describe(task)] if task else catalog.builtin()
    if as_json:
        rows = [asdict(info) | {"file": str(info.file)} for info in found]
        click.echo(dumps(rows[0] if task else rows))
        return
    for info in found:
        click.echo(info.use)
        if info.doc:
            click.echo("  " + info.doc.splitlines()[0])
        for f in info.fields:
            default = "required" if f.required else f"= {f.default!r}"
            click.echo(f"  {f.name}: {f.type} {default}" + (f"  {f.help}" if f.help else ""))
        click.echo()
