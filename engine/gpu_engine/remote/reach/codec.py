"""Messages as lines of JSON, and back: their types and bounds, as another machine sends them.

It forgives nothing: what is missing, too large or of another type spoils the whole. Only a key that
is not known is passed over, as a newer version may send more.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from gpu_engine.common.clean import clean

LONGEST = 1 << 20
"""Bytes of one line, at most."""
PIECE = 256 << 10
"""Bytes of a file in one message, at most, before they are packed."""
TEXT = 1 << 16
"""Characters of one text, at most."""
ITEMS = 4096
"""Entries of one list or table, at most."""
_DEPTH = 14


class BadMessage(Exception):
    """What came is not what it should be; says where and what."""


class Message(msgspec.Struct, tag_field="kind"):
    """What one line holds, beside its number."""


class _Line(msgspec.Struct):
    id: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


def pack(number: int, message: Message) -> bytes:
    """A message as a line, newline with it."""
    line = {"id": number} | msgspec.to_builtins(message)
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def unpack(line: bytes, kinds: Any, text: Callable[[str], str] = str) -> tuple[int, Any]:
    """The number and the message, of the union `kinds`, that a line holds. `text` is applied to
    every text in it. A figure that is not a number (NaN) is unknown. Raises BadMessage."""
    if len(line) > LONGEST:
        raise BadMessage(f"a line of {len(line):,} bytes; {LONGEST:,} may be one")
    try:
        # By way of json, as msgspec's own reader refuses names of files that are not UTF-8.
        data = json.loads(line, parse_constant=lambda _: None)
        message = msgspec.to_builtins(msgspec.convert(data, kinds), builtin_types=(bytes,))
        return msgspec.convert(data, _Line).id, msgspec.convert(_bounded(message, text), kinds)
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
    if value is None or isinstance(value, bytes) \
            or (isinstance(value, int) and abs(value) < 1 << 63) \
            or (isinstance(value, float) and abs(value) <= 1e300):
        return value
    raise ValueError(f"a {type(value).__name__} is too long, too large or nested too deeply")


def compressed(data: bytes) -> bytes:
    return zlib.compress(data, 1)


def decompressed(data: bytes) -> bytes:
    """The bytes of a message's piece of a file. Raises BadMessage, also where there are more than
    `PIECE`, or less than was packed."""
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(data, PIECE + 1)
    except zlib.error:
        raise BadMessage("a piece of a file can't be unpacked") from None
    if len(content) > PIECE or not unpacking.eof:
        raise BadMessage("a piece of a file: too much at once, or cut")
    return content
