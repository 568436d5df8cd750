"""What following a run in a terminal says beside its steps."""

from __future__ import annotations

import json
from typing import cast

from gpu_engine.cli import watch
from gpu_engine.events.view import RunView
from gpu_engine.runs.follow import Follower
from gpu_engine.runs.state import State

from .. import event_lines
from ..export.kit import Written

REASON = "gpu2 has not been reached since 12:00:00: no answer\x1b[2J"


class Told:
    """A run that tells these states, one a poll."""

    def __init__(self, *states: State):
        self.state, *self._next = states
        self.progress = RunView().progress

    def poll(self):
        if self._next:
            self.state = self._next.pop(0)


def state(name, reason=None) -> State:
    return State(name, "ab12", "run", 1.0, reason=reason)


def test_why_a_live_run_can_not_be_followed_is_said_once(capsys):
    told = Told(state("running"), state("running", REASON), state("running", REASON),
                state("running"), state("completed", "over"))
    progress = watch._Progress(cast("Follower", told))
    for _ in range(4):
        told.poll()
        progress.show(live=told.state.live)
    assert capsys.readouterr().err == "gpu2 has not been reached since 12:00:00: no answer\n"


def test_json_has_every_event_however_many_came_since_the_last_look(capsys):
    with Written() as it:
        event_lines.append(it.run.events(0), *(
            event_lines.line("warning", {"message": f"{n} " + "x" * 4000}) for n in range(600)))
    watch.to_the_end(it.run, it.run.require_plan(), as_json=True)
    kinds = [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()]
    assert (kinds.count("warning"), kinds[-1]) == (600, "ended")
