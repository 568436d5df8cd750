"""A W&B run with many steps, written in W&B's own file format.

`wandb.log` takes many minutes for a million steps. So one step is logged by it, and what it has
written for that step, a record of the history and two of the summary, is written for each further
one. The format is LevelDB's log: blocks of 32 KiB, in which each piece of a record has its CRC,
length and kind.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

BLOCK, HEAD = 32768, 7
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def write(losses: Iterable[float]) -> None:
    import wandb
    from wandb.proto import wandb_internal_pb2

    run = wandb.init(mode="offline", project="peers", dir=".",
                     settings=wandb.Settings(console="off", silent=True))
    run.log({"loss": 1.0})
    run.finish()
    wandb.teardown()  # its second process may still write
    path = next(Path("wandb").glob("offline-run-*/run-*.wandb"))
    before, steps, after = [], [], []
    for data in records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind in ("history", "summary"):
            steps.append(record)
        else:
            (after if kind in ("exit", "final") else before).append(record)
    with path.open("wb") as file:
        out = Writer(file)
        number = 0
        for record in before:
            number += 1
            out.add(numbered(record, number))
        for step, loss in enumerate(losses):
            for record in steps:
                items = record.history.item if record.HasField("history") \
                    else record.summary.update
                for item in items:
                    name = (item.nested_key or [item.key])[0]
                    if name == "loss":
                        item.value_json = repr(loss)
                    elif name == "_step":
                        item.value_json = str(step)
                if record.HasField("history"):
                    record.history.step.num = step
                number += 1
                out.add(numbered(record, number))
        for record in after:
            number += 1
            out.add(numbered(record, number))


def numbered(record, number: int) -> bytes:
    record.num = number
    return record.SerializeToString()


def records(data: bytes) -> Iterator[bytes]:
    """The records of a file."""
    at, whole = HEAD, b""
    while at + HEAD <= len(data):
        room = BLOCK - at % BLOCK
        if room < HEAD:
            at += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        piece = data[at + HEAD:at + HEAD + length]
        whole = piece if kind in (WHOLE, FIRST) else whole + piece
        at += HEAD + length
        if kind in (WHOLE, LAST):
            yield whole


class Writer:
    """Writes records into blocks."""

    def __init__(self, file) -> None:
        self._file = file
        self._at = file.write(b":W&B" + struct.pack("<HB", 0xBEE1, 0))

    def add(self, record: bytes) -> None:
        first = True
        while first or record:
            room = BLOCK - self._at % BLOCK
            if room < HEAD:
                self._at += self._file.write(bytes(room))
                room = BLOCK
            piece, record = record[:room - HEAD], record[room - HEAD:]
            kind = (FIRST if record else WHOLE) if first else (MIDDLE if record else LAST)
            crc = zlib.crc32(piece, zlib.crc32(bytes([kind])))
            self._at += self._file.write(struct.pack("<IHB", crc, len(piece), kind) + piece)
            first = False
