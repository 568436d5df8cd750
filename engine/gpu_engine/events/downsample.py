"""A digest of a long events file, beside it: what its frequent events say, sixteen step events or
more in a line. With it a long run is shown without reading all that its ranks wrote.

Each line of the digest is a block: it stands for a part of the events file in which every line is a
step, a memory event, a heartbeat or a step's parts, and no number is missing or not finite.
Whatever else a rank tells (starts, values, checkpoints, errors) is in no block and is read from the
events file, as is every part that no block stands for. So a digest that is missing, cut or damaged
costs only time.

The supervisor writes it as the run goes on, once there is enough to save time on; the panel writes
it for runs that have none. The events file stays the truth: a block that does not fit it any more
is not used.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
from gpu_engine.events.paths import (
    DIGESTED,
    digest_path,
    events_path,
    inside,
    ranks_with_files,
)
from gpu_engine.events.view import last_loss

STEPS, LINES = 16, 64
"""The most step events, and the most events, in a block near the beginning of the file."""
FINE = 1 << 22
"""Bytes. From twice as many on, blocks grow with the part of the file that is before them: see
`growth`."""
FEWEST = 8
"""Fewer events than that are no block: reading them costs no more."""
AT_ONCE = 64
"""The most blocks that are read at once."""
_LONGEST = 8192
"""Bytes of a line in a block."""
_LONGEST_BLOCK = 1 << 20
"""Bytes of a line of the digest; a longer one is none."""
_PIECE = 1 << 18
"""Bytes that are read at once."""
_WHOLE = 1 << 16
"""Bytes from which a block takes no further event. Where a zoomed chart can't read the events
again, because they are too many, it still has enough blocks; and a block is complete within what is
digested at once."""
_END = 1 << 18
"""Bytes at the end of the events file that have no digest: the last values are told exactly."""
_MARK = 48
"""Bytes of a block's first line by which the events file is recognised: its time is in them."""


