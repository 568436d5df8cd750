"""What a host has recorded and this machine has not, as the host was away when the run ended. The
run's state says so (`notice`), and whoever looks at the run next has it fetched (`fetch`), in a
process of its own. Nothing is started or stopped there by that."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from gpu_engine.common.files import take_lock
from gpu_engine.events.notices import NOT_FETCHED
from gpu_engine.events.paths import events_path, log_path
from gpu_engine.remote.reach.protocol import Piece
from gpu_engine.remote.run import parts
from gpu_engine.remote.run.link import Link, Mirror
from gpu_engine.remote.run.parts import Part
from gpu_engine.runs.create import lock_of
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import Notice

LOCK = "fetch.lock"
"""In the run's folder: held while it is fetched."""
_GOES_ON = 10.0
"""Seconds after which a run that has not ended there is left alone."""


def notice(run: Path, lacking: Sequence[Part]) -> list[Notice]:
    """What is said of a run that has ended without all that these hosts have recorded."""
    said = []
    for part in lacking:
        times = []
        for rank in part.ranks:
            for path in (events_path(run, rank), log_path(run, rank)):
                with suppress(OSError):
                    times.append(path.stat().st_mtime)
        since = time.strftime(" since %Y-%m-%d %H:%M:%S", time.localtime(max(times))) \
            if times else ""
        ranks = f"rank{'s' * (len(part.ranks) > 1)} {', '.join(map(str, part.ranks))}"
        said.append(f"{part.host} was away when the run ended: what it has of {ranks}{since} is "
                    "not here")
    # What has yet to be stopped there goes on recording, and looking stops nothing.
    how = "stop" if any(part.to_stop for part in lacking) else "show"
    hint = f"gpu-engine {how} {run.name}  # fetches it as soon as it can be reached"
    return [Notice(NOT_FETCHED, "; ".join(said), (hint,))] if said else []


def fetch(run: Run) -> None:
    """Bring here what the hosts have, as far as they can be reached now."""
    limit, news = run.require_plan().spec.run.log_mb << 20, threading.Event()
    links = [Link(run.path, replace(part, resume=False), limit, news, only_ask=True, mirror=_Late)
             for part in parts.read(run.path) if part.behind and not part.to_stop]
    for link in links:
        link.start()
    end = time.monotonic() + _GOES_ON
    for link in links:
        while not (link.over or link.part.problem or (
                link.state is not None and link.state.live and time.monotonic() > end)):
            news.wait(0.2)
            news.clear()
        link.give_up()
        link.join()
    with suppress(OSError), _alone(run.path):
        for link in links:
            if link.over and not (link.refused and link.part.run):  # or it had not begun there
                parts.write(run.path, replace(link.part, behind=False, problem=None, since=None))
        state = run.state()
        lacking = [part for part in parts.read(run.path) if part.behind]
        others = [one for one in state.warnings if one.code != NOT_FETCHED]
        run.write_state(replace(state, warnings=(*others, *notice(run.path, lacking))))


class _Late(Mirror):
    """Appends only while nobody has the run: another attempt has a mirror of its own."""

    def append(self, piece: Piece) -> None:
        with _alone(self.run):
            super().append(piece)


@contextmanager
def _alone(run: Path) -> Iterator[None]:
    lock = lock_of(run)
    try:
        if not take_lock(lock):
            raise OSError(errno.EBUSY, "the run goes on")
        yield
    finally:
        os.close(lock)
