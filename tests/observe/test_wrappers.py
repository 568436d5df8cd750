"""A stop reaches the ranks, whatever wrapper a command has put around them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_engine.common import procs
from gpu_engine.events.reader import Tail
from gpu_engine.plan.own_command import HOOK
from gpu_engine.runs import folder as runs
from gpu_engine.supervisor import ranks
from gpu_engine.supervisor.children import Child
from gpu_engine.supervisor.ranks import RankState

from .. import event_lines
from ..conftest import wait_for
from .kit import PYTHON, SCRIPTS, Ran, start

SAVES = f"""
import sys, time
sys.path.insert(0, {str(SCRIPTS)!r})
import quick, show, torch
model = show.toy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    while True:
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
except KeyboardInterrupt:
    print("saving", flush=True)
time.sleep(1.5)
print("saved", flush=True)
"""
# Like `conda run`: a parent that runs the command in a shell script and does not pass on signals.
CONDA = """
import pathlib, subprocess, sys
script = pathlib.Path("conda-run.sh")
script.write_text("export CONDA_DEFAULT_ENV=x\\n" + " ".join(sys.argv[1:]) + "\\n")
sys.exit(subprocess.Popen(["/bin/bash", str(script)]).wait())
"""
# Rank 1 ends at once, and torchrun must not end rank 0 for that.
ONE_SAVES = SAVES.replace("except KeyboardInterrupt:", """except KeyboardInterrupt:
    import os
    if os.environ["RANK"] != "0":
        raise""")
HAS_UV = shutil.which("uv", path=str(Path(sys.executable).parent) + ":" + os.environ["PATH"])
WAYS = {
    "conda": (PYTHON, "conda.py", PYTHON, "long.py"),
    "torchrun": (PYTHON, "-m", "torch.distributed.run", "--nproc-per-node=2", "one_saves.py"),
    "tee": ("bash", "-c", "./launch.sh | tee log.txt"),
    "background": ("bash", "-c", f"{PYTHON} at_sigterm.py & wait"),
    "uv": (HAS_UV or "uv", "run", "--no-project", "--offline", "--python", PYTHON, "long.py"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in (("long.py", SAVES), ("conda.py", CONDA),
                       ("one_saves.py", ONE_SAVES),
                       ("at_sigterm.py", "import signal\n"
                        "signal.signal(signal.SIGTERM, signal.default_int_handler)\n" + SAVES),
                       ("launch.sh", "#!/bin/sh\ntrap 'echo let go; exit' INT TERM\n"
                                     f"{PYTHON} long.py\necho next\nsleep 100\n")):
        (tmp_path / name).write_text(text)
    (tmp_path / "launch.sh").chmod(0o755)


@pytest.mark.parametrize("way", [
    pytest.param(way, marks=pytest.mark.skipif(way == "uv" and not HAS_UV, reason="no uv here"))
    for way in WAYS])
def test_a_stop_reaches_the_ranks_and_lets_them_save(home, folder, way):
    seen = start(*WAYS[way])
    ranks = (0, 1) if way == "torchrun" else (0,)
    wait_for(lambda: all(seen.of("step", r) for r in ranks))
    seen.run.stop()
    state = wait_for(lambda: (s := seen.run.state()) and not s.live and s)
    assert (state.state, state.reason) == ("stopped", None)
    assert seen.log().count("saved") == 1, seen.log()
    assert "next\n" not in seen.log()
    assert way != "tee" or seen.log().endswith("let go\n")  # its shell cleans up
    for rank in ranks:
        assert seen.events(rank)[-1]["outcome"] == "stopped"
        begun = seen.of("start", rank)[-1]
        assert not procs.alive(begun["pid"], begun["started"])


FAILS = "import no_such_module\n"


@pytest.mark.parametrize("way", [
    pytest.param("uv", marks=pytest.mark.skipif(not HAS_UV, reason="no uv here")), "timeout"])
def test_a_script_that_fails_before_torch_is_a_python_program(home, folder, way):
    Path("fails.py").write_text(FAILS)
    before = {"uv": WAYS["uv"][:-1], "timeout": ("timeout", "100", PYTHON)}[way]
    out = subprocess.run([PYTHON, "-m", "gpu_engine", "run", "--devices", "cpu:0", "--", *before,
                          "fails.py"], capture_output=True, text=True, timeout=600)
    assert out.returncode == 1
    assert "No module named 'no_such_module'" in out.stderr
    assert not Ran(runs.find("last"), {}, None).of("warning")


@pytest.mark.parametrize("status", [1, -15])
def test_of_a_process_that_failed_before_its_python_began_nothing_is_said(tmp_path, status):
    (tmp_path / "ranks").mkdir()
    run = runs.Run(tmp_path)
    seen = RankState(0, Tail(run.events(0)), 1)
    ranks.warn_unseen(run, Child((0,), "rank", 1, None, None, status), seen)
    assert not run.events(0).exists()


@pytest.mark.parametrize(("options", "told"), [((), False), (("-I",), True)])
def test_a_python_that_has_no_hook_is_told_of_while_it_runs(home, folder, options, told,
                                                            monkeypatch):
    """The supervisor's warning, as it is written after half a minute, once."""
    env = dict(os.environ, PYTHONPATH=HOOK, GPU_PANEL_RUN=str(Path.cwd()), GPU_PANEL_RANK="0")
    Path("ranks").mkdir()
    run = runs.Run(Path.cwd())
    process = subprocess.Popen([PYTHON, *options, "-c", "import time; time.sleep(100)"], env=env)
    try:
        child = Child((0,), "rank", process.pid, procs.start_ticks(process.pid), process)
        if not told:
            wait_for((run.path / ranks.SEEN).exists)
        seen = RankState(0, Tail(run.events(0)), 1)
        monkeypatch.setattr(ranks, "UNSEEN", 0.0)
        for _ in range(3):
            ranks.warn_unseen(run, child, seen)
        assert ["-S, -I or -E" in e["message"] for e in event_lines.read(run.events(0))] \
            == [True] * told
    finally:
        process.kill()
        process.wait()
