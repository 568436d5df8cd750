"""Code that is sent here: what is asked about it, and the files of `gpu_engine.code.store` that
answer."""

from __future__ import annotations

import os

from gpu_engine.code import listing, store
from gpu_engine.code.listing import BadList, Entry
from gpu_engine.common.errors import UserError, telling
from gpu_engine.common.files import open_file
from gpu_engine.remote.reach import protocol
from gpu_engine.remote.there.wire import Asked


def compare(asked: Asked, request: protocol.CompareCode) -> None:
    """Code of which a run has changed a file is not that code any more."""
    place, there = store.place_of(request.name)
    if there and request.use:
        store.mark_used(place)
    here = set() if there else {bytes.fromhex(sha)[:protocol.HASH] for sha in store.contents()}
    each = [request.hashes[at:at + protocol.HASH]
            for at in range(0, len(request.hashes) - protocol.HASH + 1, protocol.HASH)]
    bits = bytearray((len(each) + 7) // 8)
    for number, one in enumerate(each):
        if not there and one not in here:
            bits[number >> 3] |= 1 << (number & 7)
    asked.send(protocol.CodeState(str(place), there, bytes(bits)))


def send(asked: Asked, request: protocol.SendCode) -> None:
    data = request.content()
    most = listing.LONGEST_LIST if request.what == "list" else listing.LARGEST
    if not 0 <= request.offset <= most - len(data):
        raise UserError(f"more than the {most:,} bytes that code may have")
    with telling(f"the code can't be written to {store.root()}"):
        store.root().mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(store.sent(request.key, request.what),
                     os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.seek(request.offset)
            file.write(data)
    asked.send(protocol.Done())


def build(asked: Asked, request: protocol.BuildCode) -> None:
    """Nothing stands under the final name before all of it was verified."""
    listed, entries = _listed(request)
    try:
        with telling(f"the code can't be written to {store.root()}"):
            sent = store.sent(request.key, "contents")
            sent.touch(mode=0o600)  # nothing was missing
            with sent.open("rb") as contents:
                here = store.contents()

                def content(number: int, entry: Entry) -> bytes:
                    if protocol.is_set(request.bits, number):
                        return contents.read(entry.size)
                    copy = here.get(entry.sha256)
                    return store.read(*copy) if copy is not None else b""

                place = store.built(request.name, listed, entries, content, request.key)
    finally:
        for what in ("list", "contents"):
            store.sent(request.key, what).unlink(missing_ok=True)
    asked.send(protocol.CodeState(str(place), True, b""))


def _listed(request: protocol.BuildCode) -> tuple[bytes, tuple[Entry, ...]]:
    """The list that was sent. Raises UserError."""
    path = store.sent(request.key, "list")
    try:
        with open_file(path) as file:
            listed = file.read(listing.LONGEST_LIST + 1)
        entries = listing.unpacked(listed)
    except (OSError, BadList) as err:
        raise UserError(f"the list of the code can't be used: {err}") from None
    if listing.name_of(listed) != request.name:
        raise UserError("the list of the code was changed on its way here; try again")
    return listed, entries
