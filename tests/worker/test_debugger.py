"""pdb in one of two ranks that train: real runs over gloo, with somebody who attaches."""

from __future__ import annotations

import bdb
import pdb
import select
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from gpu_engine.common.errors import UserError
from gpu_engine.diagnose import hangs, verdicts
from gpu_engine.launching.launcher import launch
from gpu_engine.observe import patience
from gpu_engine.runs import folder as runs
from gpu_engine.runs.follow import Follower
from gpu_engine.spec.read import from_dict
from gpu_engine.worker.rank import debugger

from .. import event_lines
from ..attached import Attached
from ..conftest import slots, wait_for

SCRIPT = Path(__file__).parents[1] / "scripts" / "debugged.py"
TASK = Path(__file__).parents[1] / "training" / "debugged_task.py"


def of_script(*where: str) -> dict[str, Any]:
    return {"task": {"command": [sys.executable, str(SCRIPT), *where]}}


def of_task(where: str = "") -> dict[str, Any]:
    return {"task": {"use": f"{TASK}:Debugged", "params": {"at": where}}, "batch": {"size": 24}}


def go(given: dict[str, Any], *, debug_rank: int | None = 1, train: dict[str, Any] | None = None,
       ) -> runs.Run:
    """Launch two ranks."""
    task = "use" in given["task"]
    spec = given | {"devices": {"ids": ["cpu:0", "cpu:1"]}, "parallel": {"mode": "ddp"},
                    "train": ({"steps": 6, "workers": 0} if task else {}) | (train or {}),
                    "run": {"env": {"OMP_NUM_THREADS": "1"}} | (
                        {} if debug_rank is None else {"debug_rank": debug_rank})}
    return launch(from_dict(spec), inventory=slots(2))


def ended(run: runs.Run) -> runs.State:
    return wait_for(lambda: (s := run.state()) and not s.live and s)


def losses(run: runs.Run, rank: int) -> list[float]:
    return [x for e in event_lines.read(run.events(rank)) if e["kind"] == "step"
            for x in e["losses"]]


def read(run: runs.Run) -> Follower:
    follower = Follower(run)
    while follower.poll(budget=1.0):
        pass
    return follower


@pytest.mark.parametrize(("made", "step"), [(of_script, "step"), (of_task, "self.calls")])
def test_a_breakpoint_in_the_loop_changes_no_loss(home: Path, made, step: str):
    plain = go(made(), debug_rank=None)
    assert ended(plain).state == "completed"
    # The others wait for longer than these limits: that of the script's group, and that of a hang.
    run = go(made("break", *(["short"] if made is of_script else [])), train={"hang_timeout": 1.0})
    with Attached(run) as one:
        one.sees("(Pdb) ")
        assert "3\r\n" in one.says(f"p {step}", "(Pdb) ")
        follower = wait_for(lambda: (f := read(run)).ranks[1].debugged and f)
        found = hangs.find_hang(follower.ranks.values(), time.time())
        assert found is not None
        assert found.debugger
        assert f"{SCRIPT.name if made is of_script else TASK.name}:" in found.text
        wait_for(lambda: hangs.find_hang(follower.ranks.values(), time.time()).text.count("00:04"))
        assert run.state().reason == f"rank 1 waits in the debugger: gpu-engine attach {run.id}"
        assert run.state().state == "running"
        one.leaves()
    with Attached(run) as again:
        again.sees("(Pdb) ")
        again.says("n", "(Pdb) ")
        again.types("c\r")
        again.sees("has ended")
        again.ends(0)
    state = ended(run)
    assert (state.state, state.cause) == ("completed", None)
    for rank in (0, 1):
        assert losses(run, rank) == losses(plain, rank)
        assert len(losses(run, rank)) > 5
    views = read(run).ranks
    assert not views[1].debugged
    assert verdicts.of(list(views.values())) == []
    assert not (run.path / "observe-errors.log").exists()


@pytest.mark.parametrize("made", [of_script, of_task])
def test_an_exception_opens_the_debugger_where_it_was_raised(home: Path, made):
    run = go(made("raise"))
    with Attached(run) as one:
        assert "RuntimeError: boom" in one.sees("(Pdb) ")
        assert "1\r\n" in one.says("p dist.get_rank()", "(Pdb) ")
        assert run.state().state == "running"
        one.says("q", "has ended")
    state = ended(run)
    assert state.state == "failed"
    assert state.cause is not None
    assert (state.cause.rank, state.cause.type, state.cause.message) == (1, "RuntimeError", "boom")


