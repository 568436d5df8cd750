"""A command that ends and leaves its training running, as scripts with `&` at their end do."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_engine.common import procs
from gpu_engine.runs.folder import Run
from gpu_engine.supervisor.attempt import Attempt
from gpu_engine.supervisor.children import Child
from gpu_engine.supervisor.left_running import LeftRunning

from ..conftest import wait_for
from ..plans import plan
from .kit import PYTHON, SCRIPTS, Ran, engine_run, start

TRAINS = f"""
import sys, time
sys.path.insert(0, {str(SCRIPTS)!r})
import quick, show, torch
model = show.toy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    loss = (model(torch.randn(16, 8)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    show.loss(loss)
for _ in range(4):
    step()
"""
FORKS_TWICE = """
import os
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
""" + TRAINS
FAILS = TRAINS + "raise ValueError('late')\n"
EXITS = TRAINS + "sys.exit(3)\n"
EARLY = "import time\ntime.sleep(1)\nimport no_such_module\n"
KILLED = TRAINS + """
import os
while "left running" not in open(os.environ["GPU_PANEL_RUN"] + "/state.json").read():
    step()
    time.sleep(0.05)
os.kill(os.getpid(), 11)
"""
LONG = TRAINS + "while True:\n    step()\n    time.sleep(0.05)\n"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in (("train", TRAINS), ("twice", FORKS_TWICE), ("fails", FAILS),
                       ("exits", EXITS), ("long", LONG), ("early", EARLY),
                       ("killed", KILLED)):
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def shell(text: str) -> tuple[str, ...]:
    Path("run.sh").write_text(text)
    return "bash", "run.sh"


@pytest.mark.parametrize("how", ["one", "in a row", "twice"])
def test_the_run_lasts_as_long_as_its_training(home, folder, how):
    command = (PYTHON, "twice.py") if how == "twice" else shell(
        f"{PYTHON} train.py &\n" if how == "one" else
        f"({PYTHON} train.py; {PYTHON} train.py) &\n")
    run, state = engine_run("--devices", "cpu:0", "--", *command)
    seen = Ran(run, state, None)
    assert state["state"] == "completed", seen.log()
    assert len(seen.printed()) == (8 if how == "in a row" else 4)
    assert seen.losses() == seen.printed()
    assert seen.of("end")[-1]["outcome"] == "completed"
    assert not seen.of("warning")


@pytest.mark.parametrize(("script", "reason"), [
    ("fails.py", "rank 0: late"), ("exits.py", "rank 0: exited with 3"),
    ("killed.py", "rank 0: killed by SIGSEGV: a crash in native code"),
    ("early.py", "rank 0: No module named 'no_such_module'")])
def test_a_training_that_fails_later_fails_the_run(home, folder, script, reason):
    run, state = engine_run("--devices", "cpu:0", "--", *shell(f"{PYTHON} {script} &\n"))
    assert (state["state"], state["reason"]) == ("failed", reason)
    if script != "early.py":
        assert Ran(run, state, None).of("end")[-1]["outcome"] == "failed"


def test_what_has_failed_before_anybody_has_looked_fails_the_run(tmp_path):
    command = Child((0,), "rank", 1, None, popen=None, status=0)
    attempt = Attempt(1, [command], orphans={7: 0, 8: 1}, left=LeftRunning())
    judged = {"is_task": False, "stop_asked": False, "oom_kills": None}
    assert attempt.judge(Run(tmp_path), plan(1), **judged)[1] == "rank 0: exited with 1"
    attempt.earlier = frozenset((8,))  # a helper, with which the command went on
    assert attempt.judge(Run(tmp_path), plan(1), **judged)[0] == "completed"


def test_what_would_run_for_ever_beside_it_is_ended_and_named(home, folder):
    run, state = engine_run("--devices", "cpu:0", "--", *shell(
        f"sleep 1000 & echo $! > pid\n{PYTHON} train.py\n"))
    assert state["state"] == "completed"
    pid = int(Path("pid").read_text())
    assert procs.start_ticks(pid) is None
    (told,) = Ran(run, state, None).of("warning")
    assert told["message"] == ("the command has left running what does not train, which was ended: "
                               f"sleep (pid {pid})")


def test_while_it_trains_the_run_says_so_and_can_be_stopped(home, folder):
    seen = start(*shell(f"{PYTHON} long.py &\n"))
    wait_for(lambda: seen.of("step"))
    pid = seen.of("start")[-1]["pid"]
    state = wait_for(lambda: (s := seen.run.state()).reason and s)
    assert state.state == "running"
    assert f"{Path(PYTHON).resolve().name} (pid {pid})" in state.reason
    seen.run.stop()
    state = wait_for(lambda: (s := seen.run.state()) and not s.live and s)
    assert (state.state, state.reason) == ("stopped", None)
    assert procs.start_ticks(pid) is None
