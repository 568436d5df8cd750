"""The checkpoints of a run here, for a machine that has none of them."""

from __future__ import annotations

import os

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import file_inside, reason
from gpu_engine.remote.reach import files, protocol
from gpu_engine.remote.there.runs import run_of
from gpu_engine.remote.there.wire import Asked
from gpu_engine.runs import checkpoints


def listed(asked: Asked, request: protocol.ListCheckpoints) -> None:
    run = run_of(request.run)
    found = [protocol.CheckpointFile(name, path.stat().st_size)
             for folder in checkpoints.listed(run.checkpoints) for path in sorted(folder.iterdir())
             if path.is_file() and files.of_checkpoint(name := f"{folder.name}/{path.name}")]
    asked.say(protocol.Checkpoints(tuple(found[-4096:])))


def read(asked: Asked, request: protocol.Read) -> None:
    run = run_of(request.run)
    if not files.of_checkpoint(request.name):
        raise UserError(f"{request.name[:80]!r} is no file of a checkpoint")
    try:
        with file_inside(run.path, f"checkpoints/{request.name}") as file:
            fd, at = file.fileno(), request.offset
            while data := os.pread(fd, protocol.PIECE, at):
                asked.say(protocol.Piece.of(request.name, at, data))
                at += len(data)
    except OSError as err:
        raise UserError(f"{request.name}: {reason(err)}") from None
    asked.say(protocol.Done())
