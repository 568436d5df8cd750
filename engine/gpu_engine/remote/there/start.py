"""Starting runs here, as `gpu-engine run` and `gpu-engine resume` would, and what that would fail
at: all of it, before anything starts."""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpu_engine.common import paths
from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.common.files import open_file, reason
from gpu_engine.common.values import show
from gpu_engine.launching import launcher
from gpu_engine.plan.records import PartOf, ResumeFrom
from gpu_engine.remote.reach import protocol
from gpu_engine.remote.reach.protocol import Wrong
from gpu_engine.remote.there.place import inside
from gpu_engine.remote.there.runs import run_of, started_by
from gpu_engine.remote.there.wire import Asked
from gpu_engine.runs import disk_room
from gpu_engine.runs.folder import Run
from gpu_engine.spec.read import from_dict

_PATIENCE = 20.0


def check(asked: Asked, request: protocol.Check) -> None:
    wrong: list[Wrong] = []
    warnings: tuple[str, ...] = ()
    folder = ""
    try:
        with inside(request.folders) as folder:
            wrong += [w for named in request.files.items()
                      if (w := _file(*named)) is not None]
            warnings = launcher.prepare(from_dict(request.spec), cwd=Path(folder)).plan.warnings
    except SpecError as err:
        wrong += [Wrong(p.key, "" if p.value is None else show(p.value), p.message)
                  for p in err.problems if not _reported(p.key, wrong)]
    except UserError as err:
        wrong.append(Wrong("", "", str(err)))
    full = disk_room.problem(paths.runs_folder())
    if full is not None:
        wrong.append(Wrong("", "", full.message))
    asked.send(protocol.Checked(tuple(wrong), warnings, folder))


def _reported(key: str, wrong: list[Wrong]) -> bool:
    """A task whose file is not there was told of already."""
    return key == "task.use" and any(w.key == "" for w in wrong)


def _file(name: str, sha256: str) -> Wrong | None:
    path = Path(name)
    try:
        with open_file(path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return Wrong("", "", f"{name} is not there: {path.absolute()}")
    except OSError as err:
        return Wrong("", "", f"{name} can't be read there: {reason(err)}")
    if digest != sha256:
        return Wrong("", "", f"{name} there ({path.absolute()}) is another than here")
    return None


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
            run = launcher.start(replace(prepared, plan=plan), attempt=request.attempt)
    asked.send(_started(run))


def resume(asked: Asked, request: protocol.Resume) -> None:
    run = run_of(request.run)
    if run.state().attempt < request.attempt:
        if run.state().live:  # cut off when the others failed: it is of no use to anybody
            _end(run)
        _set_aside(run, request)
        with inside((run.cwd(),)):
            launcher.start_again(run, from_dict(request.spec), request.checkpoint,
                                 request.attempt)
    asked.send(_started(run))


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
