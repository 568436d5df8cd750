"""Panel, command line, agent and supervisor where what only Linux has is hidden: on macOS they
start, and a run works. See macos/sitecustomize.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HIDING = Path(__file__).with_name("macos")

COMMANDS = """
import sys
from click.testing import CliRunner
assert sys.platform == "darwin"
from gpu_engine.cli import cli
for words in (["--help"], ["presets"], ["devices", "--json"], ["runs"], ["hosts", "--help"],
              ["plan", "single", "--set", "devices.ids=cpu:0"], ["queue"],
              ["plan", "single", "--json", "--set", "devices.ids=cpu:0"]):
    done = CliRunner().invoke(cli, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    print(words[0], done.exit_code, len(done.output) > 20 or done.output)
"""

PANEL = """
import asyncio, sys
assert sys.platform == "darwin"
from gpu_panel.app import PanelApp

async def look():
    app = PanelApp("single")
    async with app.run_test(size=(120, 36)) as pilot:
        screen = app.screen_stack[0]
        while not (screen.review is not None and screen.source.snapshot is not None):
            await pilot.pause(0.05)
        print([d.id for d in screen.source.inventory.devices][:1],
              screen.source.snapshot.host.memory_total > 0, app.return_code)

asyncio.run(look())
"""


@pytest.fixture
def as_macos(home, monkeypatch):
    """A function that runs a Python as if on macOS; returns what it has printed."""
    monkeypatch.setenv("PYTHONPATH", str(HIDING))

    def python(*words: str, cwd: Path | None = None) -> str:
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False,
                              cwd=cwd)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    return python


def test_the_command_line(as_macos):
    said = as_macos("-c", COMMANDS).splitlines()
    assert said == ["--help 0 True", "presets 0 True", "devices 0 True", "runs 0 True",
                    "hosts 0 True", "plan 0 True", "queue 0 True", "plan 0 True"]


@pytest.mark.usefixtures("as_macos")
def test_the_agent_says_hello():
    """Its answers come until its input ends."""
    with subprocess.Popen([sys.executable, "-m", "gpu_engine", "agent"], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdin.write('{"id": 1, "kind": "hello"}\n')
        agent.stdin.flush()
        answer = next(json.loads(line) for line in agent.stdout if line.startswith("{"))
        agent.stdin.close()
    assert (answer["kind"], answer["boot"]) == ("welcome", None)


def test_the_panel_opens(as_macos):
    assert as_macos("-c", PANEL).split() == ["['cpu:0']", "True", "None"]


def test_a_run(as_macos, home, tmp_path):
    """The rank reads its cores as any other process there: it may use all."""
    (tmp_path / "script.py").write_text(
        "import os, sys\nprint(sys.platform, os.environ['GPU_PANEL_RANK'], flush=True)\n")
    as_macos("-m", "gpu_engine", "run", "--devices", "cpu:0", "--mode", "single", "--",
             sys.executable, "script.py", cwd=tmp_path)
    (run,) = (home / "runs").iterdir()
    assert json.loads((run / "state.json").read_text())["state"] == "completed"
    assert (run / "ranks/00000.log").read_text().split() == ["darwin", "0"]
