"""Every place that starts a process or sends a signal, with the reason why it may (docs/trust.md).

What writes: test_trust.py. A new place fails here until somebody has thought about what
decides that it is reached, and has written that down.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

STARTS = {"Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput",
          "fork", "forkpty", "posix_spawn", "posix_spawnp", "system", "popen", "startfile",
          "create_subprocess_exec", "create_subprocess_shell"}
SIGNALS = {"kill", "killpg", "pidfd_send_signal", "pthread_kill", "send_signal", "terminate",
           "tgkill", "send"}
MODULES = {"os", "subprocess", "signal", "procs", "asyncio"}

OURS = "our own program, by common/programs.py"
TOOL = "a tool of the system by a fixed name, with words of ours"
PLANNED = "what a person launches: the plan that was made of it in this process or its launcher"
HOSTS = "ssh, or `via` of the person's hosts.toml"
CHILD = "a child that this process has started and not yet reaped"
ITSELF = "this process"

MAY_START = {
    "engine/gpu_engine/cli/fit.py": OURS,
    "engine/gpu_engine/cli/hold.py": "the command that a person has typed behind it",
    "engine/gpu_engine/devices/probe.py": OURS,
    "engine/gpu_engine/common/programs.py": TOOL,
    "engine/gpu_engine/remote/reach/call.py": HOSTS,
    "engine/gpu_engine/remote/reach/install_there.py":
        "a program of its own, sent to a host that a person sets up",
    "engine/gpu_engine/launching/logind.py": OURS,
    "engine/gpu_engine/launching/ask_torch.py":
        "the interpreter that a person has named, or a run would take, to export weights",
    "engine/gpu_engine/notify/send.py": "a command of the person's notify.toml",
    "engine/gpu_engine/slurm/commands.py": TOOL,
    "engine/gpu_engine/supervisor/children.py": PLANNED,
    "engine/gpu_engine/supervisor/__main__.py": ITSELF,
    "engine/gpu_engine/sweep/study.py": OURS,
    "tui/gpu_panel/commands/own.py":
        "a command of the person's settings.toml by its key, or gpu-engine with words they typed",
    "tui/gpu_panel/commands/terminal.py":
        "a command of the person's settings.toml by its key, their $PAGER or $EDITOR, or ours",
    "tui/gpu_panel/exporting.py": OURS,
    "tui/gpu_panel/launch/fitting.py": OURS,
}
MAY_SIGNAL = {
    "engine/gpu_engine/supervisor/__main__.py": CHILD,
    "engine/gpu_engine/cli/hold.py": CHILD,
    "engine/gpu_engine/common/procs.py": "the way to a process that is no child, held by a pidfd",
    "engine/gpu_engine/devices/probe.py": CHILD,
    "engine/gpu_engine/remote/reach/call.py": "ssh, or the group of a host's `via`",
    "engine/gpu_engine/notify/send.py": CHILD,
    "engine/gpu_engine/observe/recorder.py": ITSELF,
    "engine/gpu_engine/runs/folder.py": "a supervisor, if trust.belongs says so",
    "engine/gpu_engine/runs/leftovers.py": "a process that has the run in its environment",
    "engine/gpu_engine/runs/stacks.py": "a rank, if trust.belongs says so",
    "engine/gpu_engine/supervisor/children.py": "a child, or what is below this subreaper",
    "engine/gpu_engine/supervisor/stopping.py":
        "a rank, if the kernel's table of processes has it below the supervisor",
    "engine/gpu_engine/worker/rank/process.py": ITSELF,
    "engine/gpu_engine/worker/rank/standing.py": "a worker that it has forked, which catches it",
    "tui/gpu_panel/commands/own.py": CHILD,
    "tui/gpu_panel/launch/fitting.py": CHILD,
}


def calls(path: Path, names: set[str]) -> set[str]:
    """What of `names` the module calls on one of MODULES, or imports from one."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            found |= {a.name for a in node.names if a.name in names or a.name.startswith(
                ("exec", "spawn"))}
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) \
                and node.value.id in MODULES and (node.attr in names or (
                    names is STARTS and node.value.id == "os"
                    and node.attr.startswith(("exec", "spawn")))):
            found.add(f"{node.value.id}.{node.attr}")
        # Methods of a Popen, whatever it is called.
        if names is SIGNALS and isinstance(node, ast.Call) \
                and isinstance(node.func, ast.Attribute) \
                and node.func.attr in ("send_signal", "terminate", "kill"):
            found.add(node.func.attr)
    return found


def places(names: set[str]) -> set[str]:
    return {str(path.relative_to(ROOT)) for room in ("engine", "tui")
            for path in (ROOT / room).rglob("*.py") if calls(path, names)}


@pytest.mark.parametrize(("names", "may"), [(STARTS, MAY_START), (SIGNALS, MAY_SIGNAL)],
                         ids=["starts", "signals"])
def test_every_place_has_a_reason(names, may):
    assert places(names) == set(may)


@pytest.mark.parametrize(("text", "names"), [
    ("import subprocess\nsubprocess.run(['a'])", STARTS), ("import os\nos.execv('a', [])", STARTS),
    ("import os\nos.system('a')", STARTS), ("from subprocess import Popen", STARTS),
    ("import os\nos.kill(1, 9)", SIGNALS), ("def f(p):\n    p.terminate()", SIGNALS),
    ("from os import killpg", SIGNALS), ("from os import spawnv", STARTS)])
def test_a_new_place_is_seen(tmp_path, text, names):
    (tmp_path / "a.py").write_text(text)
    assert calls(tmp_path / "a.py", names)


@pytest.mark.parametrize("name", ["queue.json", "slurm.json", "hosts/NAME.json", "state.json"])
def test_the_page_says_what_each_file_may_cause(name):
    assert f"| `{name}`" in (ROOT / "docs/trust.md").read_text()


def test_the_tests_that_the_page_names_exist():
    import re

    named = re.findall(r"\btests/[\w/.]+", (ROOT / "docs/trust.md").read_text())
    missing = {name for name in named if not (ROOT / name.rstrip(".")).exists()}
    assert len(named) > 10
    assert not missing
