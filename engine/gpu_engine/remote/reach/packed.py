"""Bytes in messages, packed by zlib, and unpacked no further than a message may be long."""

from __future__ import annotations

import zlib

from gpu_engine.remote.reach.strict import BadMessage


def compressed(data: bytes) -> bytes:
    return zlib.compress(data, 1)


def decompressed(data: bytes, most: int, field: str) -> bytes:
    """The bytes, at most `most`. `field` names them in errors. Raises BadMessage, also where there
    are more, or less than was packed."""
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(data, most + 1)
    except zlib.error:
        raise BadMessage(f"{field}: can't be unpacked") from None
    if len(content) > most or not unpacking.eof:
        raise BadMessage(f"{field}: too much at once, or cut")
    return content
