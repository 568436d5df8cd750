"""The event schema: what a rank appends to its file, and how a reader tails it.

Standard library only, and no newer than Python 3.9: a rank imports this in any environment
that has torch.

One JSON object a line: `t` (unix seconds), `kind`, then the kind's fields. Strict JSON, so a
value that is not finite goes as the string "NaN", "Infinity" or "-Infinity". One writer a
file, whole lines, one `write` a line or batch of lines: a reader of a live file may see a
half-written last line, which it keeps until the rest is there.

| kind | fields |
|---|---|
| start | rank, local_rank, node, pid, started (process start, clock ticks since boot), device (list of labels), world_size, attempt; as_rank, process: it is the so-manieth process (from 2) that trains as rank as_rank at the same time, and rank is but the number of its record |
| schedule | total_steps, steps_per_epoch, epochs, examples, dropped (examples an epoch leaves out), first_step, batch (global) |
| step | step (last covered), n, epoch, loss (mean of the n), losses (each) or loss_min, loss_max and loss_last, lr, samples_per_s (this rank's own), data_wait (share of time, 0 to 1), skipped (steps so far that a GradScaler or on_nonfinite left out); of a person's own script: no epoch, samples_per_s, data_wait; grad_norm where asked for; others (optimizers beside the first: index → name, step, n, loss, losses or loss_min, loss_max and loss_last); n 0: nothing new but in others |
| training | of a script that trains again in the same process: number (from 2), step (the steps before it, which its own go on counting), name and number of its optimizer |
| memory | gpu_allocated, gpu_reserved, gpu_peak (lists of bytes, one entry a device), gpu_process, rss |
| metric | step, and each name → value |
| eval | step, and each name → value |
| checkpoint | step, path (relative to the run folder), seconds, bytes, blocked (seconds of these in which training waited) |
| phase | phase (init, data, forward, backward, optimizer, eval, checkpoint, done; running: of a person's own script, all that is neither backward nor optimizer), since (unix seconds), step: the heartbeat; while a checkpoint is written also done and total (bytes so far, and about in all or null), beside whatever phase the training is in; detail (text: what the rank is busy with or waits for, where the phase says too little) |
| warning | message |
| error | type, message, traceback, phase, step; for out of memory also allocated, reserved, requested |
| end | outcome (completed, stopped, failed; null: the exit status will tell, and the supervisor writes it), steps, seconds |
"""  # noqa: E501

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..common import files  # relative: in a script that is observed we have another name

KINDS = ("start", "schedule", "step", "training", "memory", "metric", "eval", "checkpoint",
         "phase", "warning", "error", "end")

OWN_NAMES = frozenset({"t", "kind", "step"})
"""Names that an event of named values needs for itself."""

_encoded = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def encode(kind: str, fields: dict[str, Any], *, t: float | None = None) -> bytes:
    """One event as a line, newline included. Values not finite become strings."""
    event = {"t": round(time.time() if t is None else t, 3), "kind": kind}
    event.update(fields)
    try:
        text = _encoded(event)
    except ValueError:
        text = _encoded(strict(event))
    return text.encode() + b"\n"


def apart(values: dict[str, Any]) -> dict[str, Any]:
    """Named values as an event takes them: a name that it needs for itself ("step") gets an
    underscore behind."""
    if OWN_NAMES.isdisjoint(values):
        return values
    out = {name: value for name, value in values.items() if name not in OWN_NAMES}
    for name in OWN_NAMES.intersection(values):
        other = name + "_"
        while other in out:
            other += "_"
        out[other] = values[name]
    return out


def apart_in_words(values: Iterable[str]) -> str | None:
    """What to say of names that are kept under others; None: there are none."""
    names = sorted(OWN_NAMES.intersection(values))
    if not names:
        return None
    return "; ".join(f'a value named "{name}" is recorded as "{name}_": the record needs the name '
                     "for itself" for name in names)


def number(value: Any) -> float | None:
    """A number as an event carries it, back as a float ("NaN" as nan); None if it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value)
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    return None


class EventWriter:
    """Appends events to one file; the only writer of that file."""

    def __init__(self, path: Path) -> None:
        """Open `path` for appending, mode 0600. Raises OSError."""
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # A writer killed mid-line leaves a tail without an end: close that line first.
        size = os.fstat(self._fd).st_size
        if size:
            with path.open("rb") as read:
                read.seek(size - 1)
                if read.read(1) != b"\n":
                    os.write(self._fd, b"\n")

    def write(self, *lines: bytes) -> None:
        """Append whole lines in one write. Raises OSError (a full disk, say)."""
        data = b"".join(lines)
        while data:
            data = data[os.write(self._fd, data):]

    def close(self) -> None:
        os.close(self._fd)


class Tail:
    """Reads what is new in an events file, keeping its place (inode, offset, unfinished tail).

    A file that is not there yet gives nothing. A file that shrank or was replaced is read from
    its beginning. A line that does not parse is skipped and counted in `skipped`.
    """

    MAX_LINE = 8 * 1024 * 1024

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped = 0
        self._inode: int | None = None
        self._offset = 0
        self._rest = b""

    @property
    def offset(self) -> int:
        """How many bytes of the file have been read."""
        return self._offset

    def skip(self) -> None:
        """Leave out what is in the file so far."""
        try:
            stat = self.path.stat()
        except OSError:
            return
        self._inode, self._offset, self._rest = stat.st_ino, stat.st_size, b""

    def read(self, limit: int = 1 << 20) -> list[dict[str, Any]]:
        """The events whose lines are complete since the last call, from at most `limit` bytes."""
        try:
            with files.open_file(self.path) as file:
                stat = os.fstat(file.fileno())
                if stat.st_ino != self._inode or stat.st_size < self._offset:
                    self._inode, self._offset, self._rest = stat.st_ino, 0, b""
                if stat.st_size == self._offset:
                    return []
                file.seek(self._offset)
                data = file.read(limit)
        except OSError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > self.MAX_LINE:  # not one of ours: don't keep it
            self._rest = b""
            self.skipped += 1
        return [e for e in map(self._parse, lines) if e is not None]

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        if not line.strip():
            return None
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if isinstance(event, dict) and isinstance(event.get("kind"), str) \
                and number(event.get("t")) is not None:
            return event
        self.skipped += 1
        return None


def strict(value: Any) -> Any:
    """`value` with every float that is not finite as a string, so that strict JSON takes it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {str(k): strict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(v) for v in value]
    return value
