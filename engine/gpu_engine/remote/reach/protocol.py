"""What is said between this machine and our program on another (`gpu-engine agent`): one request, a
line of JSON, `{"kind": "stop", …}`, on its standard input, and the answers to it, a line each, on
its standard output. Then it ends.

Most requests have one answer. `Watch` and `Follow` have many, until nobody reads them or what is
followed ends; empty lines say meanwhile that somebody here still does. `Failed` can be the answer
to any.

What a host sends is not trusted: sizes are bounded, types hold, and its texts are made harmless
for a terminal as they are read (`answer`). What is missing, too large or of another type spoils the
whole; only a key that is not known is passed over, as a newer version may send more. What is asked
of a host it could be told by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from gpu_engine.common.clean import clean, clean_lines
from gpu_engine.common.records import UnixTime, Whole, within_bounds
from gpu_engine.devices.availability import Availability
from gpu_engine.devices.records import Inventory, Snapshot
from gpu_engine.interpreters.inspection import Build
from gpu_engine.runs.state import State
from gpu_engine.spec.schema import Port

VERSION = 5
"""Raised where an older program there or here would misunderstand."""
SILENCE = 90.0
"""Seconds without a word from here after which a `Watch` or `Follow` ends: a connection can be cut
without anybody there being told."""
BEAT = 10.0
"""Seconds between two signs of life."""
MARK = "gpu-panel-agent"
"""Stands at the beginning of the first line from there, before the word that it was started with:
whatever a login shell printed before is not ours."""
LONGEST = 1 << 20
"""Bytes of one line, at most."""
PIECE = 256 << 10
"""Bytes of a file in one message, at most."""
TEXT = 1 << 16
"""Characters of one text, at most."""
ITEMS = 4096
"""Entries of one list or table, at most."""
_DEPTH = 14


class BadMessage(Exception):
    """What came is not what it should be; says where and what."""


class Message(msgspec.Struct, tag_field="kind"):
    """What one line holds."""


# --- requests ------------------------------------------------------------------------------------

class Hello(Message, tag="hello"):
    """Who are you? Answered by `Welcome`."""

    folders: tuple[str, ...] = ()
    """Where a run would start: the first that exists. It decides which interpreter it gets."""
    slots: bool = False
    """The slots of its processor, although it has GPUs."""
    code: str | None = None
    """The name of the code of which it is to tell. It is kept for a day from now on."""


class Watch(Message, tag="watch"):
    """Answered by `Welcome`, then by a `Looked` every `interval` seconds."""

    interval: float = 1.0
    folders: tuple[str, ...] = ()


class Check(Message, tag="check"):
    """What a launch of `spec` needs, without starting it. Answered by `Checked`."""

    spec: Mapping[str, object]
    folders: tuple[str, ...] = ()
    """The first of these that exists is where it would run; none given: the home."""


class Listen(Message, tag="listen"):
    """Listen on a TCP port for some seconds, so that others can try it. Answered by `Listening`
    at once."""

    port: int
    """0: any free one."""
    seconds: float = 10.0


class Reach(Message, tag="reach"):
    """Try to connect to `port` at each of these addresses. Answered by `Reached`."""

    addresses: tuple[str, ...]
    port: int
    seconds: float = 5.0
    """The kernel sends a first packet that was lost again after 1 and 3 s (RFC 6298)."""


class Start(Message, tag="start"):
    """Start a run of `spec`, in a folder as with `Check`. Answered by `Started`. Said
    twice with one `key`, as after a connection that broke, it starts one run."""

    spec: Mapping[str, object]
    key: str
    folders: tuple[str, ...] = ()
    trying: bool = False
    """Its ranks only try their connection."""
    attempt: int = 1
    """The number of its first attempt: a host that joins later counts as the others do."""
    checkpoint: str | None = None
    """The one to go on from; None: it begins anew."""
    whole: str = ""
    """The id of the run that it is part of."""
    machine: str = ""
    """The name of the machine that has that run."""
    only_ask: bool = False
    """Start nothing: tell of the run that was started with this key."""


class Resume(Message, tag="resume"):
    """Another attempt of an ended run, with `spec`. Answered by `Started`. `attempt` is the one
    that begins: where it has begun already, nothing is started."""

    run: str
    spec: Mapping[str, object]
    attempt: int
    checkpoint: str | None = None
    fresh: tuple[int, ...] = ()
    """Ranks that were on another host: what this one has of them is older, and is set aside."""


class At(Struct):
    """How far a file is known here, and the check (CRC-32) of the last bytes of that."""

    name: str
    offset: int
    checked: int = 0
    """How many bytes before `offset` the check is of."""
    crc: int = 0


class Follow(Message, tag="follow"):
    """What a run's files gain from there on. Answered by `Piece`s and `Told`s, and by `Done` when
    the run has ended and all of it was sent."""

    run: str
    at: tuple[At, ...] = ()
    ranks: tuple[int, ...] | None = None
    """Only the files of these; None: of all."""
    node: int = 0


class Stop(Message, tag="stop"):
    """Ask the run to save and end; `now`: end it at once. Answered by `Done`."""

    run: str
    now: bool = False


class Stacks(Message, tag="stacks"):
    """Where the run's ranks are. Answered by `Done`: the stacks come with the ranks' logs."""

    run: str
    ranks: tuple[int, ...]


class Trace(Message, tag="trace"):
    """Have the run's ranks trace their next steps, as `gpu-engine trace`. Answered by `Traced`."""

    run: str
    steps: int
    ranks: tuple[int, ...]
    wait: float
    """Seconds."""


