"""run.limit: a run whose time is up stops, saves, and has completed."""

from __future__ import annotations

import pytest

from gpu_engine.common.errors import SpecError
from gpu_engine.events.reader import Tail
from gpu_engine.events.schema import Checkpoint, End, Metric, Step
from gpu_engine.places.verbs import launch
from gpu_engine.runs import folder as runs
from gpu_engine.spec.read import apply_sets, from_dict
from gpu_engine.spec.write import to_toml

from ..conftest import over, slots, wait_for
from ..observe.kit import SCRIPTS
from .test_supervise import go  # noqa: F401  the fixture


def events(run: runs.Run, kind: type, rank: int = 0) -> list:
    return [e for e in Tail(run.events(rank)).read() if isinstance(e, kind)]


DIGITS = {"task": {"use": "gpu_engine.tasks.digits:Digits"}, "parallel": {"mode": "ddp"},
          "devices": {"ids": ["cpu:0", "cpu:1"]}, "train": {"steps": 10**6, "workers": 0}}


def test_a_task_saves_and_has_completed_and_a_resume_has_as_much_again(home, monkeypatch):
    from gpu_engine.places import verbs

    run = launch(from_dict(DIGITS | {"run": {"limit": 1.0}}), inventory=slots(2))
    first = over(run, 120)
    steps = events(run, Step)
    assert (first.state, first.exit_code, first.cause) == ("completed", 0, None)
    assert first.reason == f"time was up after 00:01 at step {steps[-1].step:,}"
    assert [a.outcome for a in first.attempts] == ["completed"]
    # From the end of the first step, whatever came before; the ranks took at least so long.
    assert first.until == min(events(run, Step, r)[0].t for r in (0, 1)) + 1.0
    assert first.ended >= first.until
    assert events(run, Checkpoint)[-1].step == steps[-1].step == events(run, End)[-1].steps
    assert not first.warnings

    verbs.resume(run)
    second = wait_for(lambda: (s := run.state()).attempt == 2 and not s.live and s, 120)
    assert second.state == "completed"
    assert second.until > first.ended
    assert events(run, Step)[-1].step > steps[-1].step


STEPS = f"""
sys.path.append({str(SCRIPTS)!r})
import quick, torch
net = torch.nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), lr=0.1)
while True:
    loss = net(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step(); time.sleep(0.02)
"""


def test_a_script_gets_what_ctrl_c_sends_and_dying_of_it_is_no_failure(go):  # noqa: F811
    # A Python that has not got to torch by its limit passes for one without.
    run = go(STEPS, ranks=1, run={"limit": 5.0}, parallel={"mode": "single"})
    state = over(run, 120)
    assert (state.state, state.exit_code) == ("completed", 0)
    assert state.reason.startswith("time was up after 00:05 at step ")
    assert "KeyboardInterrupt" in run.log(0).read_text()
    assert not state.warnings


def test_from_the_start_it_ends_what_never_makes_a_step(go):  # noqa: F811
    run = go("wait()", run={"limit": 1.0, "limit_from": "start"})
    state = over(run)
    assert (state.state, state.reason) == ("completed", "time was up after 00:01")
    assert state.until == state.attempts[0].started + 1.0


def test_of_a_command_that_shows_no_step_it_counts_from_the_start_which_is_said(go):  # noqa: F811
    run = go("wait()", ranks=1, run={"limit": 1.0}, parallel={"mode": "single"})
    state = over(run)
    assert state.state == "completed"
    assert state.reason == ("time was up after 00:01, counted from the start of its ranks, as no "
                            "step was seen (those that are printed are with --metric auto)")


def test_a_script_with_torch_may_take_long_for_its_first_step_and_that_none_came_is_said(go):  # noqa: F811
    (run := go(f"sys.path.append({str(SCRIPTS)!r})\nimport quick, torch\ntime.sleep(4)", ranks=1,
               run={"limit": 4.0}, parallel={"mode": "single"}))
    state = over(run, 120)
    assert (state.state, state.reason) == ("completed", None)
    (told,) = state.warnings
    assert told.message == \
        "run.limit = 4 s never began: it counts from the first step, and none was seen"


def shell(text: str, **sections) -> runs.Run:
    """A command that is ready long before its time is up, unlike a Python."""
    return launch(from_dict({"task": {"command": ["sh", "-c", text]}, "devices": {"ids": ["cpu:0"]}}
                            | sections), inventory=slots(1))


def test_a_step_that_is_printed_is_one(home):
    run = shell("sleep 0.5; echo step 3 v: 1; exec sleep 120",
                run={"limit": 2.0, "metrics": {"v": r"v: (\S+)"}})
    state = over(run)
    assert (state.state, state.reason) == ("completed", "time was up after 00:02")
    assert state.until == pytest.approx(events(run, Metric)[0].t + 2.0, abs=0.002)
    assert state.until > state.attempts[0].started + 2.5


def test_what_has_to_be_killed_has_not_completed(home):
    run = shell("trap '' INT TERM; exec sleep 120",
                run={"limit": 2.0, "limit_from": "start", "grace": 0.2})
    state = over(run)
    assert (state.state, state.exit_code) == ("failed", 1)
    assert state.reason == state.cause.message \
        == "time was up after 00:02; the ranks did not stop in time and were killed"


def test_a_failure_is_one_and_restarts_have_the_rest_of_the_time(home):
    run = shell("exit 3", run={"limit": 7.0, "limit_from": "start"}, train={"restarts": 50})
    state = over(run)
    assert state.state == "failed"
    assert "exited with 3" in state.reason
    assert len(state.attempts) == 3  # after one second and two more; the next would be after seven


@pytest.mark.parametrize(("text", "seconds"), [
    ("90", 90.0), ("90s", 90.0), ("5m", 300.0), ("5 min", 300.0), ("1h30m", 5400.0),
    ("1.5h", 5400.0), ("2d", 172800.0), ("1h 2m 3s", 3723.0)])
def test_how_a_time_is_written(text, seconds):
    data: dict = {}
    apply_sets(data, [f"run.limit={text}"])
    spec = from_dict(data)
    assert spec.run.limit == seconds
    assert from_dict({"run": {"limit": text}}) == spec
    assert str(seconds) in to_toml(spec)


@pytest.mark.parametrize("text", ["0.5s", "0", "-5m", "5x", "m", "", "5m5", "1.2.3s", "nan",
                                  "1e400", "inf", "367d", 1e99])
def test_what_is_no_time_too_short_or_longer_than_a_year(text):
    """A state with such a time could not be read."""
    with pytest.raises(SpecError) as caught:
        from_dict({"run": {"limit": text, "give_way_after": "367d", "give_way_back": 1e99}})
    assert "run.limit" in str(caught.value)
    assert "5m or 1h30m, at least 1 s and at most 366d" in str(caught.value)
    assert str(caught.value).count("at least 0 s and at most 366d") == 2


