"""Runs that a test writes itself, in the person's own folder, to be followed."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from typing import Any

from gpu_engine.common.files import read_json
from gpu_engine.runs.create import create_run, reopen_run
from gpu_engine.runs.folder import Run, State
from gpu_engine.runs.state import AttemptRecord

from .. import event_lines
from ..plans import plan


class Made:
    """A run whose supervisor is the test: it holds the lock."""

    def __init__(self, ranks: int = 2, **more: Any) -> None:
        self.run, self.lock = create_run("toy", "", replace(plan(ranks), **more))
        self.began = time.time()
        self.set("running", started=self.began, pid=os.getpid(),
                 attempts=(AttemptRecord(1, self.began),))

    def set(self, name: str, **changes: Any) -> State:
        """Write the state."""
        state = State.from_dict(read_json(self.run.path / "state.json"))
        assert state is not None
        state = replace(state, state=name, **changes)
        self.run.write_state(state)
        return state

    def end(self, name: str, **changes: Any) -> None:
        """End the run and its supervisor."""
        *before, last = self.run.state().attempts
        self.set(name, ended=time.time(), exit_code=0, **{"attempts": (
            *before, replace(last, ended=time.time(), outcome=name))} | changes)
        self.let_go()

    def let_go(self) -> None:
        os.close(self.lock)

    def again(self) -> None:
        """Start another attempt, as a resume does."""
        self.lock = reopen_run(self.run, "", self.run.require_plan())
        self.set("running", attempts=(*self.run.state().attempts, AttemptRecord(2, time.time())))

    def event(self, kind: str, of: int = 0, /, *, ago: float = 0.0, **fields: Any) -> None:
        """Append an event of rank `of`."""
        event_lines.append(self.run.events(of),
                           event_lines.line(kind, fields, t=time.time() - ago))

    def remove(self) -> None:
        shutil.rmtree(self.run.path)


def found(run: Run) -> str:
    """All that is in the files of a run."""
    return "\n".join(p.read_text(errors="replace") for p in run.path.rglob("*") if p.is_file())
