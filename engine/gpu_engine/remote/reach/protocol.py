"""What is said between this machine and an agent (`gpu-engine agent`) on another: a line of JSON
each, `{"id": 3, "kind": "stop", …}`, over the agent's standard streams.

A request has a number of its own; every answer to it carries that number. Most requests have one
answer. `watch` and `follow` have many, until `cancel` or the end of what is followed. `Failed`
can be the answer to any.

What an agent sends is not trusted: sizes are bounded, types hold, and its texts are made harmless
for a terminal as they are read (`answer`). What it does with a request it could be told by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gpu_engine.common.clean import clean_lines
from gpu_engine.devices.records import Inventory, Snapshot
from gpu_engine.remote.reach import strict
from gpu_engine.remote.reach.checkpoint_messages import (
    LackingFiles,
    OfferCheckpoint,
    SendCheckpoint,
)
from gpu_engine.remote.reach.code_messages import (
    BuildCode,
    CodeAt,
    CodePreview,
    FindCode,
    Missing,
    MissingCode,
    PreviewCode,
    SendCode,
)
from gpu_engine.remote.reach.packed import compressed, decompressed
from gpu_engine.remote.reach.strict import BadMessage
from gpu_engine.runs.state import State

VERSION = 1
"""Raised where an older agent or an older program here would misunderstand."""
LONGEST = 1 << 20
"""Bytes of one line, at most."""
PIECE = 256 << 10
"""Bytes of a file in one message, at most, before they are packed."""
SILENCE = 90.0
"""Seconds without a word from here after which an agent ends: a connection can be cut without
anybody there being told."""
MARK = "gpu-panel-agent"
"""Stands at the beginning of an agent's first line, before the word that it was started with:
whatever a login shell printed before is not ours."""


# --- requests ------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Hello:
    """Who are you? Answered by `Welcome`."""

    kind: ClassVar[str] = "hello"
    folders: tuple[str, ...] = ()
    """Where a run would start: the first that exists. It decides which interpreter it gets."""


@dataclass(frozen=True, slots=True)
class Watch:
    """The devices, and how they are from now on. Answered by `Devices`, then a `Looked` every
    `interval` seconds."""

    kind: ClassVar[str] = "watch"
    interval: float = 1.0
    once: bool = False
    """End after the first look."""
    slots: bool = False
    """The slots of its processor, although it has GPUs."""


@dataclass(frozen=True, slots=True)
class Digest:
    """A file that the command names, and what it holds here."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Check:
    """What a launch of `spec` needs, without starting it. Answered by `Checked`."""

    kind: ClassVar[str] = "check"
    spec: Mapping[str, object]
    folders: tuple[str, ...] = ()
    """The first of these that exists is where it would run; none given: the home."""
    files: tuple[Digest, ...] = ()


@dataclass(frozen=True, slots=True)
class Listen:
    """Listen on a TCP port for some seconds, so that others can try it. Answered by `Listening`
    at once."""

    kind: ClassVar[str] = "listen"
    port: int
    """0: any free one."""
    seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Reach:
    """Try to connect to `port` at each of these addresses. Answered by `Reached`."""

    kind: ClassVar[str] = "reach"
    addresses: tuple[str, ...]
    port: int
    seconds: float = 3.0


@dataclass(frozen=True, slots=True)
class Start:
    """Start a run of `spec`, in a folder as with `Check`. Answered by `Started`. Said
    twice with one `key`, as after a connection that broke, it starts one run."""

    kind: ClassVar[str] = "start"
    spec: Mapping[str, object]
    key: str
    folders: tuple[str, ...] = ()
    trying: bool = False
    """Its ranks only try their connection."""
    attempt: int = 1
    """The number of its first attempt: a host that joins later counts as the others do."""
    checkpoint: str | None = None
    """The one to go on from; None: it begins anew."""
    bring: str | None = None
    """The key under which that checkpoint was sent."""
    whole: str = ""
    """The id of the run that it is part of."""
    machine: str = ""
    """The name of the machine that has that run."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Another attempt of an ended run, with `spec`. Answered by `Started`. `attempt` is the one
    that begins: where it has begun already, nothing is started."""

    kind: ClassVar[str] = "resume"
    run: str
    spec: Mapping[str, object]
    attempt: int
    checkpoint: str | None = None
    bring: str | None = None
    """The key under which that checkpoint was sent; None: it is in the run's folder."""
    fresh: tuple[int, ...] = ()
    """Ranks that were on another host: what this one has of them is older, and is set aside."""


