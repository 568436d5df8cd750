"""Bringing our program elsewhere: what is sent, where it is put, and the whole of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common.errors import UserError
from gpu_engine.remote.reach import setup
from gpu_engine.remote.reach.call import Unreachable
from gpu_engine.remote.reach.hosts import Host
from gpu_engine.remote.reach.setup import Plan, Python, decide
from gpu_engine.remote.run.nodes import meet

from ...conftest import torch_version

SAME = "{}.{}".format(*sys.version_info)
KIND = f"Python {SAME} on {sysconfig.get_platform()}"
BARE = Python("/usr/bin/python3", KIND, None)
GOOD = Python("/env/bin/python", KIND, "/env/site")
OLD = Python("/usr/bin/python3.9", KIND.replace(SAME, "3.9"), "/s")
ARM = Python("/arm/python", f"Python {SAME} on linux-arm", None)


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return setup.files()


def machine(home: Path) -> Host:
    """This one as another, with a home and a PATH of its own."""
    home.mkdir(exist_ok=True)
    return Host("box", via=("env", "-i", f"HOME={home}", "PATH=/usr/bin:/bin", "OMP_NUM_THREADS=1"))


def test_all_that_is_needed_is_sent(files):
    tops = {name.partition("/")[0].removesuffix(".py") for name in files}
    assert {"gpu_engine", "click", "psutil", "pynvml", "tomlkit", "platformdirs", "msgspec"} <= tops
    assert not tops & {"torch", "gpu_panel", "textual", "pytest"}
    assert {"gpu_engine/shipped_presets/default.toml",
            "gpu_engine/observe/hook/sitecustomize.py"} <= set(files)
    assert not [name for name in files if name.endswith(".pyc")]


def test_an_interpreter_like_this_one_is_taken_best_with_torch():
    plan = decide(Host("g"), [OLD, BARE, GOOD], None, {})
    assert plan.base == GOOD
    assert decide(Host("g"), [BARE, GOOD], BARE.path, {}).base == BARE
    assert all(text.isprintable() for text in plan.sentences())


@pytest.mark.parametrize(("found", "python", "says"), [
    ([OLD, ARM], None, "found /usr/bin/python3.9 (Python 3.9 on linux"), ([], None, "no Python"),
    ([GOOD], "/x", "Name another with --python"),
])
def test_what_can_not_be_done_says_what_would_do(found, python, says):
    with pytest.raises(UserError) as err:
        decide(Host("g"), found, python, {})
    assert says in str(err.value)


@given(st.text(max_size=300) | st.dictionaries(st.sampled_from(
    ["path", "kind", "torch"]),
    st.none() | st.booleans() | st.integers() | st.text(max_size=20), max_size=8).map(json.dumps))
def test_any_answer_is_read(out):
    for python in setup.read(out + "\n" + out):
        assert python.path.startswith("/")
        assert "\x1b" not in python.path


def test_nobody_there_is_a_reason():
    with pytest.raises(Unreachable):
        setup.inspect(Host("x", via=("sh", "-c", "echo no such box >&2; exit 3")))


def test_with_the_torch_that_is_there(tmp_path, files):
    home = tmp_path / "a home"
    host = machine(home)
    found = setup.inspect(host, sys.executable)
    assert (found[0].path, found[0].kind) == (sys.executable, KIND)
    plan = decide(host, found, sys.executable, files)
    assert Path(plan.base.torch or "", "torch").is_dir()
    setup.bring(plan)
    welcome = meet(host, ()).welcome
    new = Path(welcome.python).parents[1]
    assert new.parent == home / ".local/share/gpu-panel"
    assert welcome.torch.version == torch_version()
    there = subprocess.run(
        [welcome.python, "-c", "import gpu_engine, psutil, torch; print(gpu_engine.__file__)"],
        capture_output=True, text=True, check=True).stdout
    assert there.startswith(str(new)), "ours, and not the checkout beside its torch"
    assert new.stat().st_mode & 0o77 == 0


def test_without_torch_or_a_network_it_answers_and_the_oldest_ones_go(tmp_path, files):
    base = tmp_path / "base"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(base)], check=True)
    host, python = machine(tmp_path / "h"), str(base / "bin" / "python")
    root = tmp_path / "h/.local/share/gpu-panel"
    for number in range(5):
        (root / f"host-{number}").mkdir(parents=True)
        os.utime(root / f"host-{number}", (number, number))
    setup.bring(decide(host, setup.inspect(host, python), python, files))
    welcome = meet(host, ()).welcome
    assert (welcome.torch, Path(welcome.python).is_relative_to(root)) == (None, True)
    assert sorted(p.name for p in root.iterdir())[:4] \
        == ["host", Path(welcome.python).parents[1].name, "host-2", "host-3"]
    run = subprocess.run([root / "host/bin/python", "-c", "import gpu_engine.cli.hosts, tomlkit, "
                          "pynvml, sys\nprint('torch' in sys.modules)"],
                         capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


def test_what_fails_there_leaves_what_was_there_in_use(tmp_path, files):
    home = tmp_path / "h"
    host = machine(home)
    base = decide(host, setup.inspect(host, sys.executable), sys.executable, {}).base
    old = home / ".local/share/gpu-panel/host/bin/python"
    old.parent.mkdir(parents=True)
    old.write_text("the old one")
    with pytest.raises(UserError, match=r"box: it could not be set up: python failed: .*click"):
        setup.bring(Plan(host, base, files | {"click/__init__.py": b"1/0  # click"}))
    assert old.read_text() == "the old one"
    assert [p.name for p in (home / ".local/share/gpu-panel").iterdir()] == ["host"]
