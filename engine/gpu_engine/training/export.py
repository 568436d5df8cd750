"""A checkpoint's weights as a file of plain tensors, for `gpu-engine export`: safetensors, or what
`torch.load` reads, by the file's name. It is asked for in a process with torch:

    worker/__main__.py --export CHECKPOINTS OUT.safetensors [step-00000500]
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from gpu_engine.common.errors import UserError
from gpu_engine.runs.checkpoints import STATE, Damaged
from gpu_engine.training import checkpoint


def export(folder: Path, out: Path, name: str | None = None) -> dict[str, Any]:
    """Write the weights of a checkpoint in `folder` to `out`: of the one called `name`, or else of
    the newest that passes `verify`. Returns its step, path and size, and warnings about newer ones
    that are damaged.

    Raises UserError if there is none, `name` is damaged, or the file's kind is not to be had;
    OSError if `out` can't be written.
    """
    passed: list[str] = []
    if name is None:
        path = checkpoint.newest(folder, passed.append)
    else:
        path = folder / name
        try:
            checkpoint.verify(path)
        except Damaged as err:
            raise UserError(f"checkpoint {err}; choose another with --from") from err
    if path is None:
        raise UserError(f"{folder}: there is no checkpoint that can be loaded"
                        + "".join(f"\n{text}" for text in passed))
    state = checkpoint.load(path / STATE)
    # A module's extra state may be anything; it is no weight. A copy of each, as torch would write
    # the whole storage that a tensor is a part of, and safetensors takes none that share theirs.
    weights = {n: t.detach().contiguous().clone() for n, t in state["model"].items()
               if isinstance(t, torch.Tensor)}
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        if out.suffix == ".safetensors":
            try:
                from safetensors.torch import save_file
            except ModuleNotFoundError:
                raise UserError(f"{out}: this needs safetensors, which the run's Python does not "
                                "have: pip install safetensors. A file whose name ends with .pt "
                                "needs nothing") from None
            save_file(weights, temporary, {"step": str(state["step"]), "format": "pt"})
        else:
            with temporary.open("wb") as file:
                torch.save(weights, file)
        temporary.replace(out)  # complete, or not there
    finally:
        temporary.unlink(missing_ok=True)
    return {"step": state["step"], "checkpoint": str(path), "tensors": len(weights),
            "bytes": out.stat().st_size, "warnings": passed}


def main(folder: str, out: str, name: str | None = None) -> int:
    """Write the weights, and print what `export` returns as one line of JSON. Returns the exit
    code: 2, with a message on stderr, for a mistake that the person can correct."""
    gc.disable()  # the process is short-lived: collecting garbage would only slow it down
    try:
        written = export(Path(folder), Path(out), name)
    except (UserError, OSError) as err:
        told = f"{err.filename}: {err.strerror}" if isinstance(err, OSError) else str(err)
        sys.stderr.write(f"{told}\n")
        return 2
    sys.stdout.write("\n" + json.dumps(written, default=str) + "\n")
    return 0