@dataclass(frozen=True, slots=True)
class At:
    """How far a file is known here, and the check (CRC-32) of the last bytes of that."""

    name: str
    offset: int
    checked: int = 0
    """How many bytes before `offset` the check is of."""
    crc: int = 0


@dataclass(frozen=True, slots=True)
class Follow:
    """What a run's files gain from there on. Answered by `Piece`s and `Told`s, and by `Done` when
    the run has ended and all of it was sent."""

    kind: ClassVar[str] = "follow"
    run: str
    at: tuple[At, ...] = ()
    ranks: tuple[int, ...] | None = None
    """Only the files of these; None: of all."""
    node: int = 0
    most: int | None = None
    """Bytes of a log after which no more of it is sent, until it begins anew; None: all of it."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask the run to save and end; `now`: end it at once. Answered by `Done`."""

    kind: ClassVar[str] = "stop"
    run: str
    now: bool = False


@dataclass(frozen=True, slots=True)
class Stacks:
    """Where the run's ranks are. Answered by `Done`: the stacks come with the ranks' logs."""

    kind: ClassVar[str] = "stacks"
    run: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ListCheckpoints:
    """Which checkpoints a run has. Answered by `Checkpoints`."""

    kind: ClassVar[str] = "checkpoints"
    run: str


@dataclass(frozen=True, slots=True)
class Read:
    """A file of a run's checkpoint. Answered by `Piece`s from `offset` on, then `Done`."""

    kind: ClassVar[str] = "read"
    run: str
    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a run that has ended, and the code that it was sent unless another run uses it.
    Answered by `Removed`."""

    kind: ClassVar[str] = "remove"
    run: str | None
    """None: the one that `Start` with this key has started, if any has."""
    key: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """No more answers to request `request`. Not answered itself."""

    kind: ClassVar[str] = "cancel"
    request: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Somebody is still there: an agent that hears nothing for `SILENCE` seconds ends. Answered by
    `Done`."""

    kind: ClassVar[str] = "ping"


Request = Hello | Watch | Check | Listen | Reach | Start | Resume | Follow | Stop | Stacks \
    | ListCheckpoints | Read | Remove | FindCode | PreviewCode | SendCode | MissingCode \
    | BuildCode | OfferCheckpoint | SendCheckpoint | Cancel | Ping


# --- answers -------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Torch:
    """The torch of an interpreter there."""

    version: str
    cuda: str | None = None
    hip: str | None = None


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the machine is."""

    kind: ClassVar[str] = "welcome"
    protocol: int
    version: str
    """gpu-panel's."""
    python: str
    """Path of the interpreter that the agent runs in."""
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
    clock: float
    """Unix seconds when it was asked."""
    addresses: tuple[str, ...] = ()
    """Its own numeric addresses that are not loopback, the one that we came in by first."""
    torch: Torch | None = None
    """That of the ranks; None: none was found, or it does not say what it is."""
    interpreter: str | None = None
    """The interpreter that a task's ranks get there, where run.python names none; None: none there
    has torch."""
    lacking: str | None = None
    """Why there is no such interpreter, and what would bring one."""
    driver: str | None = None
    cuda: str | None = None
    disk_free: int | None = None
    package: str = ""
    """The folder of `gpu_engine` there; "": it did not say."""


@dataclass(frozen=True, slots=True)
class FreedomOf:
    """Whether a device may be taken there, see `devices.availability`."""

    device: str
    state: Literal["free", "busy", "unknown", "unhealthy", "leased"]
    reason: str


@dataclass(frozen=True, slots=True)
class Devices:
    """The machine's devices, found once."""

    kind: ClassVar[str] = "devices"
    inventory: Inventory


@dataclass(frozen=True, slots=True)
class Looked:
    """One look at all of them."""

    kind: ClassVar[str] = "looked"
    snapshot: Snapshot
    freedom: tuple[FreedomOf, ...] = ()


@dataclass(frozen=True, slots=True)
class Wrong:
    """One thing that keeps a spec from running there."""

    key: str
    value: str
    message: str


@dataclass(frozen=True, slots=True)
class Checked:
    """What is wrong there; nothing: it can start."""

    kind: ClassVar[str] = "checked"
    wrong: tuple[Wrong, ...] = ()
    warnings: tuple[str, ...] = ()
    folder: str = ""
    """The folder that it would run in."""


@dataclass(frozen=True, slots=True)
class Listening:
    kind: ClassVar[str] = "listening"
    port: int


@dataclass(frozen=True, slots=True)
class Attempted:
    """What came of trying an address."""

    address: str
    problem: str | None = None
    """None: it was reached."""


@dataclass(frozen=True, slots=True)
class Reached:
    kind: ClassVar[str] = "reached"
    tried: tuple[Attempted, ...]


