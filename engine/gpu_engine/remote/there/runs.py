"""What is asked of a run that is there."""

from __future__ import annotations

import os
import re

from gpu_engine.code import store
from gpu_engine.common import paths
from gpu_engine.common.errors import UserError, telling
from gpu_engine.common.files import file_inside
from gpu_engine.remote.reach import files, protocol
from gpu_engine.remote.there.wire import Asked
from gpu_engine.runs import checkpoints
from gpu_engine.runs import stacks as asking
from gpu_engine.runs.folder import Run, all_parts

_ID = re.compile(r"[0-9a-f]{2,32}")
_LOOKED_AT = 100
"""Runs, from the newest, among which one that was asked for already is looked for."""


def run_of(name: str) -> Run:
    """What is here of a run, by the whole id that it has here. Raises UserError."""
    run = Run(paths.parts_folder() / name)
    if not _ID.fullmatch(name) or not run.path.is_dir():
        raise UserError(f"there is no run {name[:40]!r} there any more")
    return run


def started_by(key: str) -> Run | None:
    """The run that was asked for by `Start` with this key; None if none of the newest was."""
    for run in all_parts()[:_LOOKED_AT]:
        plan = run.plan()
        if plan is not None and plan.origin == key:
            return run
    return None


def stop(asked: Asked, request: protocol.Stop) -> None:
    """Of a run that has ended there is nothing to do, nor of one that has heard it before: it is
    asked again when a connection was lost."""
    run = run_of(request.run)
    state = run.state()
    if (state.live and (request.now or state.state != "stopping")) or state.state == "lost":
        try:
            run.stop(now=request.now)
        except UserError:
            if run.state().live:
                raise
    asked.send(protocol.Done())


def stacks(asked: Asked, request: protocol.Stacks) -> None:
    """Those who can't be asked (yet) are passed over: nothing comes from them."""
    run = run_of(request.run)
    for rank in request.ranks:
        asking.request(run, rank)
    asked.send(protocol.Done())


def remove(asked: Asked, request: protocol.Remove) -> None:
    """By the rules of `gpu-engine runs rm`, and the code that it was sent. A run that is not here
    any more is removed."""
    run = started_by(request.key) if request.run is None else \
        run_of(request.run) if (paths.parts_folder() / request.run).is_dir() else None
    if run is None:
        asked.send(protocol.Removed())
        return
    size, folder = run.size(), run.cwd()
    run.remove()
    gone, kept = store.remove_unused(folder)
    asked.send(protocol.Removed(str(run.path), size, gone, kept))


def listed(asked: Asked, request: protocol.ListCheckpoints) -> None:
    run = run_of(request.run)
    found = [(name, path.stat().st_size)
             for folder in checkpoints.listed(run.checkpoints) for path in sorted(folder.iterdir())
             if path.is_file() and files.of_checkpoint(name := f"{folder.name}/{path.name}")]
    asked.send(protocol.Checkpoints(dict(found[-protocol.ITEMS:])))


def read(asked: Asked, request: protocol.Read) -> None:
    run = run_of(request.run)
    if not files.of_checkpoint(request.name):
        raise UserError(f"{request.name[:80]!r} is no file of a checkpoint")
    with telling(request.name), file_inside(run.path, f"checkpoints/{request.name}") as file:
        fd, at = file.fileno(), request.offset
        while data := os.pread(fd, protocol.PIECE, at):
            asked.send(protocol.Piece.of(request.name, at, data))
            at += len(data)
    asked.send(protocol.Done())
