"""The last lines of a log, however long it is, and which logs a run has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gpu_engine.common.clean import clean, clean_bytes, clean_lines
from gpu_engine.common.files import open_inside, reason
from gpu_engine.events.paths import inside
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs.folder import Run
from gpu_panel.run.store import RunStore

MOST = 20_000
"""Lines that are kept. A pager shows the whole log."""
_BYTES = 8 << 20
"""Bytes that are read at once: those before the last so many are passed over."""
_LONGEST = 1 << 18
"""Bytes of a line that are shown: of a longer line, half from its start and half from its end."""


class Log:
    """The last lines of a log that may grow, be emptied or be replaced while it is read. A log that
    grew too large is copied to NNNNN.log.1 and emptied: both are read as one. What was printed
    within the second before that is shown by the pager alone."""

    def __init__(self, title: str, path: Path | None = None, text: str = "") -> None:
        """`path`: its file; None: it is this text."""
        self.title, self.path = title, path
        self.lines = [] if path is not None else clean_lines(text.rstrip("\n"))
        self.grows = False
        """Whether the last line has no end yet."""
        self.gone = 0
        """Lines that have been dropped at the front."""
        self.cut = False
        """Whether there are older lines than those that are kept."""
        self.trouble = "" if path is None else "no output yet"
        """Why nothing is shown."""
        self._identity, self._at, self._rest = (0, 0), 0, b""

    def read(self) -> tuple[list[str], str | None, str, bool] | None:
        """(new lines, the growing one after them, why there are none, whether some were passed
        over), for `take`; None: there is nothing to take in. Blocks."""
        if self.path is None:
            return None
        new: list[bytes] = []
        skipped = False
        older = self.path.with_name(self.path.name + ".1")
        for path in (older, self.path) if self._identity == (0, 0) else (self.path,):
            try:
                with os.fdopen(open_inside(*inside(path)), "rb") as file:
                    stat = os.fstat(file.fileno())
                    identity = stat.st_ino, stat.st_dev
                    if identity != self._identity or stat.st_size < self._at:
                        new += [self._rest] if self._rest else []
                        self._identity, self._at, self._rest = identity, 0, b""
                    if stat.st_size - self._at > _BYTES:
                        self._at, self._rest, skipped = stat.st_size - _BYTES, b"", True
                        file.seek(self._at)
                        self._at += len(file.readline(_BYTES))
                    file.seek(self._at)
                    data = file.read(_BYTES)
            except OSError as err:
                if path == self.path and not new:
                    return None if self.lines else ([], None, "no output yet" if isinstance(
                        err, FileNotFoundError) else f"{path.name} can't be read: {reason(err)}",
                        False)
                continue
            self._at += len(data)
            *ended, self._rest = (self._rest + data).split(b"\n")
            self._rest = self._rest[-_LONGEST:]
            new += ended
        return [_shown(raw) for raw in new[-MOST:]], _shown(self._rest) if self._rest else None, \
            "empty so far", skipped or len(new) > MOST

    def take(self, new: list[str], growing: str | None, trouble: str, skipped: bool) -> bool:
        """Take in what was read. Returns whether anything has changed."""
        lines = (self.lines[:-1] if self.grows else self.lines) + new
        lines += [growing] if growing is not None else []
        before, self.grows = (self.lines, self.trouble), growing is not None
        self.cut = self.cut or skipped or len(lines) > MOST
        self.gone += max(len(lines) - MOST, 0)
        self.lines, self.trouble = lines[-MOST:], trouble
        return before != (self.lines, trouble)

    def whole(self) -> Iterator[str]:
        """All of its lines with their ends, without what a terminal would obey. Blocks."""
        if self.path is None:
            yield from (f"{line}\n" for line in self.lines)
            return
        for path in (self.path.with_name(self.path.name + ".1"), self.path):
            try:
                with os.fdopen(open_inside(*inside(path)), "rb") as file:
                    while raw := file.readline(_LONGEST):
                        yield clean_bytes(raw.removesuffix(b"\n"), None) + "\n"
            except OSError:
                continue


def _shown(raw: bytes) -> str:
    if len(raw) > _LONGEST:
        if b"\r" in raw[-_LONGEST:]:  # a progress bar of hours: its last state is what matters
            raw = raw[-_LONGEST:]
        else:
            half = _LONGEST // 2
            left = f" … {len(raw) - 2 * half:,} bytes left out … ".encode()
            raw = raw[:half] + left + raw[-half:]
    return clean_bytes(raw, None)


SUPERVISOR, FAILURE = "supervisor", "traceback"


class LogSources:
    """The logs of a run and the one that is shown: those of the ranks, the traceback of the rank
    that failed first, the output of launchers ("node0"), and the supervisor's. A log is named by a
    rank number, by `FAILURE`, by a launcher's name or by `SUPERVISOR`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._plan: LaunchPlan | None = None
        self._ranks: list[int] = []
        self._launchers: list[str] = []
        self._at: int | str = SUPERVISOR
        self._chosen = False
        self.failed: tuple[int | None, str] | None = None
        """(rank, traceback) of the first failure."""
        self.current: Log | None = None
        self.rank: int | None = None
        """The rank whose log is shown, or was shown last."""

    @property
    def title(self) -> str:
        if self._at == FAILURE and self.failed is not None:
            rank = self.failed[0]
            return "traceback" if rank is None else f"traceback of rank {rank}"
        return f"rank {self._at}" if isinstance(self._at, int) else str(self._at)

    def learn(self, store: RunStore) -> None:
        self._plan = store.plan
        self._ranks, self._launchers = list(store.ranks), store.launchers
        if self.failed is None:
            self.failed = _failure(store)
        if not self._chosen and self._ranks:
            self.show(self._ranks[0])
        elif self.current is None:  # before any rank is known
            self.show(self._at)
            self._chosen = False

    def move(self, by: int) -> None:
        keys = [*self._ranks, *([FAILURE] if self.failed else []), *self._launchers, SUPERVISOR]
        self.show(keys[(keys.index(self._at) + by) % len(keys)] if self._at in keys else keys[0])

    def next_rank(self) -> None:
        """Show the next rank's log; if another log is shown, that of the rank shown last."""
        if self._at in self._ranks:
            self.show(self._ranks[(self._ranks.index(int(self._at)) + 1) % len(self._ranks)])
        elif self._ranks:
            self.show(self._ranks[0] if self.rank is None else self.rank)

    def show_failure(self) -> None:
        if self.failed is not None:
            if self.failed[0] in self._ranks:
                self.rank = self.failed[0]
            self.show(FAILURE)

    def forget_failure(self) -> None:
        """Forget the failure shown so far, as a new attempt has started."""
        self.failed = None
        if self._at == FAILURE:
            self.show(self.rank if self.rank in self._ranks else SUPERVISOR)

    def show(self, key: int | str) -> None:
        if key == self._at and self.current is not None:
            return
        self._at, self._chosen = key, True
        if key == FAILURE and self.failed is not None:
            self.current = Log(FAILURE, text=self.failed[1])
        elif isinstance(key, int):
            self.rank = key
            self.current = Log(f"rank {key}", self._run.output(key, self._plan))
        else:
            name = key if key in self._launchers else SUPERVISOR
            self.current = Log(name, self._run.path / f"{name}.log")


def _failure(store: RunStore) -> tuple[int | None, str] | None:
    cause = store.state.cause if store.state is not None else None
    if cause is not None and cause.traceback:
        return cause.rank, cause.traceback
    first = store.view.first_error()
    error = first.error if first is not None else None
    if first is None or error is None \
            or (cause is not None and cause.rank not in (None, first.rank)):
        return None
    if error.traceback and error.traceback.strip():
        return first.rank, error.traceback
    return first.rank, f"{clean(error.type)}: {clean(error.message)}"
