"""Reading a file that a rank has traced: bounded, and its mistakes told as a person reads them."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import file_inside, reason

_MOST = 512 << 20
"""Bytes of JSON that are read at most."""


def unpacked(run: Path, name: str) -> bytes:
    """The JSON of the trace `name` in the run folder `run`. Raises UserError if it is too large,
    and what `readable` tells of."""
    with file_inside(run, name) as file, gzip.open(file) as plain:
        data = plain.read(_MOST + 1)
    if len(data) > _MOST:
        raise UserError(f"{name}: larger than {_MOST >> 20} MiB; open it in Perfetto, or trace "
                        "fewer steps")
    return data


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn what goes wrong inside, while the file `name` is read, into a UserError."""
    try:
        yield
    except OSError as err:
        raise UserError(f"{name}: {reason(err)}") from None
    except (ValueError, EOFError, zlib.error, msgspec.MsgspecError) as err:
        raise UserError(f"{name}: no trace: {err}") from None
