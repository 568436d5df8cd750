"""What is asked of a run that is there."""

from __future__ import annotations

import re

from gpu_engine.common import paths
from gpu_engine.common.errors import UserError
from gpu_engine.remote.reach import protocol
from gpu_engine.remote.there.wire import Asked
from gpu_engine.runs import stacks as asking
from gpu_engine.runs.folder import Run

_ID = re.compile(r"[0-9a-f]{2,32}")


def run_of(name: str) -> Run:
    """What is here of a run, by the whole id that it has here. Raises UserError."""
    run = Run(paths.parts_folder() / name)
    if not _ID.fullmatch(name) or not run.path.is_dir():
        raise UserError(f"there is no run {name[:40]!r} there any more")
    return run


def stop(asked: Asked, request: protocol.Stop) -> None:
    """Of a run that has ended there is nothing to do."""
    run = run_of(request.run)
    if run.state().live or run.state().state == "lost":
        try:
            run.stop(now=request.now)
        except UserError:
            if run.state().live:
                raise
    asked.say(protocol.Done())


def stacks(asked: Asked, request: protocol.Stacks) -> None:
    """Those who can't be asked (yet) are passed over: nothing comes from them."""
    run = run_of(request.run)
    for rank in request.ranks:
        asking.request(run, rank)
    asked.say(protocol.Done())
