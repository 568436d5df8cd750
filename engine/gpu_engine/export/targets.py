"""The targets: a CSV file, an events file of TensorBoard, a run of Weights & Biases."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from gpu_engine.common.errors import UserError
from gpu_engine.export.target import About, Anew, Aside, Names, Row, Target, load

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
        kept = "".join(c if c.isalnum() or c in "-_." else "_" for c in name).lstrip(".")[:80]
        folder = (out or Path("tensorboard")) / f"{run_id}-{kept or 'run'}"
        return lambda: TensorBoard(folder)
    return lambda: Wandb(project or PROJECT, out or Path(), online=online, again=again)


FIRST = ("step", "time", "attempt")
"""The columns that every row has. Time is in Unix seconds."""


class Csv:
    """Writes the file `path`. Which columns there are is known when all rows are. So rows go to a
    file without a name at first, and behind the head into the final one when they are published."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names = Names()
        self._at: dict[str, int] = {}
        self._grown: dict[int, int] = {}
        """Line of the body from which on there are so many columns → columns."""
        self._lines = 0
        self._aside: Aside | None = None
        self._body: BinaryIO | None = None
        """None once the head is written."""

    def begin(self, about: About) -> None:
        """Open both files. Columns of an earlier beginning stay. Raises UserError."""
        self._lines, self._grown = 0, {0: len(self._at)}
        self._aside = Aside(self._path, about.id)
        self._body = os.fdopen(tempfile_in(self._path.parent), "w+b", buffering=1 << 16)

    def write(self, row: Row) -> None:
        """Add a line. Raises Anew if it has a new column and the head is written."""
        assert self._aside is not None
        new = [n for n in row.values if n not in self._at and self._names(n) is not None]
        for name in new:
            self._at[name] = len(self._at)
        if new:
            if self._body is None:
                raise Anew  # with these columns from the beginning
            self._grown[self._lines] = len(self._at)
        cells = [""] * len(self._at)
        for name, value in row.values.items():
            if (at := self._at.get(name)) is not None:
                cells[at] = cell(value)
        line = f"{row.step},{row.t:.3f},{row.attempt},{','.join(cells)}\n"
        (self._body or self._aside.file).write(line.encode())
        self._lines += 1

    def rewind(self, step: int) -> None:
        raise Anew

    def publish(self) -> None:
        assert self._aside is not None
        if self._body is not None:
            self._behind_head(self._body, self._aside.file)
            self._body.close()
            self._body = None
        self._aside.publish()

    def close(self) -> str:
        self.publish()
        assert self._aside is not None
        self._aside.close()
        return str(self._path)

    def abandon(self) -> None:
        if self._body is not None:
            with contextlib.suppress(OSError):
                self._body.close()
        if self._aside is not None:
            self._aside.abandon()

    def _behind_head(self, body: BinaryIO, file: BinaryIO) -> None:
        """Write the head and all lines, each with all columns."""
        names = [quoted(self._names(name) or "") for name in self._at]
        file.write((",".join([*FIRST, *names]) + "\n").encode())
        body.seek(0)
        lack = b"\n"
        for number, line in enumerate(body):
            if number in self._grown:
                lack = b"," * (len(self._at) - self._grown[number]) + b"\n"
            file.write(line if lack == b"\n" else line[:-1] + lack)


def tempfile_in(folder: Path) -> int:
    """The descriptor of a new file in `folder` that has no name. Raises OSError."""
    fd, name = tempfile.mkstemp(dir=folder, prefix=".exporting-")
    Path(name).unlink()
    return fd


def cell(value: float) -> str:
    """A value as Python, pandas and spreadsheets read it back exactly: "0.25", "1240", "nan",
    "-inf"."""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return repr(float(value))


