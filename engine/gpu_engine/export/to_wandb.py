"""A run for Weights & Biases, written with its own library: to a folder that `wandb sync` sends,
or at once."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpu_engine.common.errors import UserError
from gpu_engine.export.needed import load
from gpu_engine.export.row import About, Names, Row

REFUSED = r"[^-/\w.\[\]: ]"


class Wandb:
    """Writes a run of W&B. Its id follows from the run's, so that no second one is made."""

    def __init__(self, project: str, folder: Path, *, online: bool = False, again: bool = False
                 ) -> None:
        """`folder`: where W&B makes its folder `wandb/`. `online`: send rows as they come.
        `again`: make a further run there if it was sent before. Raises UserError if W&B's library
        is not installed."""
        # Neither errors nor statistics of an export go to anybody.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        (self._wandb,) = load("wandb", "wandb")
        self._project, self._folder = project, folder
        self._online, self._again = online, again
        self._names = Names(REFUSED)
        self._run: Any = None
        self._old: list[Path] = []

    def begin(self, about: About) -> None:
        """Begin the run. Raises UserError if it was sent already and is not to be again."""
        if self._online and not self._wandb.login(prompt=False, verify=False):
            raise UserError("W&B has no key of yours here: wandb login asks for one; without "
                            "--online nothing is sent, and wandb sync does so later")
        id, number = about.unique, 1
        while sent := [p for p in self._made(id) if list(p.glob("*.synced"))]:
            if not self._again:
                raise UserError(f"{sent[0]} was sent to W&B already, as run {id}; --again makes "
                                "another run there")
            number += 1
            id = f"{about.unique}-{number}"
        self._old = self._made(id)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._run = self._wandb.init(
                project=self._project, id=id, name=about.title, dir=str(self._folder),
                mode="online" if self._online else "offline", config=dict(about.config),
                tags=list(about.tags), notes=about.note or None, reinit="create_new",
                resume="never" if self._online and not self._again else None,
                settings=self._wandb.Settings(
                    console="off", silent=True, disable_git=True, disable_code=True,
                    x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True))
        except (self._wandb.Error, OSError) as err:
            raise UserError(f"W&B: {err}") from None
        self._path = Path(self._run.dir).parent
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def write(self, row: Row) -> None:
        """Add a row. W&B's own step only counts them, as it may not go back; curves are drawn over
        the value `step`."""
        self._run.log(self._names.values(row) | {"step": row.step, "attempt": row.attempt,
                                                 "_timestamp": row.t})

    def rewind(self, step: int) -> None:
        """Nothing can be taken back: the value `attempt` tells the rows apart."""

    def publish(self) -> None:
        """Nothing: W&B writes on its own."""

    def close(self) -> str:
        """End the run, and take away what an earlier export has left."""
        self._run.finish()
        for path in self._old:
            if path != self._path:
                shutil.rmtree(path, ignore_errors=True)
        if self._online:
            return str(self._run.url)
        return f"{self._path}; wandb sync {self._path} sends it"

    def abandon(self) -> None:
        if self._run is not None:
            with suppress(Exception):
                self._run.finish(exit_code=1)
            if not self._online:
                shutil.rmtree(self._path, ignore_errors=True)

    def _made(self, id: str) -> list[Path]:
        """The folders of earlier exports with this id."""
        return sorted((self._folder / "wandb").glob(f"*run-????????_??????-{id}"))
