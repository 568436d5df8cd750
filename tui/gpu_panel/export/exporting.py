"""Exporting from a screen: asks, runs `gpu-engine` beside the panel, and says what came of it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from textual.app import App

from gpu_engine.common.errors import UserError
from gpu_engine.common.own_programs import own_environment, own_program
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import harmless
from gpu_panel.export.dialog import ExportDialog


async def export(app: App, runs: Sequence[str]) -> None:
    """Ask what to make of these runs, and make it, in a process of its own: a long run takes a
    while, and the libraries of some targets are large. Raises UserError with what it says."""
    words = await app.push_screen_wait(ExportDialog(runs))
    if words is None:
        return
    app.notify("Exporting … The panel can be used meanwhile")
    done = await in_thread(lambda: _run(words), name="panel-export")
    said = (done.stdout if done.returncode == 0 else done.stderr).strip()
    if done.returncode != 0:
        raise UserError(said or f"the export ended with {done.returncode}")
    same.done(app, f"Written: {harmless(said).plain}" if said else "Written", [words])


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    argv = own_program("gpu_engine", *words)
    return subprocess.run(argv, env=own_environment(), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, errors="replace", check=False)