class Block(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """What a part of an events file says."""

    begin: int
    """Where the part begins in the events file, in bytes."""
    end: int
    """Where it ends, after a line."""
    mark: int
    """CRC-32 of its first bytes."""
    events: int
    """How many events are in it."""
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


# --- reading --------------------------------------------------------------------------------------


class Blocks:
    """The blocks of a digest, in order, for one who reads the events file from its beginning."""

    def __init__(self, events: Path) -> None:
        self._path = digest_path(events)
        self._lines: Iterator[bytes] | None = None
        self._next: Block | None = None

    def next_blocks(self, file: BinaryIO, at: int) -> tuple[list[Block], int | None]:
        """The blocks that stand for the events file from `at` on, without a gap between them: at
        most `AT_ONCE`. With them, where the next block begins after that; None: there is none, or
        it was not looked for. `file`: the events file."""
        found: list[Block] = []
        end = at
        while len(found) < AT_ONCE:
            block = self._next if self._next is not None else self._read()
            self._next = block
            if block is None or block.begin > end:
                break
            if block.begin == end:
                found.append(block)
                end = block.end
            self._next = None  # one that begins before `end` is of what was read already
        if found and not (_fits(file, found[0]) and _fits(file, found[-1])):
            self._next, self._lines = None, iter(())
            return [], None
        return found, None if self._next is None else self._next.begin

    def _read(self) -> Block | None:
        """The next block whose line is whole."""
        if self._lines is None:
            self._lines = _lines(self._path)
        return next((block for block in map(_block, self._lines) if block is not None), None)


def batch(blocks: Sequence[Block]) -> EventBatch:
    """What these blocks say, as the events themselves would be told."""
    return EventBatch([b.step for b in blocks if b.step is not None], [],
                      [line for b in blocks for line in b.memory],
                      [line for b in blocks for line in b.phases],
                      next((b.at_step for b in reversed(blocks) if b.at_step is not None), None),
                      [line for b in blocks for line in b.times])


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with file_inside(*inside(path)) as file:
            rest = b""
            while len(rest) < _LONGEST_BLOCK and (data := file.read(_PIECE)):
                *lines, rest = (rest + data).split(b"\n")
                yield from lines
    except OSError:
        return


_decode = msgspec.json.Decoder(Block).decode


def _block(line: bytes) -> Block | None:
    """The block in a line; None if the line is damaged, or there is none."""
    crc, _, text = line.partition(b" ")
    try:
        if int(crc, 16) != zlib.crc32(text):
            return None
        block = _decode(text)
    except (ValueError, msgspec.MsgspecError):
        return None
    return block if 0 <= block.begin < block.end else None


def _fits(file: BinaryIO, block: Block) -> bool:
    """Whether the events file has this part still, or again."""
    try:
        return _mark(file, block.begin) == block.mark \
            and os.pread(file.fileno(), 1, block.end - 1) == b"\n"
    except OSError:
        return False


def _mark(file: BinaryIO, begin: int) -> int:
    return zlib.crc32(os.pread(file.fileno(), _MARK, begin))


# --- writing --------------------------------------------------------------------------------------


def growth(begin: int) -> int:
    """By how much a block that begins at this byte is larger than the first ones, unless it has
    `_WHOLE` bytes before: 1, 2, 4 and so on, doubled when the place is. So a block of usual events
    is at most a five-hundredth of what is before it, which is less than a dot of a chart."""
    return 1 << max((begin // FINE).bit_length() - 1, 0)


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
            with _locked(digest_path(self._events)) as out:
                if out is None:
                    return False
                if self._at is None or self._at > size:
                    self._at, self._step = _digested(self._events, file, out), None
                before = self._at
                made, self._at, self._step = _blocks(file, before, min(before + limit, upto),
                                                     self._step)
                if made:
                    os.write(out, b"".join(map(_line, made)))
                return before < self._at <= upto - _PIECE


def _digested(events: Path, file: BinaryIO, out: int) -> int:
    """Where the last block of the digest `out` ends. One that does not fit the events file is of
    another file: the digest is begun again."""
    last: Block | None = None
    for block in map(_block, _lines(digest_path(events))):
        last = block or last
    if last is None or _fits(file, last):
        return 0 if last is None else last.end
    os.ftruncate(out, 0)
    return 0


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int | None]:
    """The digest opened for appending whole lines; None if another process has it."""
    fd = open_inside(*inside(path), os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":  # whoever wrote it was killed
            os.write(fd, b"\n")
        yield fd
    finally:
        os.close(fd)


_encode = msgspec.json.Encoder().encode


def _line(block: Block) -> bytes:
    text = _encode(block)
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _blocks(file: BinaryIO, at: int, end: int, step: int | None
            ) -> tuple[list[Block], int, int | None]:
    """The blocks of the events file from `at` to about `end`, and where to go on: at the block that
    is not complete yet. `step`: the last step before `at`; returned for where to go on."""
    file.seek(at)
    found: list[Block] = []
    now = _Open(at, step)
    rest = b""
    while at < end and (data := file.read(min(_PIECE, end - at))):
        *lines, rest = (rest + data).split(b"\n")
        for line, told in zip(lines, decoded(lines), strict=True):
            after = at + len(line) + 1
            if told is None or len(line) > _LONGEST or not _plain(told, step):
                now.close(file, found)
                step = told.step if isinstance(told, StepLine) else step
                now = _Open(after, step)
            else:
                if not now.goes_on(told):
                    now.close(file, found)
                    now = _Open(at, step)
                now.add(told, after)
                step = told.step if isinstance(told, StepLine) else step
            at = after
        if len(rest) > _LONGEST:  # no line of ours: what is left of it is none either
            now.close(file, found)
            at, rest = at + len(rest), b""
            now = _Open(at, step)
    return (found, now.begin, now.after) if now.events else (found, at, step)


@dataclass(slots=True)
class _Open:
    """A block to which events are being added."""

    begin: int
    after: int | None
    """The last step before it."""
    end: int = 0
    events: int = 0
    steps: list[StepLine] = field(default_factory=list)
    memory: list[MemoryLine] = field(default_factory=list)
    phases: list[PhaseLine] = field(default_factory=list)
    times: list[TimeLine] = field(default_factory=list)
    at_step: int | None = None
    growth: int = field(init=False)

    def __post_init__(self) -> None:
        self.growth = growth(self.begin)

    def goes_on(self, told: Frequent) -> bool:
        """Whether the event belongs to this block: there is room for it, and its steps follow."""
        if self.events >= LINES * self.growth or self.end - self.begin >= _WHOLE:
            return False
        if not isinstance(told, StepLine) or not self.steps:
            return True
        return len(self.steps) < STEPS * self.growth \
            and (told.loss is None) == (self.steps[-1].loss is None)

    def add(self, told: Frequent, end: int) -> None:
        """Add an event, given where its line ends."""
        self.events += 1
        self.end = end
        if isinstance(told, StepLine):
            self.steps.append(told)
            self.at_step = told.step
        elif isinstance(told, PhaseLine):
            self.phases.append(told)
            self.at_step = told.step if told.step is not None else self.at_step
        elif isinstance(told, TimeLine):
            self.times.append(told)
        else:
            self.memory.append(told)

    def close(self, file: BinaryIO, into: list[Block]) -> None:
        """Add the block to `into`, if it is worth it."""
        step = _together(self.steps)
        if self.events >= FEWEST and (step is None or step.loss is None or isfinite(step.loss)):
            into.append(Block(
                self.begin, self.end, _mark(file, self.begin), self.events, step,
                _ends(self.memory, [max(self.memory, key=_fullness)] if self.memory else []),
                _ends(self.phases, []), self.at_step, tuple(self.times)))


def _plain(told: Frequent, step: int | None) -> bool:
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
