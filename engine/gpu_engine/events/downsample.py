"""A digest of a long events file, beside it: what its frequent events say, a block of them in a
line. With it a long run is shown without reading all that its ranks wrote.

A block stands for a part of the events file in which every line is a step, a memory event, a
heartbeat or a step's parts, and no number is missing or not finite. Whatever else a rank tells
(starts, values, checkpoints, errors) is in no block and is read from the events file, as is every
part that no block stands for. So a digest that is missing, cut or damaged costs only time.

The supervisor writes it as the run goes on, once there is enough to save time on; the panel has it
written for runs that have none. The events file stays the truth: a block that does not fit it any
more is not used.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from math import isfinite
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from gpu_engine.common.files import file_inside, open_inside
from gpu_engine.events.frequent import (
    EventBatch,
    Frequent,
    MemoryLine,
    PhaseLine,
    StepLine,
    TimeLine,
    decoded,
)
from gpu_engine.events.paths import DIGESTED, digest_path, events_path, inside, ranks_with_files
from gpu_engine.events.view import last_loss

FEWEST = 8
"""Fewer events than that are no block: reading them costs no more."""
_LEAST, _WHOLE = 1 << 11, 1 << 16
"""Bytes from which a block takes no further event, at the beginning of the file and at the most."""
_LONGEST = 8192
"""Bytes of a line in a block."""
_LONGEST_BLOCK = 1 << 20
"""Bytes of a line of the digest; a longer one is none."""
_PIECE = 1 << 18
"""Fewer new bytes of events than that are left for the next time."""
_END = 1 << 18
"""Bytes at the end of the events file that have no digest: the last values are told exactly."""
_MARK = 48
"""Bytes of a block's first line by which the events file is recognised: its time is in them."""


