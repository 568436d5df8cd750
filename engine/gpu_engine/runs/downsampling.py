"""Keeping the digests of long events files up to date while ranks write them."""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from gpu_engine.common.files import size_of
from gpu_engine.common.programs import own_program
from gpu_engine.events.downsample import Digester
from gpu_engine.events.paths import DIGESTED, digest_path, events_path, ranks_with_files
from gpu_engine.runs import trust

log = logging.getLogger(__name__)

_EVERY = 5.0
"""Seconds between two readings of all files."""
_AT_ONCE = 1 << 20
"""Bytes to digest at once, about 20 ms: the supervisor must also react to signals."""


class Digests:
    """The digests of one run. A panel reads long runs by them; nothing else needs them, so a
    digest that can't be written is given up."""

    def __init__(self) -> None:
        self._due = 0.0
        self._each: dict[Path, Digester | None] = {}

    def update(self, files: Iterable[Path]) -> None:
        """Digest some of what is new in these events files, if it is time."""
        now = time.monotonic()
        if now < self._due:
            return
        behind = False
        for path in files:
            digester = self._each.setdefault(path, Digester(path))
            try:
                behind = (digester is not None and digester.advance(_AT_ONCE)) or behind
            except OSError as err:
                log.warning("no digest of %s: %s", path.name, err)
                self._each[path] = None
        self._due = now + (1.0 if behind else _EVERY)


def make_missing(folder: Path) -> subprocess.Popen[bytes] | None:
    """Start making the digests of a run that has ended, in a process of its own, if there is none
    of a long file: no supervisor watched it, as in a job of Slurm, or nothing could be written.
    None: there is nothing to do, or the folder is not this user's alone."""
    files = [events_path(folder, rank) for rank in ranks_with_files(folder)]
    if all(size_of(path) < DIGESTED or size_of(digest_path(path)) for path in files) \
            or trust.why_not_ours(folder):
        return None
    return subprocess.Popen(
        own_program("gpu_engine.events.downsample", str(folder.absolute())), cwd="/",
        start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