def test_ctrl_c_opens_the_debugger_and_training_goes_on(home: Path):
    run = go(of_script("loop"))
    with Attached(run) as one:
        one.sees("loops")
        one.types("\x03")
        one.sees("(Pdb) ")
        one.types("p 'typed and thr")
        while "KeyboardInterrupt" not in one.shown:
            # Again: Python's readline misses a signal that comes while it takes a key.
            one.types("\x03")
            if select.select([one.ours], [], [], 1.0)[0]:
                one.shown += one.reads("KeyboardInterrupt")
        one.sees("KeyboardInterrupt")
        one.sees("(Pdb) ")
        one.says("sys.argv.remove('loop')", "(Pdb) ")
        one.says("c", "over 2 1")
    assert ended(run).state == "completed"


@pytest.mark.parametrize(("made", "train"), [(of_script, {}), (of_task, {"workers": 1})])
def test_a_worker_of_a_loader_has_it_too(home: Path, made, train):
    run = go(made("worker"), train=train)
    with Attached(run) as one:
        one.sees("(Pdb) ")
        assert "True" in one.says(
            "import torch.utils.data as d;; p d.get_worker_info() is not None", "(Pdb) ")
        wait_for(lambda: read(run).ranks[1].debugged)
        one.says("c", "has ended")
    assert ended(run).state == "completed"


def test_an_exception_of_another_rank_ends_the_run_as_ever(home: Path):
    run = go(of_task("raise"), debug_rank=0)
    state = ended(run)
    assert state.cause is not None
    assert state.cause.rank == 1


# --- without a run --------------------------------------------------------------------------------


def raised(err: BaseException) -> BaseException:
    """The error, as it was raised some calls deep."""
    def inner() -> None:
        raise err

    try:
        inner()
    except BaseException as caught:  # noqa: BLE001
        return caught
    raise AssertionError


@pytest.mark.parametrize(("err", "opens"), [
    (ValueError("x"), True), (UserError("x"), False), (bdb.BdbQuit(), False),
    (KeyboardInterrupt(), False), (SystemExit(1), False), (None, False)])
def test_an_error_opens_the_debugger_and_an_end_that_a_person_wants_does_not(
        monkeypatch, capsys, err, opens):
    opened: list[object] = []
    monkeypatch.setattr(pdb, "post_mortem", opened.append)
    monkeypatch.setattr(debugger._State, "installed", True)
    debugger.post_mortem(raised(err) if err is not None else None)
    assert bool(opened) is opens
    monkeypatch.setattr(debugger._State, "installed", False)  # a rank without a terminal
    debugger.post_mortem(raised(ValueError("x")))
    assert len(opened) == opens


def test_the_line_that_is_told_is_the_one_that_raised():
    err = raised(ValueError("x"))
    frame = sys._getframe()
    for found in (debugger._place(frame, err), debugger._place(frame, err.__traceback__),
                  debugger._place(None, err)):
        assert found.endswith(" in inner")
    assert debugger._place(frame, None).endswith(" in test_the_line_that_is_told_is_the_one_that_"
                                                 "raised")
    assert debugger._place() == "an unknown line"


def test_the_line_is_the_scripts_where_torch_opens_the_debugger_for_it():
    of_torch = {"__name__": "torch.distributed", "sys": sys}
    exec("def breakpoint():\n    return sys._getframe()", of_torch)
    found = debugger._place(of_torch["breakpoint"]())
    assert found.endswith(" in test_the_line_is_the_scripts_where_torch_opens_the_debugger_for_it")


@pytest.mark.parametrize("module", [dist, dist.distributed_c10d])
@pytest.mark.parametrize("name", ["init_process_group", "new_group"])
def test_every_group_of_a_script_waits_for_a_person(monkeypatch, module, name):
    made: list[tuple[object, ...]] = []

    def make(first=None, timeout=None, last="none", **more):
        made.append((first, timeout, last, more))

    for at in (dist, dist.distributed_c10d):
        for each in ("init_process_group", "new_group"):
            monkeypatch.setattr(at, each, make)
    monkeypatch.setenv("GPU_PANEL_TIMEOUT", "86400")
    patience.wait_longer()
    day, short = timedelta(days=1), timedelta(seconds=3)
    group = getattr(module, name)
    group()
    group("gloo", short, "one")
    group(timeout=short, last="two", other=1)
    assert made == [(None, day, "none", {}), ("gloo", day, "one", {}),
                    (None, day, "two", {"other": 1})]