_WIDE = ("\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The same four characters as wide as a Chinese one: some spreadsheets take them for the narrow."""


def defused(text: str) -> str:
    """A text that no spreadsheet takes for a formula: an apostrophe stands before its first
    character if that would begin one, as OWASP's "CSV Injection" advises. Only for texts: -1 is a
    number."""
    return "'" + text if text.startswith(("=", "+", "-", "@", "\t", "\r", *_WIDE)) else text


def quoted(name: str) -> str:
    """A name as a cell."""
    name = defused(name)
    if any(c in name for c in ',"\n\r'):
        return '"' + name.replace('"', '""') + '"'
    return name


_NO_TAG = r"[^-/\w.\[\]:]"
"""Characters that tags don't have, as torch's SummaryWriter replaces them too."""


class TensorBoard:
    """Writes one events file into `folder`, which is a run's folder below a logdir."""

    def __init__(self, folder: Path) -> None:
        """Raises UserError if TensorBoard is not installed."""
        proto = "tensorboard.compat.proto."
        self._events, self._summaries, self._tensors, self._types, self._records = load(
            "tensorboard", f"{proto}event_pb2", f"{proto}summary_pb2", f"{proto}tensor_pb2",
            f"{proto}types_pb2", "tensorboard.summary.writer.record_writer")
        self._folder = folder
        self._names = Names(_NO_TAG)
        self._aside: Aside | None = None

    def begin(self, about: About) -> None:
        """Open the file, and write what was asked for as text."""
        # The name is the same each time, so that a second export replaces the first. The file
        # beside it must not have "tfevents" in its name, or TensorBoard reads it.
        name = f"events.out.tfevents.{int(about.created)}.gpu-panel.{about.id}"
        self._aside = Aside(self._folder / name, about.id)
        self._writer = self._records.RecordWriter(self._aside.file)
        self._event(self._events.Event(wall_time=about.created, file_version="brain.Event:2"))
        self._text("spec", _table(about.config), about.created)
        if about.note or about.tags:
            self._text("notes", "\n\n".join(filter(None, [", ".join(about.tags), about.note])),
                       about.created)

    def write(self, row: Row) -> None:
        values = [self._summaries.Summary.Value(tag=tag, simple_value=value)
                  for tag, value in self._names.values(row).items()]
        self._event(self._events.Event(wall_time=row.t, step=row.step,
                                       summary=self._summaries.Summary(value=values)))

    def rewind(self, step: int) -> None:
        """Tell TensorBoard to forget what has this step or a later one."""
        log = self._events.SessionLog
        self._event(self._events.Event(step=step, wall_time=time.time(),
                                       session_log=log(status=log.START)))

    def publish(self) -> None:
        assert self._aside is not None
        self._aside.publish()

    def close(self) -> str:
        assert self._aside is not None
        self._aside.close()
        return str(self._folder)

    def abandon(self) -> None:
        if self._aside is not None:
            self._aside.abandon()

    def _event(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())

    def _text(self, tag: str, text: str, t: float) -> None:
        kinds = self._summaries
        about = kinds.SummaryMetadata(
            plugin_data=kinds.SummaryMetadata.PluginData(plugin_name="text"))
        tensor = self._tensors.TensorProto(dtype=self._types.DT_STRING, string_val=[text.encode()])
        self._event(self._events.Event(wall_time=t, step=0, summary=kinds.Summary(
            value=[kinds.Summary.Value(tag=tag, metadata=about, tensor=tensor)])))


def _table(config: Mapping[str, Any]) -> str:
    """The spec as TensorBoard shows text: Markdown."""
    lines = ["| key | value |", "|---|---|"]
    for section, value in config.items():
        each = value if isinstance(value, dict) else {"": value}
        for key, one in each.items():
            text = json.dumps(one, ensure_ascii=False).replace("|", "\\|")
            lines.append(f"| {section}{'.' if key else ''}{key} | {text} |")
    return "\n".join(lines)


_NO_NAME = r"[^-/\w.\[\]: ]"


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
        self._names = Names(_NO_NAME)
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
