"""`state.json`: written even on a full disk, read whichever version wrote it."""

import errno
import os

from gpu_engine.runs import folder as runs
from gpu_engine.runs.state import AttemptRecord, State


def test_a_state_is_written_in_place_when_no_new_file_has_room(tmp_path, monkeypatch):
    run = runs.Run(tmp_path)
    run.write_state(State("running", "a", "a", 1.0))

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(runs, "write_json_inside", full)
    run.write_state(State("completed", "a", "a", 1.0))
    assert run.state().state == "completed"


def test_only_the_last_attempt_of_a_live_run_still_takes_time():
    killed, last = AttemptRecord(1, 100.0), AttemptRecord(2, 500.0)
    ended = AttemptRecord(1, 100.0, 160.0)
    now = {name: State(name, "a", "a", 1.0, attempts=(ended, killed, last)).took(530.0)
           for name in ("running", "lost")}
    assert now == {"running": 90.0, "lost": 60.0}  # it is not known when the lost one ended
    assert State("lost", "a", "a", 1.0, attempts=(killed,)).took(530.0) is None
    for name, started, end, took in (("running", 500.0, None, 30.0), ("queued", None, None, None),
                                     ("lost", 500.0, None, None), ("failed", 500.0, 520.0, 20.0)):
        assert State(name, "a", "a", 1.0, started=started, ended=end).took(530.0) == took


def test_a_run_is_over_with_its_steps_or_its_time():
    for until, steps, left in ((50.0, None, 10.0), (50.0, 5.0, 5.0), (50.0, 30.0, 10.0),
                               (30.0, 5.0, 0.0), (None, 30.0, 30.0), (None, None, None)):
        assert State("running", "a", "a", 1.0, until=until).left(steps, 40.0) == left


def test_what_a_newer_program_wrote_is_read():
    data = State("failed", "a", "a", 1.0).to_dict() | {"more": 1}
    data["processes"] = [{"rank": 0, "pid": 1, "ticks": 2, "exit": None, "cores": [1]}]
    data["attempts"] = [{"number": 1, "started": 1.0, "odd": True}]
    found = State.from_dict(data)
    assert found.processes[0].pid == 1
    assert found.attempts[0].number == 1
    del data["attempts"]  # and what an older one wrote
    assert State.from_dict(data).attempts == ()
    for odd in ({"reason": 7}, {"state": "unreadable"}, {"state": "x"}):
        assert State.from_dict(data | odd) is None
