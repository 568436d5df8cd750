"""A run on other machines, on this one's screen."""

import os
import signal

from gpu_engine.launching.launcher import launch
from gpu_engine.runs import leftovers
from gpu_engine.spec.read import from_dict
from gpu_panel.launch import row_keys
from gpu_panel.launch.run_feed import RunsFeed
from gpu_panel.run.resume import ResumeOptions
from gpu_panel.run.snapshot import look

from ...conftest import wait_for
from ...remote.run.kit import ENDLESS, ended, make_hosts, there


def test_its_ranks_have_their_host_and_its_devices_are_not_taken_for_ours(home):
    """Nor are its processes; the list takes it up again when its mirror was killed; and a resume
    is said to start from the checkpoint over there."""
    make_hosts(home, "far")
    run = launch(from_dict(ENDLESS | {"devices": {"hosts": ["far:cpu:0"]}}))
    feed = RunsFeed()

    def line():
        return feed.refresh()[0][0]

    wait_for(lambda: line().step)
    assert (line().devices, line().pids) == (((row_keys.of("far", "cpu:0"), 0),), ())
    os.kill(run.state().pid or 0, signal.SIGKILL)
    wait_for(lambda: not run.supervised())
    feed.relist()
    wait_for(lambda: line().live and run.supervised())
    assert look(run, run.plan(), 1, ()).state.live
    run.stop()
    assert ended(run).state == "stopped"
    *_, folder = sorted(there(run, "far").glob("checkpoints/step-*/manifest.json"))
    step = int(folder.parent.name.removeprefix("step-"))
    assert step > 0
    options = ResumeOptions.read(run)
    assert f"It continues from its newest checkpoint on far, after step {step:,}." \
        in options.sentences()
    assert leftovers.describe(run.path)[1] == f"last checkpoint {folder.parent.name}"
