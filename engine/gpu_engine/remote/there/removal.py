"""Deleting what is here of a run that another machine has started, and the code that it was sent.
"""

from __future__ import annotations

from gpu_engine.code import store
from gpu_engine.common import paths
from gpu_engine.remote.reach import protocol
from gpu_engine.remote.there.runs import run_of
from gpu_engine.remote.there.start import started_by
from gpu_engine.remote.there.wire import Asked


def remove(asked: Asked, request: protocol.Remove) -> None:
    """By the rules of `gpu-engine runs rm`. A run that is not here any more is removed."""
    run = started_by(request.key) if request.run is None else \
        run_of(request.run) if (paths.parts_folder() / request.run).is_dir() else None
    if run is None:
        asked.say(protocol.Removed())
        return
    size, folder = run.size(), run.cwd()
    run.remove()
    gone, kept = store.remove_unused(folder)
    asked.say(protocol.Removed(str(run.path), size, gone, kept))
