"""What tab offers, and what it makes of a line in a real bash on a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..command_line import called
from ..conftest import patience

BIN = Path(sys.executable).parent


@pytest.fixture
def made(home):
    """Three runs, the oldest first: 0ab1 trains, 77aa and 77bb have ended."""
    for age, (name, state) in enumerate((("0ab1", "running"), ("77aa", "failed"),
                                         ("77bb", "completed"))):
        folder = home / "runs" / name
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps({"name": "ddp", "state": state}))
        os.utime(folder, (age + 1, age + 1))
    (home / "hosts.toml").write_text('[hosts.gpu1]\nlabel = "below the window"\n')
    (home / "presets").mkdir()
    (home / "presets" / "mine.toml").write_text("")
    return home


def answers(line: str, monkeypatch: pytest.MonkeyPatch, shell="zsh") -> list[str]:
    """The lines that a shell's script gets for `line`."""
    words = line.split(" ")
    for name, value in {"_GPU_ENGINE_COMPLETE": f"{shell}_complete", "COMP_WORDS": line,
                        "COMP_CWORD": str(len(words) - 1)}.items():
        monkeypatch.setenv(name, value)
    done = called()
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize(("line", "wanted"), [
    ("sto", "stop"), ("run --det", "--detach"), ("run m", "mine multinode"),
    ("run x/y", "file x/y"), ("show ", "77bb 77aa 0ab1 last"), ("show 77", "77bb 77aa"),
    ("stop ", "0ab1"), ("queue priority ", ""), ("compare 77aa 0", "0ab1"),
    ("export 77aa x", "file x"),
    ("run --after 0", "0ab1"), ("resume 77aa --set parallel.ba",
                                "parallel.backend= parallel.backend=..."),
    ("sweep s12 --js", "--json"),
    ("hosts check ", "gpu1"), ("hosts add ", ""),
    ("run --set no.key", ""), ("run --set train.lr=", ""),
    ("run --grid train.lr_", "train.lr_scale= train.lr_reference_batch="),
    ("run -- python m", "file m"), ("run 'm", "mine multinode"),
])
def test_what_is_offered(made, monkeypatch, line, wanted):
    told = answers(f"gpu-engine {line}", monkeypatch)
    kinds, found, _ = told[::3], told[1::3], told[2::3]
    assert " ".join([*(kind for kind in kinds if kind == "file"), *(
        word.replace("\\:", ":") for word in found)]) == wanted


def test_zsh_and_fish_are_told_what_a_run_is(made, monkeypatch):
    assert answers("gpu-engine show 0", monkeypatch) == ["plain", "0ab1", "running ddp"]


def test_no_error_is_shown_while_somebody_types(home, monkeypatch):
    home.mkdir()
    (home / "hosts.toml").write_text("[")
    before = sorted(home.rglob("*"))
    for line in "show ", "hosts check ":
        answers(f"gpu-engine {line}", monkeypatch)
    assert sorted(home.rglob("*")) == before


@pytest.mark.parametrize("line", ["gpu-engine stop 0", "gpu-engine run --set devices.i"])
def test_nothing_slow_is_imported(made, line):
    out = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "gpu_engine"], capture_output=True, text=True,
        timeout=patience(), env=os.environ | {
            "_GPU_ENGINE_COMPLETE": "bash_complete", "COMP_WORDS": line,
            "COMP_CWORD": str(line.count(" "))})
    assert "plain," in out.stdout, out.stderr[-500:]
    came = {row.rpartition("|")[2].strip() for row in out.stderr.splitlines()}
    assert "click" in came
    assert not came & {"textual", "torch", "rich", "psutil", "pynvml", "numpy",
                       "gpu_engine.launching.launcher", "gpu_engine.devices.discover"}
