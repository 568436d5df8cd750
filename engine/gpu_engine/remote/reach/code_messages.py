"""What is said about code that is brought to a host, see `spanning.code` and `agent.code`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from gpu_engine.remote.reach.packed import compressed, decompressed

PIECE = 256 << 10
"""Bytes in one message, at most, before they are packed."""


@dataclass(frozen=True, slots=True)
class FindCode:
    """Is this code there? Answered by `CodeAt`."""

    kind: ClassVar[str] = "find code"
    name: str


HASH = 8
"""Bytes of each hash in `PreviewCode`."""


@dataclass(frozen=True, slots=True)
class PreviewCode:
    """Where would this code be, and what of it would have to be sent? Nothing is written. Answered
    by `CodePreview`."""

    kind: ClassVar[str] = "preview code"
    name: str
    hashes: bytes
    """The beginnings of all files' hashes, in the order of the list."""


@dataclass(frozen=True, slots=True)
class SendCode:
    """Bytes of what is being sent, to be kept until `BuildCode`: of the list of files, or of the
    contents of the missing ones, one behind the other. Answered by `Done`."""

    kind: ClassVar[str] = "send code"
    key: str
    """Names what is being sent: a word of 32 hexadecimal characters."""
    what: Literal["list", "contents"]
    offset: int
    data: bytes
    """Packed by zlib."""

    @classmethod
    def of(cls, key: str, what: Literal["list", "contents"], offset: int, data: bytes) -> SendCode:
        return cls(key, what, offset, compressed(data))

    def content(self) -> bytes:
        """The bytes. Raises BadMessage, also where there are more than `PIECE`."""
        return decompressed(self.data, PIECE, "SendCode.data")


@dataclass(frozen=True, slots=True)
class MissingCode:
    """Which files of the list that was sent are not there in any code yet? Answered by
    `Missing`."""

    kind: ClassVar[str] = "missing code"
    key: str
    name: str


@dataclass(frozen=True, slots=True)
class BuildCode:
    """All that was missing has been sent: make the folder. Answered by `CodeAt`."""

    kind: ClassVar[str] = "build code"
    key: str
    name: str


@dataclass(frozen=True, slots=True)
class CodeAt:
    """The folder that holds the code."""

    kind: ClassVar[str] = "code at"
    path: str | None = None
    """None: it is not there."""


@dataclass(frozen=True, slots=True)
class CodePreview:
    kind: ClassVar[str] = "code preview"
    path: str
    """The folder that holds the code, or would."""
    there: bool
    bits: bytes
    """As in `Missing`."""


@dataclass(frozen=True, slots=True)
class Missing:
    kind: ClassVar[str] = "missing"
    bits: bytes
    """A bit for each file of the list, the lowest of the first byte for the first file: 1 for one
    that is not there."""

    def has(self, number: int) -> bool:
        """Whether file `number` of the list is missing."""
        byte = number >> 3
        return byte < len(self.bits) and bool(self.bits[byte] >> (number & 7) & 1)
