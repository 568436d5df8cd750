"""Starting runs here, as `gpu-engine run` and `gpu-engine resume` would."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from gpu_engine.agent.place import inside
from gpu_engine.agent.runs import run_of
from gpu_engine.agent.wire import Asked
from gpu_engine.hosts import protocol
from gpu_engine.launch import launcher
from gpu_engine.runs.folder import Run, all_runs
from gpu_engine.spec.read import from_dict

_PATIENCE = 20.0
_LOOKED_AT = 100
"""Runs, from the newest, among which one that was asked for already is looked for."""


def start(asked: Asked, request: protocol.Start) -> None:
    """Once for a key, however often it is said: an answer may have been lost with its channel."""
    with inside(request.folders) as folder:
        run = started_by(request.key)
        if run is None:
            prepared = launcher.prepare(from_dict(request.spec), cwd=Path(folder))
            if request.trying:
                prepared = launcher.only_trying(prepared)
            run = launcher.start(replace(
                prepared, plan=replace(prepared.plan, origin=request.key)))
    asked.say(_started(run))


def resume(asked: Asked, request: protocol.Resume) -> None:
    run = run_of(request.run)
    if run.state().attempt < request.attempt:
        if run.state().live:  # cut off when the others failed: it is of no use to anybody
            _end(run)
        with inside((run.cwd(),)):
            launcher.start_again(run, from_dict(request.spec), request.checkpoint)
    asked.say(_started(run))


def _end(run: Run) -> None:
    run.stop(now=True)
    end = time.monotonic() + _PATIENCE
    while run.state().live and time.monotonic() < end:
        time.sleep(0.05)


def _started(run: Run) -> protocol.Started:
    return protocol.Started(run.id, str(run.path), run.state().attempt)


def started_by(key: str) -> Run | None:
    """The run that was asked for by `Start` with this key; None if none of the newest was."""
    for run in all_runs()[:_LOOKED_AT]:
        plan = run.plan()
        if plan is not None and plan.origin == key:
            return run
    return None
