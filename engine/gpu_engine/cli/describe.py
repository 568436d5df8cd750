"""gpu-engine describe: a task's parameters."""

from __future__ import annotations

from typing import Any

import click

from gpu_engine.cli.output import echo, in_json
from gpu_engine.spec import catalog
from gpu_engine.spec.catalog import TaskInfo


@click.command()
@click.argument("task", required=False)
@click.option("--json", "as_json", is_flag=True, help="For scripts and forms.")
@click.option("--source", is_flag=True, help="Only read the source; import and run nothing.")
@click.option("--python", help="The interpreter in which to import it; default: the one that a "
              "run would take.")
def command(task: str | None, as_json: bool, source: bool, python: str | None) -> None:
    """Show the parameters of TASK (module:Class or path/to/file.py:Class), or list the built-in
    tasks. Unless --source is given, TASK is imported, in a process of its own."""
    if task is None or source:
        infos = [catalog.describe(task)] if task else catalog.builtin()
        found = [_to_dict(info) for info in infos]
    else:
        from gpu_engine.launching import ask_torch

        found = [ask_torch.describe(task, python=python)]
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


def _to_dict(info: TaskInfo) -> dict[str, Any]:
    fields: list[dict[str, Any]] = []
    for f in info.fields:
        told: dict[str, Any] = {"name": f.name, "type": f.type, "help": f.help}
        if not f.required:
            told["default"] = f.default
        if choices := f.kind.without_none.choices:
            told["choices"] = [text for text, _ in choices]
        fields.append(told)
    return {"use": info.use, "name": info.name, "doc": info.doc, "file": str(info.file),
            "fields": fields}
