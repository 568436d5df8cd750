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
from gpu_engine.remote.reach import install_there, setup
from gpu_engine.remote.reach.call import Unreachable
from gpu_engine.remote.reach.checkup import meet
from gpu_engine.remote.reach.records import Host
from gpu_engine.remote.reach.setup import Plan, Python, decide

from ...conftest import torch_version, wait_for

SAME = "{}.{}".format(*sys.version_info)
BARE = Python("/usr/bin/python3", SAME, sysconfig.get_platform(), True, None, 1 << 40)
GOOD = Python("/env/bin/python", SAME, sysconfig.get_platform(), True, "/env/site", 1 << 40)
OLD = Python("/usr/bin/python3.9", "3.9", sysconfig.get_platform(), True, "/s", 1 << 40)
ARM = Python("/arm/python", SAME, "linux-arm", True, None, 1 << 40)
FULL = Python("/usr/bin/python3", SAME, sysconfig.get_platform(), True, None, 1 << 20)


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return setup.files()


def machine(home: Path) -> Host:
    """This one as another, with a home and a PATH of its own."""
    home.mkdir(exist_ok=True)
    return Host("box", via=("env", "-i", f"HOME={home}", "PATH=/usr/bin:/bin", "OMP_NUM_THREADS=1"))


def test_all_that_is_needed_is_sent(files):
    tops = {name.partition("/")[0].removesuffix(".py") for name in files}
    assert {"gpu_engine", "gpu_panel", "click", "textual", "rich", "psutil", "pynvml", "tomlkit",
            "platformdirs", "linkify_it", "msgspec"} <= tops
    assert not tops & {"torch", "numpy", "pytest", "hypothesis", "ipywidgets", "tree_sitter"}
    assert {"gpu_engine/shipped_presets/default.toml", "gpu_panel/panel.tcss",
            "gpu_engine/observe/hook/sitecustomize.py"} <= set(files)
    assert not [name for name in files if name.endswith(".pyc")]


def test_an_interpreter_like_this_one_is_taken_best_with_torch():
    plan = decide(Host("g"), [OLD, BARE, GOOD], None, {})
    assert plan.base == GOOD
    assert decide(Host("g"), [BARE, GOOD], BARE.path, {}).base == BARE
    assert all(text.isprintable() for text in plan.sentences())


@pytest.mark.parametrize(("found", "python", "says"), [
    ([OLD, ARM], None, "found /usr/bin/python3.9 (3.9), /arm/python"), ([], None, "no Python"),
    ([GOOD], "/x", "Name another with --python"), ([FULL], None, "1.0 MiB left in the home there"),
])
def test_what_can_not_be_done_says_what_would_do(found, python, says):
    with pytest.raises(UserError) as err:
        decide(Host("g"), found, python, {})
    assert says in str(err.value)


@given(st.text(max_size=300) | st.dictionaries(st.sampled_from(
    ["path", "version", "platform", "torch", "venv", "free"]),
    st.none() | st.booleans() | st.integers() | st.text(max_size=20), max_size=8).map(json.dumps))
def test_any_answer_is_read(out):
    for python in setup.read(out + "\n" + out):
        assert python.path.startswith("/")
        assert "\x1b" not in python.path


def test_nobody_there_is_a_reason():
    with pytest.raises(Unreachable):
        setup.inspect(Host("x", via=("sh", "-c", "echo no such box >&2; exit 3")))


def test_twice_with_the_torch_that_is_there(tmp_path, files):
    home = tmp_path / "a home"
    host = machine(home)
    found = setup.inspect(host, sys.executable)
    assert (found[0].path, found[0].version) == (sys.executable, SAME)
    plan = decide(host, found, sys.executable, files)
    assert Path(plan.base.torch or "", "torch").is_dir()
    for _ in range(2):
        setup.bring(plan)
        welcome = meet(host, ()).welcome
        new = Path(welcome.python).parents[1]
        assert new.parent == home / ".local/share/gpu-panel"
        assert welcome.torch is not None
        assert welcome.torch.version == torch_version()
        there = subprocess.run(
            [welcome.python, "-c", "import gpu_engine, psutil, torch; print(gpu_engine.__file__)"],
            capture_output=True, text=True, check=True).stdout
        assert there.startswith(str(new)), "ours, and not the checkout beside its torch"
        assert new.stat().st_mode & 0o77 == 0
    assert len(list(new.parent.iterdir())) == 3, "the earlier one stays: runs may be using it"


def test_without_torch_or_a_network_all_of_it_is_there(tmp_path, files):
    """What is sent is enough for the panel itself."""
    base = tmp_path / "base"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(base)], check=True)
    host, python = machine(tmp_path / "h"), str(base / "bin" / "python")
    setup.bring(decide(host, setup.inspect(host, python), python, files))
    place = tmp_path / "h/.local/share/gpu-panel/host/bin"
    run = subprocess.run([place / "python", "-c",
                          "import gpu_panel.app, gpu_engine.remote.reach.file, tomlkit\n"
                          "import pynvml, sys\nprint('torch' in sys.modules)"],
                         capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
    version = subprocess.run([place / "gpu-engine", "--version"], capture_output=True, text=True,
                             check=True)
    assert version.stdout.startswith("gpu-engine, version")


def test_old_ones_go_unless_something_runs_in_them(tmp_path):
    root = tmp_path
    for number in range(5):
        (root / f"host-{number}" / "bin").mkdir(parents=True)
        os.utime(root / f"host-{number}", (number, number))
    busy = root / "host-0" / "bin" / "wait"
    busy.write_text("#!/bin/sh\nread line\n")
    busy.chmod(0o755)
    process = subprocess.Popen([busy], stdin=subprocess.PIPE)
    try:
        wait_for(lambda: os.fsencode(busy) in Path(f"/proc/{process.pid}/cmdline").read_bytes())
        install_there.forget(root, root / "host-4")
    finally:
        process.communicate(b"\n")
    assert sorted(p.name for p in root.iterdir()) == ["host-0", "host-2", "host-3", "host-4"]


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
