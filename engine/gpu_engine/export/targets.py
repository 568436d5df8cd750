"""The targets by the names that `--to` takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpu_engine.export.row import Target
from gpu_engine.export.to_csv import Csv
from gpu_engine.export.to_tensorboard import TensorBoard
from gpu_engine.export.to_wandb import Wandb

PROJECT = "gpu-panel"
"""The project of W&B, if no other is named."""


def opener(to: str, run_id: str, name: str, out: Path | None, *, several: bool = False,
           project: str | None = None, online: bool = False, again: bool = False
           ) -> Callable[[], Target]:
    """A function that makes the target `to` for a run. `name`: the run's name for people; `out`:
    the file or folder that was asked for; `several`: whether more runs go there, so that it is a
    folder."""
    if to == "csv":
        path = Path(f"{run_id}.csv") if out is None else out
        if out is not None and (several or out.is_dir()):
            path = out / f"{run_id}.csv"
        return lambda: Csv(path)
    if to == "tensorboard":
        folder = (out or Path("tensorboard")) / f"{run_id}-{_file_name(name)}"
        return lambda: TensorBoard(folder)
    return lambda: Wandb(project or PROJECT, out or Path(), online=online, again=again)


def _file_name(name: str) -> str:
    kept = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
    return kept.lstrip(".")[:80] or "run"