class Choose(Message, tag="choose"):
    """The checkpoint that `which` means, by the rules of `gpu-engine export`. Answered by `Chosen`.
    """

    run: str
    which: str
    best: str | None = None


class Remove(Message, tag="remove"):
    """Delete a run that has ended, and the code that it was sent unless another run uses it.
    Answered by `Removed`."""

    run: str | None
    """None: the one that `Start` with this key has started, if any has."""
    key: str


class SendCode(Message, tag="send code"):
    """Keep this code: behind the line come the list of its files, which has `listed` bytes, and
    their contents, `size` bytes in all. Answered by `CodeKept`."""

    name: str
    listed: int
    size: int


Request = Hello | Watch | Check | Listen | Reach | Start | Resume | Follow | Stop | Stacks \
    | Trace | Choose | Remove | SendCode


# --- answers -------------------------------------------------------------------------------------

class CodeState(Struct):
    path: str
    """The folder that holds the code, or would."""
    there: bool


class Welcome(Message, tag="welcome"):
    """What the machine is."""

    protocol: int
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


class Looked(Message, tag="looked"):
    """One look at all of them."""

    snapshot: Snapshot
    freedom: Mapping[str, Availability] = {}
    """By device id."""
    waiting: Whole = 0
    """How many runs wait there for devices of this kind."""


class Wrong(Struct):
    """One thing that keeps a spec from running there."""

    key: str
    value: str
    message: str


class Checked(Message, tag="checked"):
    """What is wrong there; nothing: it can start."""

    wrong: tuple[Wrong, ...] = ()
    warnings: tuple[str, ...] = ()
    folder: str = ""
    """The folder that it would run in."""


class Listening(Message, tag="listening"):
    port: Port


class Reached(Message, tag="reached"):
    tried: Mapping[str, str | None]
    """Address → why it was not reached; None: it was."""


class Started(Message, tag="started"):
    """A run there."""

    run: str
    path: str
    attempt: Whole = 1


class Piece(Message, tag="piece"):
    """Bytes of a file: those from `offset` on. `start`: the file has begun anew."""

    name: str
    offset: Whole
    data: bytes
    start: bool = False


class Told(Message, tag="told"):
    """How the run is, whenever that changes."""

    state: State
    unheard: str | None = None
    """Why nothing may be recorded of its ranks though they go on: the disk there is full."""


class TraceOf(Struct):
    """What one rank has answered."""

    rank: Whole
    path: str | None
    """The file there."""
    problem: str | None


class Traced(Message, tag="traced"):
    answers: tuple[TraceOf, ...]


class Chosen(Message, tag="chosen"):
    name: str


class Removed(Message, tag="removed"):
    """What was deleted."""

    path: str | None = None
    """The run's folder; None: there was none."""
    freed: int = 0
    """Bytes that it had."""
    code: str | None = None
    """The folder of its code; None: it stays, or there was none."""
    kept: str | None = None
    """Why its code stays, in words."""


class CodeKept(Message, tag="code kept"):
    path: str
    """The folder that holds it."""


class Done(Message, tag="done"):
    """It was done."""


class Failed(Message, tag="failed"):
    """Why a request could not be done, in words."""

    message: str


Answer = Welcome | Looked | Checked | Listening | Reached | Started | Piece | Told | Traced \
    | Chosen | Removed | CodeKept | Done | Failed


# --- lines ---------------------------------------------------------------------------------------

def pack(message: Message) -> bytes:
    """A message as a line, newline with it."""
    return json.dumps(msgspec.to_builtins(message), separators=(",", ":")).encode() + b"\n"


def _unpack(line: bytes, kinds: Any, text: Callable[[str], str] = str) -> Any:
    """The message, of the union `kinds`, that a line holds. `text` is applied to every text in it.
    A figure that is not a number (NaN) is unknown. Raises BadMessage."""
    if len(line) > LONGEST:
        raise BadMessage(f"a line of {len(line):,} bytes; {LONGEST:,} may be one")
    try:
        # By way of json, as msgspec's own reader refuses names of files that are not UTF-8.
        data = json.loads(line, parse_constant=lambda _: None)
        message = msgspec.to_builtins(msgspec.convert(data, kinds), builtin_types=(bytes,))
        message = msgspec.convert(_bounded(message, text), kinds)
        if not within_bounds(message):
            raise ValueError("a number is out of bounds")
        return message
    except (ValueError, RecursionError) as err:  # msgspec's and json's errors are ValueErrors
        raise BadMessage(clean(str(err), 200)) from None


def _bounded(value: Any, text: Callable[[str], str], depth: int = 0) -> Any:
    """What a message is made of, if all of it is within the bounds. Raises ValueError."""
    if isinstance(value, str) and len(value) <= TEXT:
        return text(value)
    if isinstance(value, dict | list | tuple) and len(value) <= ITEMS and depth < _DEPTH:
        if not isinstance(value, dict):
            return [_bounded(v, text, depth + 1) for v in value]
        return {_bounded(k, text, depth): _bounded(v, text, depth + 1) for k, v in value.items()}
    if value is None or isinstance(value, bytes | float) \
            or (isinstance(value, int) and abs(value) < 1 << 63):
        return value
    raise ValueError(f"a {type(value).__name__} is too long, too large or nested too deeply")


def request(line: bytes) -> Request:
    """The request that a line holds. Raises BadMessage."""
    return _unpack(line, Request)


def answer(line: bytes) -> Answer:
    """The answer that a line holds, its texts harmless. Raises BadMessage."""
    return _unpack(line, Answer, harmless)


def harmless(text: str) -> str:
    """A text of several lines without anything that a terminal would obey."""
    return text if text.isprintable() and text.isascii() and len(text) < 4096 else \
        "\n".join(clean_lines(text))
