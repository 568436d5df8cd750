"""What a command of gpu-engine on another machine prints, as it is read here: JSON, by the types of
the answers below.

The command is started there with `--wire WORD` (`call.Call`). It says first the number of the wire
(`MARK`), then each answer on a line behind WORD: what it prints with `--json`, or {"errors": …}.

What a host sends is not trusted: sizes are bounded, types hold, and its texts are made harmless
for a terminal as they are read (`typed`). What is missing, too large or of another type spoils the
whole; a key that is not known is passed over, and what is new here has a default, as versions with
one number understand each other. What is asked of a host it could be told by hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from gpu_engine.common.clean import clean, clean_lines
from gpu_engine.common.records import UnixTime, Whole, within_bounds
from gpu_engine.devices.availability import Availability
from gpu_engine.devices.records import Inventory, Snapshot
from gpu_engine.interpreters.inspection import Build
from gpu_engine.runs.state import State
from gpu_engine.spec.schema import Port

VERSION = 6
"""Raised where an older program there or here would misunderstand."""
SILENCE = 90.0
"""Seconds without a word from here after which what goes on there ends: a connection can be cut
without anybody there being told."""
BEAT = 10.0
"""Seconds between two signs of life."""
MARK = "gpu-panel-wire"
"""Begins the first line from there, before the word that it was started with, the number of its
wire and its version: whatever a login shell printed before is not ours."""
LONGEST = 1 << 20
"""Bytes of one line, at most."""
PIECE = 128 << 10
"""Bytes of a file in one line, at most: JSON has six for each that is no text."""
TEXT = 1 << 16
"""Characters of one text, at most."""
ITEMS = 4096
"""Entries of one list or table, at most."""
_DEPTH = 14
A = TypeVar("A")


class BadMessage(Exception):
    """What came is not what it should be; says where and what."""


class Fault(Struct):
    """Why a command could not do it, as `Problem.to_dict` has it."""

    why: str
    what: str | None = None
    value: Any = None
    remedy: str | None = None


class CodeState(Struct):
    path: str
    """The folder that holds the code, or would."""
    there: bool


class Welcome(Struct):
    """What the machine is, and its devices."""

    version: str
    """gpu-panel's."""
    python: str
    """Path of the interpreter that our program there runs in."""
    python_version: str
    hostname: str
    user: str
    home: str
    """Where its runs are kept."""
    folder: str
    """Where a relative path begins."""
    boot: str | None
    network: str | None
    """Names the network that the machine or container has: two that share it are at one
    address."""
    place: str
    """Names the disk and folder that runs are kept in: two hosts that share it are one."""
    clock: UnixTime
    """Unix seconds when this was sent."""
    addresses: tuple[str, ...] = ()
    """Its own numeric addresses that are not loopback, the one that we came in by first."""
    torch: Build | None = None
    """That of the ranks; None: none was found, or it does not say what it is."""
    interpreter: str | None = None
    """The interpreter that a task's ranks get there, where run.python names none; None: none there
    has torch."""
    lacking: str | None = None
    """Why there is no such interpreter, and what would bring one."""
    disk_free: Whole | None = None
    package: str = ""
    """The folder of `gpu_engine` there; "": it did not say."""
    inventory: Inventory = Inventory((), "")
    """Its devices, found once."""
    code: CodeState | None = None
    """Where the code is that was asked for."""


class Looked(Struct):
    """One look at all of them."""

    snapshot: Snapshot
    freedom: Mapping[str, Availability] = {}
    """By device id."""
    waiting: Whole = 0
    """How many runs wait there for devices of this kind."""


class Checked(Struct):
    """That it can start there."""

    cwd: str
    """The folder that it would run in."""
    warnings: tuple[str, ...] = ()


class Listening(Struct):
    port: Port


class Reached(Struct):
    tried: Mapping[str, str | None]
    """Address → why it was not reached; None: it was."""


class Started(Struct):
    """A run there."""

    id: str
    path: str


class Piece(Struct):
    """Bytes of a file: those from `offset` on. `start`: the file has begun anew. On the wire they
    are its `text`, where "\\udcff" is the byte 255 that is none."""

    name: str
    offset: Whole
    data: bytes
    start: bool = False


@dataclass(frozen=True, slots=True)
class Told(State):
    """How a run is, whenever that changes."""

    kind: Literal["state", "ended"] = "state"
    """ended: all that its files have was sent."""
    silence: str | None = None
    """Why nothing may be recorded of its ranks though they go on: the disk there is full."""


class Stopped(Struct):
    state: str


class Asked(Struct):
    """What one rank has answered."""

    rank: Whole
    problem: str | None
    path: str | None = None
    """The file of a trace, there."""


class Chosen(Struct):
    checkpoint: str


class CodeKept(Struct):
    path: str
    """The folder that holds it."""


def loaded(line: bytes) -> Any:
    """The JSON of a line, where a figure that is not a number (NaN) is unknown. Raises BadMessage.
    """
    try:
        # Not msgspec's own reader, which refuses names of files that are not UTF-8.
        return json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as err:
        raise BadMessage(clean(str(err), 200)) from None


def typed(data: Any, kind: type[A]) -> A:
    """An answer of this kind, its texts harmless. Raises BadMessage."""
    try:
        if kind is Piece and isinstance(text := data.get("text"), str):
            data["data"] = text.encode("utf-8", "surrogateescape")
        found = msgspec.to_builtins(msgspec.convert(data, kind), builtin_types=(bytes,))
        answer = msgspec.convert(_bounded(found), kind)
        if not within_bounds(answer):
            raise ValueError("a number is out of bounds")
        return answer
    except (ValueError, RecursionError) as err:  # msgspec's errors are ValueErrors
        raise BadMessage(clean(str(err), 200)) from None


def _bounded(value: Any, depth: int = 0) -> Any:
    """What an answer is made of, if all of it is within the bounds. Raises ValueError."""
    if isinstance(value, str) and len(value) <= TEXT:
        return value if value.isprintable() and value.isascii() and len(value) < 4096 else \
            "\n".join(clean_lines(value))
    if isinstance(value, dict | list | tuple) and len(value) <= ITEMS and depth < _DEPTH:
        if not isinstance(value, dict):
            return [_bounded(v, depth + 1) for v in value]
        return {_bounded(k, depth): _bounded(v, depth + 1) for k, v in value.items()}
    if value is None or isinstance(value, bytes | float) \
            or (isinstance(value, int) and abs(value) < 1 << 63):
        return value
    raise ValueError(f"a {type(value).__name__} is too long, too large or nested too deeply")
