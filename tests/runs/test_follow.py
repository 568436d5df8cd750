"""Waiting for a run's next state."""

from __future__ import annotations

import json
import os

from gpu_engine.runs.folder import Run
from gpu_engine.runs.follow import Follower

LONG = 3000.0
"""Seconds: whoever waits for so long fails by pytest's limit."""


def test_a_wait_ends_when_the_state_is_written_also_before_it_began(tmp_path):
    run = Run(tmp_path / "ab12")
    (run.path / "ranks").mkdir(parents=True)
    follower = Follower(run)
    for at, state in enumerate(("starting", "running"), 1):
        (run.path / "state.json").write_text(json.dumps({"state": state}))
        os.utime(run.path / "state.json", (at, at))  # another time, however fast this is
        follower.wait(LONG)
    follower.wait(0.0)  # nothing is new
