"""What is said about a checkpoint that is brought to a host, see `spanning.checkpoint_transfer` and
`agent.incoming`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpu_engine.remote.reach.packed import compressed, decompressed

PIECE = 256 << 10
"""Bytes in one message, at most, before they are packed."""


@dataclass(frozen=True, slots=True)
class OfferCheckpoint:
    """A checkpoint is to come. Answered by `LackingFiles`."""

    kind: ClassVar[str] = "offer checkpoint"
    key: str
    """Names what is brought: a word of 32 hexadecimal characters. `Start` and `Resume` name it."""
    name: str
    path: str | None
    """The run folder that has it, on the host it comes from: what is found there on a shared disk
    need not be sent. None: no host's."""
    manifest: bytes
    """The content of its manifest, with the hashes of all other files."""


@dataclass(frozen=True, slots=True)
class LackingFiles:
    kind: ClassVar[str] = "lacking files"
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SendCheckpoint:
    """Bytes of one of its files, from `offset` on. Answered by `Done`."""

    kind: ClassVar[str] = "send checkpoint"
    key: str
    name: str
    """As in `Read`: "step-00000100/state.pt"."""
    offset: int
    data: bytes
    """Packed by zlib."""

    @classmethod
    def of(cls, key: str, name: str, offset: int, data: bytes) -> SendCheckpoint:
        return cls(key, name, offset, compressed(data))

    def content(self) -> bytes:
        """The bytes. Raises BadMessage, also where there are more than `PIECE`."""
        return decompressed(self.data, PIECE, "SendCheckpoint.data")