@dataclass(frozen=True, slots=True)
class Started:
    """A run there."""

    kind: ClassVar[str] = "started"
    run: str
    path: str
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a file: those from `offset` on. `start`: the file has begun anew."""

    kind: ClassVar[str] = "piece"
    name: str
    offset: int
    data: bytes
    packed: bool = False
    start: bool = False
    size: int | None = None
    """Bytes that the file has now."""

    @classmethod
    def of(cls, name: str, offset: int, data: bytes, *, start: bool = False,
           size: int | None = None) -> Piece:
        """Packed where that makes it shorter."""
        packed = compressed(data) if len(data) > 256 else data
        if len(packed) < len(data):
            return cls(name, offset, packed, True, start, size)
        return cls(name, offset, data, False, start, size)

    def content(self) -> bytes:
        """The bytes. Raises BadMessage, also where there are more than `PIECE`."""
        if self.packed:
            return decompressed(self.data, PIECE, "Piece.data")
        if len(self.data) > PIECE:
            raise BadMessage("Piece.data: too much at once")
        return self.data


@dataclass(frozen=True, slots=True)
class Told:
    """How the run is, whenever that changes."""

    kind: ClassVar[str] = "told"
    state: State
    unheard: str | None = None
    """Why nothing may be recorded of its ranks though they go on: the disk there is full."""


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    name: str
    """Relative to the run's checkpoints: "step-00000100/state.pt"."""
    size: int


@dataclass(frozen=True, slots=True)
class Checkpoints:
    kind: ClassVar[str] = "checkpoints"
    files: tuple[CheckpointFile, ...]


@dataclass(frozen=True, slots=True)
class Removed:
    """What was deleted."""

    kind: ClassVar[str] = "removed"
    path: str | None = None
    """The run's folder; None: there was none."""
    freed: int = 0
    """Bytes that it had."""
    code: str | None = None
    """The folder of its code; None: it stays, or there was none."""
    kept: str | None = None
    """Why its code stays, in words."""


@dataclass(frozen=True, slots=True)
class Done:
    kind: ClassVar[str] = "done"


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a request could not be done, in words."""

    kind: ClassVar[str] = "failed"
    message: str
    ours: bool = False
    """Whether it is the agent's own mistake, `message` being its traceback."""


Answer = Welcome | Devices | Looked | Checked | Listening | Reached | Started | Piece | Told \
    | Checkpoints | Removed | LackingFiles | CodeAt | CodePreview | Missing | Done | Failed

_REQUESTS: dict[str, Any] = {c.kind: c for c in (
    Hello, Watch, Check, Listen, Reach, Start, Resume, Follow, Stop, Stacks, ListCheckpoints, Read,
    Remove, FindCode, PreviewCode, SendCode, MissingCode, BuildCode, OfferCheckpoint,
    SendCheckpoint, Cancel, Ping)}
_ANSWERS: dict[str, Any] = {c.kind: c for c in (
    Welcome, Devices, Looked, Checked, Listening, Reached, Started, Piece, Told, Checkpoints,
    Removed, LackingFiles, CodeAt, CodePreview, Missing, Done, Failed)}


# --- lines ---------------------------------------------------------------------------------------

def pack(number: int, message: Request | Answer) -> bytes:
    """A message as a line, newline with it."""
    return strict.dumps({"id": number, "kind": message.kind} | strict.plain(message))


def request(line: bytes) -> tuple[int, Request]:
    """The number and the request that a line holds. Raises BadMessage."""
    return _unpack(line, _REQUESTS, str)


def answer(line: bytes) -> tuple[int, Answer]:
    """The number and the answer that a line holds, its texts harmless. Raises BadMessage."""
    return _unpack(line, _ANSWERS, harmless)


def harmless(text: str) -> str:
    """A text of several lines without anything that a terminal would obey."""
    return text if text.isprintable() and text.isascii() and len(text) < 4096 else \
        "\n".join(clean_lines(text))


def _unpack(line: bytes, kinds: dict[str, Any], text: strict.Text) -> tuple[int, Any]:
    if len(line) > LONGEST:
        raise BadMessage(f"a line of {len(line):,} bytes; {LONGEST:,} may be one")
    data = strict.loads(line)
    if not isinstance(data, dict):
        raise BadMessage("expected a table")
    number, kind = data.get("id"), data.get("kind")
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 53:
        raise BadMessage("expected a number in id")
    cls = kinds.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise BadMessage(f"unknown kind {str(kind)[:40]!r}")
    return number, strict.read(cls, data, text)
