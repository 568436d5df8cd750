"""The same verbs with the same answers wherever a run is: here, on a host (this machine with
another home), on a real Slurm."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpu_engine.common.errors import SpecError
from gpu_engine.places import verbs
from gpu_engine.runs import notes
from gpu_engine.runs.folder import Run
from gpu_engine.spec.read import from_dict

from ..conftest import wait_for
from ..remote.run.kit import losses_so_far, make_hosts
from ..slurm.conftest import _cluster, cluster  # noqa: F401

WHERE = {"here": {"pick": 1}, "host": {"hosts": ["a:cpu:0"]},
         "slurm": {"hosts": ["slurm:cpu:0"]}}
EMIT = str(Path(__file__).parents[2] / "bench" / "emit.py")


@pytest.fixture(params=["here", "host", pytest.param("slurm", marks=pytest.mark.root)])
def devices(request: pytest.FixtureRequest, home: Path) -> dict[str, object]:
    if request.param == "slurm":
        request.getfixturevalue("cluster")
    make_hosts(home, "a")
    return WHERE[request.param]


def test_a_run_is_planned_begun_followed_stopped_gone_on_with_and_removed(devices, home):
    def records(run: Run, more: int, attempt: int) -> bool:
        state = run.state()
        assert goes_on(state), state
        return (state.state, state.attempt) == ("running", attempt) \
            and run.events(0).exists() and len(losses_so_far(run.path, 0)) > more

    def over(run: Run) -> str:
        wait_for(lambda: not goes_on(run.state()))
        return run.state().state

    prepared = verbs.prepare(from_dict({
        "task": {"command": [sys.executable, "-S", "-E", EMIT, "20"]}, "devices": devices}))
    assert not list(home.glob("runs/*")), "it was planned, and nothing more"
    run = verbs.start(prepared, tags=["night"])
    goes_on = verbs.Followed(run)
    wait_for(lambda: records(run, 2, 1))
    assert notes.read(run.path).tags == ("night",)
    assert not verbs.ask_for_stacks(run, ())
    verbs.stop(run)
    assert over(run) == "stopped"
    many = len(losses_so_far(run.path, 0))
    if devices is WHERE["here"]:
        with pytest.raises(SpecError, match="a run goes on where its checkpoints are"):
            verbs.resume(run, ["devices.hosts=a:cpu:0"])
    verbs.resume(run)
    wait_for(lambda: records(run, many + 2, 2))
    verbs.look_at_all()
    verbs.stop(run, now=True)
    assert over(run) == "stopped"
    assert not verbs.remove(run).stays
    assert not run.path.exists()
