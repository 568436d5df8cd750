"""Exports from a screen: asks what and where, runs `gpu-engine` beside the panel, and tells."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
from textual.app import App

from gpu_engine.cli import export as figures
from gpu_engine.cli import report
from gpu_engine.common.errors import UserError
from gpu_engine.common.programs import own_environment, own_program
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.command_dialog import CommandDialog, Form
from gpu_panel.common.dialogs import harmless
from gpu_panel.common.errors import guard
from gpu_panel.common.picking import pick


class Target(NamedTuple):
    command: click.Command
    label: str
    fields: Mapping[str, str]
    """What is asked, with what is offered; RUN stands for the run's id."""
    to: str | None = None


TARGETS = (
    Target(report.command, "a report, as one HTML page", {"--out": "report-RUN.html"}),
    Target(figures.command, "the figures as CSV", {"--out": "RUN.csv"}, "csv"),
    Target(figures.command, "the figures for TensorBoard", {"--out": "tensorboard"}, "tensorboard"),
    Target(figures.command, "the figures for Weights & Biases", {"--project": "", "--out": ""},
           "wandb"),
)


async def export(app: App[Any], runs: Sequence[str]) -> None:
    """Ask what to make of these runs, and make it."""
    def chosen(target: Target) -> None:
        app.run_worker(_export(app, target, list(runs)), group="export", exit_on_error=False)

    pick(app, "What to write", [(target.label, "", partial(chosen, target)) for target in TARGETS])


async def _export(app: App[Any], target: Target, runs: list[str]) -> None:
    """In a process of its own: a long run takes a while, and some targets' libraries are large."""
    async def words(_: click.Context, typed: list[str]) -> list[str]:
        begin = ["report"] if target.to is None else ["export", "--to", target.to]
        return [*begin, *runs, *typed]

    with guard(app):
        name = runs[0] if len(runs) == 1 else f"{runs[0]}-and-{len(runs) - 1}"
        form = Form(target.command, {"runs": runs} if target.to is None else
                    {"words": runs, "to": target.to}, ("--json", "--from", "--python", *(
                        [] if "--project" in target.fields else ["--project"])))
        line: list[str] | None = await app.push_screen_wait(CommandDialog(
            form, {field: text.replace("RUN", name) for field, text in target.fields.items()},
            words, title=f"Write {target.label}", about=f"A name in {Path.cwd()}, or a whole path.",
            does="Write"))
        if line is None:
            return
        app.notify("Exporting … The panel can be used meanwhile")
        done = await in_thread(lambda: _run(line))
        said = (done.stdout if done.returncode == 0 else done.stderr).strip()
        if done.returncode != 0:
            raise UserError(said or f"the export ended with {done.returncode}")
        same.done(app, f"Written: {harmless(said).plain}" if said else "Written", [line])


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    argv = own_program("gpu_engine", *words)
    return subprocess.run(argv, env=own_environment(), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, errors="replace", check=False)
