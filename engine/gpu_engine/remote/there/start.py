"""Starting runs here, as `gpu-engine run` and `gpu-engine resume` would."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpu_engine.launching import launcher
from gpu_engine.plan.records import PartOf, ResumeFrom
from gpu_engine.remote.reach import protocol
from gpu_engine.remote.there import incoming
from gpu_engine.remote.there.place import inside
from gpu_engine.remote.there.runs import run_of, started_by
from gpu_engine.remote.there.wire import Asked
from gpu_engine.runs.folder import Run
from gpu_engine.spec.read import from_dict

_PATIENCE = 20.0


def start(asked: Asked, request: protocol.Start) -> None:
    """Once for a key, however often it is said: an answer may have been lost with its channel."""
    with inside(request.folders) as folder:
        run = started_by(request.key)
        if run is None:
            prepared = launcher.prepare(from_dict(request.spec), cwd=Path(folder))
            if request.trying:
                prepared = launcher.only_trying(prepared)
            plan = replace(prepared.plan, origin=request.key,
                           part_of=PartOf(request.whole, request.machine))
            if request.checkpoint is not None:
                plan = replace(plan, resume_from=ResumeFrom(request.checkpoint, request.attempt))
            run = launcher.start(replace(prepared, plan=plan), attempt=request.attempt,
                                 fill=lambda run: _put(run, request))
    asked.send(_started(run))


def resume(asked: Asked, request: protocol.Resume) -> None:
    run = run_of(request.run)
    if run.state().attempt < request.attempt:
        if run.state().live:  # cut off when the others failed: it is of no use to anybody
            _end(run)
        _put(run, request)
        _set_aside(run, request)
        with inside((run.cwd(),)):
            launcher.start_again(run, from_dict(request.spec), request.checkpoint,
                                 request.attempt)
    asked.send(_started(run))


def _put(run: Run, request: protocol.Start | protocol.Resume) -> None:
    """The checkpoint that was sent for it, into its folder. Raises UserError."""
    if request.bring is not None and request.checkpoint is not None:
        incoming.put(request.bring, request.checkpoint, run)


def _set_aside(run: Run, request: protocol.Resume) -> None:
    """What is here of ranks that have been on another host since."""
    for rank in request.fresh:
        for path in (run.events(rank), run.log(rank)):
            with suppress(FileNotFoundError):
                path.rename(path.with_name(f"{path.name}.before-{request.attempt}"))


def _end(run: Run) -> None:
    run.stop(now=True)
    end = time.monotonic() + _PATIENCE
    while run.state().live and time.monotonic() < end:
        time.sleep(0.05)


def _started(run: Run) -> protocol.Started:
    return protocol.Started(run.id, str(run.path), run.state().attempt)
