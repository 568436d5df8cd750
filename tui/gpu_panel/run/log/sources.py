"""Which logs a run has, and which one is shown: those of the ranks, the traceback of the rank that
failed first, the output of launchers ("node0"), and the supervisor's log."""

from __future__ import annotations

from gpu_engine.common.clean import clean
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs.folder import Run
from gpu_panel.run.log.file import Lines, LogFile, TextLines
from gpu_panel.run.log.joined import JoinedLog
from gpu_panel.run.store import RunStore

SUPERVISOR, FAILURE = "supervisor", "traceback"


class LogSources:
    """The logs of a run and the one that is shown. A log is named by a rank number, by `FAILURE`,
    by a launcher's name or by `SUPERVISOR`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._plan: LaunchPlan | None = None
        self._ranks: list[int] = []
        self._launchers: list[str] = []
        self._at: int | str = SUPERVISOR
        self._chosen = False
        self.failed: tuple[int | None, str] | None = None
        """(rank, traceback) of the first failure."""
        self.current: Lines | None = None
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

    def keys(self) -> list[int | str]:
        """The names of all logs, in the order in which the keys go through them."""
        return [*self._ranks, *([FAILURE] if self.failed else []), *self._launchers, SUPERVISOR]

    def move(self, by: int) -> None:
        keys = self.keys()
        self.show(keys[(keys.index(self._at) + by) % len(keys)] if self._at in keys else keys[0])

    def next_rank(self) -> None:
        """Show the next rank's log; if another log is shown, that of the rank shown last."""
        if not self._ranks:
            return
        if isinstance(self._at, int) and self._at in self._ranks:
            at = (self._ranks.index(self._at) + 1) % len(self._ranks)
            self.show(self._ranks[at])
        else:
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
            self.current = TextLines(FAILURE, self.failed[1])
        elif isinstance(key, int):
            self.rank = key
            self.current = JoinedLog(self._run.output(key, self._plan), f"rank {key}")
        elif key in self._launchers:
            self.current = JoinedLog(self._run.path / f"{key}.log", str(key))
        else:
            self.current = LogFile(self._run.path / "supervisor.log", SUPERVISOR)


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
