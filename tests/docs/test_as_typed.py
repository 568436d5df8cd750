"""Every command line of the README and of docs/ as it stands, typed by somebody whose home is
bare: on a machine without a GPU, where it is done, and on one with eight, where what trains is
planned.

What a line of a page stands for is filled in: RUN is a run that has completed, and the files of the
pages are there. What would wait in the queue is planned, as it would train for long.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_engine.common import procs
from gpu_engine.runs import folder as runs
from gpu_engine.spec import presets

from ..command_line import called
from ..conftest import over
from ..export.kit import Written
from .test_commands import MADE, PAGES, ROOT, _looks_only, lines

UNTYPED = {
    r"(uv|pipx|pip) |\.venv/bin/python -m pip":
        "installs packages: tests/interpreters",
    r"make ": "sets up a checkout: the targets are looked up by test_commands.py",
    r"sudo ": "is root's",
    r"gpu-panel( --|$)": "opens a screen: tests/panel; its words are read",
    r"gpu-engine (run|hosts) .*gpu1|gpu-engine hosts|gpu-engine doctor --hosts": "needs ssh hosts",
    r"gpu-engine run (?!.*--grid).*devices\.hosts=slurm": "needs Slurm",
    r"gpu-engine run .*--grid parallel\.mode=.*dp": "DataParallel needs GPUs: tests/sweep",
    r"srun |mpirun |sbatch |python -m gpu_engine\.worker": "is started by a launcher of the site",
    r"gpu-engine export .*--to (wandb|tensorboard)": "needs what an extra brings",
    r"gpu-engine (notify --test|.*notify --say)": "sends to an address on the network",
    r"gpu-engine resume RUN .*skip_steps": "tests/e2e/test_skip_steps.py",
    r"gpu-engine trace": "needs a run that trains: tests/diagnose",
    r"gpu-engine code": "needs a run of a repository: tests/launching/test_code.py",
    r"gpu-engine sweep (stop |retry )?s72d4": "needs that sweep: tests/sweep",
}
OURS = re.compile(r"(gpu-engine|gpu-panel|make|uv|pip|pipx|sudo|source <|srun|python -|\.venv)")
VARIANT = "gpu-engine run ddp --set "
"""The same run with another key is planned."""


def typed() -> Iterator[tuple[str, str]]:
    """Page and line, each line once."""
    seen = set()
    for page in PAGES:
        for line in lines(page) if page.name not in MADE else ():
            if OURS.match(line) and line not in seen:
                seen.add(line)
                yield page.name, line
    # The table of what one wants to do, in the README.
    for code in re.findall(r"`(gpu-engine [^`|]+)`", (ROOT / "README.md").read_text()):
        if code not in seen and re.search(r" run (.* )?-- |run ddp --devices", code):
            yield "README.md", code


LINES = list(typed())


def why_not(line: str) -> str | None:
    return next((why for text, why in UNTYPED.items() if re.match(text, line)), None)


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A bare home, in a folder with the files that the pages speak of."""
    for name in list(os.environ):
        if name.startswith(("XDG_", "GPU_PANEL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GPU_PANEL_SHARED", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SHELL", "/bin/bash")
    (tmp_path / "home").mkdir()
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    tiny = re.search(r"```python\n(from dataclasses.*?)```",
                     (ROOT / "docs" / "training.md").read_text(), re.DOTALL)
    (project / "tiny.py").write_text(tiny[1])
    (project / "train.py").write_text("print('trained')\n")
    (project / "examples").symlink_to(ROOT / "examples")
    yield project
    for run in runs.all_runs():
        called("stop", "--no-wait", run.id)
        state = run.state()
        if state.live and procs.alive(state.pid, state.ticks):
            os.kill(state.pid, signal.SIGQUIT)
            over(run)


def test_there_are_lines_of_all_kinds() -> None:
    assert len(LINES) > 70
    assert sum(why_not(line) is None for _, line in LINES) > 35
    unused = [text for text in UNTYPED if not any(re.match(text, line) for _, line in LINES)]
    assert unused == []


@pytest.mark.timeout(900)
def test_on_a_machine_without_a_gpu(stranger: Path) -> None:
    first = called("run", "ddp", "--devices", "cpu:0,cpu:1", "--set", "train.steps=6",
                   "--set", "train.eval_every=2", "--set", "train.checkpoint_every=2")
    assert first.returncode == 0, first
    ids = [run.id for run in runs.all_runs()]
    for _ in range(2):
        with Written() as run:
            run.start()
            run.steps(0, 50, [0.5] * 50, t=10.0)
        ids.append(run.run.id)
    broken = []
    presets.save("vgg", presets.load("ddp").spec)
    for page, line in LINES:
        if why_not(line):
            continue
        line = line.replace("3f2a", ids[0])
        for run in ids:
            line = line.replace("RUN", run, 1)
        done = _type(line)
        if re.search(r"--devices \d|devices\.ids=\d", line):
            if done.returncode != 2 or "cpu:0, cpu:1" not in done.stderr:
                broken.append(f"{page}: {line}: {done}")
            line = re.sub(r"(--devices |devices\.ids=)([\d,]+)", lambda m: m[1] + re.sub(
                r"(\d)", r"cpu:\1", m[2]), line)
            done = _type(line)
        elif "free_gib=" in line and "of free memory are needed" in done.stderr:
            done = _type(re.sub(r"free_gib=\d+", "free_gib=1", line))  # what a small machine has
        if done.returncode != 0:
            broken.append(f"{page}: {line}: {done}")
        for run in runs.all_runs():  # a detached one has the devices
            over(run)
    assert not broken, "\n".join(broken)


def _type(line: str) -> subprocess.CompletedProcess[str]:
    """What a line does."""
    if not line.startswith("gpu-engine ") or re.search(r" > |&&|\||<\(|\$\(", line):
        return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False,
                              timeout=600)
    words = shlex.split(line)[1:]
    if words[0] == "run" and ({"--queue", "--grid"} & set(words) or line.startswith(VARIANT)):
        words = _looks_only(["gpu-engine", *words])[1:]
    elif words[:2] == ["run", "ddp"]:  # which would train for minutes
        words += ["--set", "train.steps=6"]
    elif "examples/sharded.py" in words:
        words += ["--steps", "6"]
    return called(*words)