class Block(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """What a part of an events file says."""

    begin: int
    """Where the part begins in the events file, in bytes."""
    end: int
    mark: int
    """CRC-32 of its first bytes."""
    events: int
    step: StepLine | None = None
    """Its step events as one: `n` steps up to `step`, with their least, greatest, mean and last
    loss. Its rates are means."""
    memory: tuple[MemoryLine, ...] = ()
    """The first, the fullest and the last memory."""
    phases: tuple[PhaseLine, ...] = ()
    """The first and the last heartbeat."""
    at_step: int | None = None
    """The step that the last event with one names."""
    times: tuple[TimeLine, ...] = ()
    """All that is told of what time went into, which is seldom."""

    def fits(self, file: BinaryIO) -> bool:
        """Whether the events file has this part still, or again. Raises OSError."""
        return _mark(file, self.begin) == self.mark \
            and os.pread(file.fileno(), 1, self.end - 1) == b"\n"


# --- reading --------------------------------------------------------------------------------------


def blocks(events: Path) -> Iterator[Block]:
    """The blocks of the digest of an events file, in order; damaged ones are left out, and all
    behind a line that is too long."""
    try:
        with file_inside(*inside(digest_path(events))) as file:
            while (line := file.readline(_LONGEST_BLOCK)).endswith(b"\n"):
                if (block := _block(line)) is not None:
                    yield block
    except OSError:
        return


def batch(blocks: Sequence[Block]) -> EventBatch:
    """What these blocks say, as the events themselves would be told."""
    return EventBatch([b.step for b in blocks if b.step is not None], [],
                      [line for b in blocks for line in b.memory],
                      [line for b in blocks for line in b.phases],
                      next((b.at_step for b in reversed(blocks) if b.at_step is not None), None),
                      [line for b in blocks for line in b.times])


_decode = msgspec.json.Decoder(Block).decode


def _block(line: bytes) -> Block | None:
    crc, _, text = line.rstrip(b"\n").partition(b" ")
    try:
        if int(crc, 16) != zlib.crc32(text):
            return None
        block = _decode(text)
    except (ValueError, msgspec.MsgspecError):
        return None
    return block if 0 <= block.begin < block.end else None


def _mark(file: BinaryIO, begin: int) -> int:
    return zlib.crc32(os.pread(file.fileno(), _MARK, begin))


# --- writing --------------------------------------------------------------------------------------


class Digester:
    """Writes the digest of one events file, as far as that has got."""

    def __init__(self, events: Path) -> None:
        self._events = events
        self._at: int | None = None
        """Up to where the events file has been digested; None: not looked yet."""
        self._step: int | None = None
        """The last step before that; None: not known."""

    def advance(self, limit: int = 1 << 22) -> bool:
        """Digest what is new, at most about `limit` bytes of it, but for the end of the file.
        Returns whether there is more. Does nothing while the events file is small, while little of
        it is new, and while another process digests it. Raises OSError where the digest can't be
        written."""
        try:
            file = file_inside(*inside(self._events))
        except OSError:
            return False
        with file:
            size = os.fstat(file.fileno()).st_size
            upto = size - _END
            if size < DIGESTED or (self._at is not None and upto - self._at < _PIECE):
                return False
            with os.fdopen(open_inside(*inside(digest_path(self._events)),
                                       os.O_RDWR | os.O_APPEND | os.O_CREAT), "ab", 0) as out:
                try:
                    fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                if self._at is None or self._at > size:
                    self._at, self._step = self._digested(file, out), None
                before = self._at
                made, self._at = self._digest(file, before, min(before + limit, upto))
                if made:  # whoever wrote it before may have been killed within a line
                    out.write(b"\n" + b"".join(map(_line, made)))
                return before < self._at <= upto - _PIECE

    def _digested(self, file: BinaryIO, out: BinaryIO) -> int:
        """Where the last block of the digest `out` ends. One that does not fit the events file is
        of another file: the digest is begun again."""
        last = deque(blocks(self._events), maxlen=1)
        if last and last[0].fits(file):
            return last[0].end
        out.truncate(0)
        return 0

    def _digest(self, file: BinaryIO, at: int, upto: int) -> tuple[list[Block], int]:
        """The blocks of the events file from `at` to about `upto`, and where to go on: at the block
        that is not complete yet."""
        file.seek(at)
        found: list[Block] = []
        begin, now, before, step = at, EventBatch(), self._step, self._step
        while at < upto and (line := file.readline(_LONGEST)):
            told = decoded(line) if line.endswith(b"\n") else None
            after = told.step if isinstance(told, StepLine) else step
            plain = told if told is not None and _is_plain(told, step) else None
            if plain is None or not _goes_on(now, plain, at - begin, begin):
                _close(file, begin, at, now, found)
                begin, now, before = at, EventBatch(), step
            at, step = at + len(line), after
            if plain is not None:
                now.add(plain)
            else:
                begin, before = at, step
        self._step = before
        return found, begin


def _size(begin: int) -> int:
    """How many bytes a block that begins at this byte has about: at most a five-hundredth of what
    is before it, which is less than a dot of a chart, and not so many that a zoomed chart which
    can't read the events again, as they are too many, would have too few blocks."""
    return min(max(begin >> 9, _LEAST), _WHOLE)


def _goes_on(now: EventBatch, told: Frequent, size: int, begin: int) -> bool:
    """Whether the event belongs to the block of `now`, which has `size` bytes."""
    return size < _size(begin) and not (
        isinstance(told, StepLine) and now.steps
        and (told.loss is None) != (now.steps[-1].loss is None))


def _close(file: BinaryIO, begin: int, end: int, now: EventBatch, into: list[Block]) -> None:
    """Add the block of these events to `into`, if it is worth it."""
    step = _together(now.steps)
    if len(now) >= FEWEST and (step is None or step.loss is None or isfinite(step.loss)):
        into.append(Block(
            begin, end, _mark(file, begin), len(now), step,
            _ends(now.memory, [max(now.memory, key=_fullness)] if now.memory else []),
            _ends(now.phases, []), now.at_step, tuple(now.times)))


def _line(block: Block) -> bytes:
    text = msgspec.json.encode(block)
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _is_plain(told: Frequent, step: int | None) -> bool:
    """Whether nothing of it is lost in a block. `step`: the last step before it. Steps that don't
    go on from there, such as those that another attempt does again, stand alone."""
    if isinstance(told, StepLine):
        return told.step - told.n == step
    return not isinstance(told, PhaseLine) or (told.done, told.detail) == (None, None)


_of = {name: attrgetter(name) for name in ("samples_per_s", "data_wait", "grad_norm")}


def _together(steps: Sequence[StepLine]) -> StepLine | None:
    """Step events that follow each other as one. Its loss is the mean over all steps."""
    if not steps:
        return None
    last, n = steps[-1], sum(e.n for e in steps)
    losses = [(e.loss, e.n) for e in steps if e.loss is not None]
    bounds = [value for e in steps for value in _bounds(e)]
    means = {name: [value for value in map(of, steps) if value is not None]
             for name, of in _of.items()}
    return msgspec.structs.replace(
        cast("Any", last), n=n, losses=(), loss_last=last_loss(last),
        loss=sum(loss * n for loss, n in losses) / n if losses else None,
        loss_min=min(bounds, default=None), loss_max=max(bounds, default=None),
        **{name: sum(values) / len(values) if values else None
           for name, values in means.items()})


def _bounds(event: StepLine) -> tuple[float, ...]:
    """Values of which the least and the greatest are those of the event's losses."""
    return event.losses or tuple(v for v in (event.loss, event.loss_min, event.loss_max)
                                 if v is not None)


def _fullness(event: MemoryLine) -> tuple[int, int]:
    return sum(filter(None, event.gpu_allocated)), event.rss or 0


def _ends(events: Sequence, between: Sequence) -> tuple:
    """The first and the last of events, with `between`, each once and in their order."""
    wanted = {id(e) for e in (*events[:1], *between, *events[-1:])}
    return tuple(e for e in events if id(e) in wanted)


def digest_run(folder: Path) -> None:
    """Digest all that the ranks of a run have written. Raises OSError."""
    for rank in ranks_with_files(folder):
        digester = Digester(events_path(folder, rank))
        while digester.advance():
            pass


if __name__ == "__main__":
    with contextlib.suppress(OSError):  # a folder of somebody else's, or a full disk
        digest_run(Path(sys.argv[1]))
