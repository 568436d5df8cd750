"""Exports from a screen: asks what and where, runs `gpu-engine` beside the panel, and tells."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
from textual.app import App

from gpu_engine.cli import export as figures
from gpu_engine.cli import report
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import expanded
from gpu_engine.common.programs import own_environment, own_program
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.command_dialog import CommandDialog, Form
from gpu_panel.common.dialogs import harmless
from gpu_panel.common.errors import guard
from gpu_panel.common.picking import pick


class Target(NamedTuple):
    words: tuple[str, ...]
    label: str
    out: str
    """The name that is offered; RUN stands for the run's id. Empty: the target's own place."""


TARGETS = (
    Target(("report",), "a report, as one HTML page", "report-RUN.html"),
    Target(("export", "--to", "csv"), "the figures as CSV", "RUN.csv"),
    Target(("export", "--to", "tensorboard"), "the figures for TensorBoard", "tensorboard"),
    Target(("export", "--to", "wandb"), "the figures for Weights & Biases", ""),
)
_WITHOUT = ("as_json", "which", "best", "python")
"""Parameters of `export` for weights."""


async def export(app: App[Any], runs: Sequence[str]) -> None:
    """Ask what to make of these runs, and make it."""
    def chosen(target: Target) -> None:
        app.run_worker(_export(app, target, list(runs)), group="export", exit_on_error=False)

    pick(app, "What to write", [(target.label, "", partial(chosen, target)) for target in TARGETS])


async def _export(app: App[Any], target: Target, runs: list[str]) -> None:
    """In a process of its own: a long run takes a while, and some targets' libraries are large."""
    with guard(app):
        name = runs[0] if len(runs) == 1 else f"{runs[0]}-and-{len(runs) - 1}"
        command, to = (report if target.words == ("report",) else figures).command, target.words[-1]
        # The runs are no default: click 8.1 has none for arguments of any number.
        options = [param for param in command.params if isinstance(param, click.Option)]
        line = list[str]()

        async def write(_: click.Context, typed: list[str]) -> str:
            line[:] = [*target.words, *runs, *(str(expanded(word)) for word in typed)]
            return await in_thread(lambda: _run(line))

        written: str | None = await app.push_screen_wait(CommandDialog(
            Form(click.Command(command.name, params=[*options]), {"to": to},
                 _WITHOUT if to == "wandb" else (*_WITHOUT, "project")),
            {"--out": target.out.replace("RUN", name)},
            f"Write {target.label}", f"A name in {Path.cwd()}, or a whole path.", "Write", write))
        if written is not None:
            same.done(app, f"Written: {harmless(written).plain}" if written else "Written", [line])


def _run(words: Sequence[str]) -> str:
    """What it prints. Raises UserError where it fails."""
    argv = own_program("gpu_engine", *words)
    done = subprocess.run(argv, env=own_environment(), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise UserError(done.stderr.strip() or f"the export ended with {done.returncode}")
    return done.stdout.strip()
