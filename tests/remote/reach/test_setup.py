"""Bringing our program elsewhere: what is packed, what is decided, and the whole of it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common.errors import UserError
from gpu_engine.remote.reach import ssh
from gpu_engine.remote.reach.channel import Unreachable, open_channel
from gpu_engine.remote.reach.protocol import Hello, Welcome
from gpu_engine.remote.reach.records import Host
from gpu_engine.remote.reach.setup import bring, decide, install_there, packages, probe
from gpu_engine.remote.reach.setup.packages import Package
from gpu_engine.remote.reach.setup.probe import Found, Python

from ...conftest import torch_version, wait_for

GOOD = Python("/env/bin/python", (3, 12, 1), sysconfig.get_platform(), "2.13.0+cu130",
              "/env/lib/site-packages", True)
BARE = Python("/usr/bin/python3", (3, 11, 2), sysconfig.get_platform(), None, None, True)
OLD = Python("/usr/bin/python3.9", (3, 9, 2), sysconfig.get_platform(), "2.13.0", "/s", True)
PACKAGES = [Package("gpu-panel", ("py3-none-any",), {"a": b"a"}),
            Package("psutil", ("cp36-abi3-manylinux_2_12_x86_64",), {"b": b"b"})]


@pytest.fixture(scope="module")
def packed() -> list[Package]:
    return packages.everything()


def machine(home: Path, path: str = "/usr/bin:/bin") -> Host:
    """This one as another, with a home and a PATH of its own."""
    home.mkdir(exist_ok=True)
    return Host("box", via=("env", "-i", f"HOME={home}", f"PATH={path}", "OMP_NUM_THREADS=1"))


def test_all_that_is_needed_is_carried(packed):
    names = {p.name.lower().replace("_", "-") for p in packed}
    assert {"gpu-panel", "click", "textual", "rich", "psutil", "nvidia-ml-py", "tomlkit",
            "platformdirs", "linkify-it-py", "msgspec"} <= names
    assert not names & {"torch", "numpy", "pytest", "hypothesis", "ipywidgets", "tree-sitter"}
    for package in packed:
        assert package.fits(sys.version_info[:3], True), package.tags
        assert any(name.endswith(".dist-info/METADATA") for name in package.files)
    other = (3, sys.version_info[1] + 1)
    assert [p.name for p in packed if not p.fits(other, True)] == ["msgspec"]
    assert {p.name for p in packed if not p.fits(sys.version_info[:3], False)} \
        == {"msgspec", "psutil"}


def test_the_same_program_is_the_same_bytes(packed):
    assert packages.digest(packed) == packages.digest(packages.everything())
    assert packages.digest(packed) != packages.digest(packed[1:])


def test_ours_holds_the_presets_and_the_panel(packed):
    names = set(packed[0].files)
    assert {"gpu_engine/shipped_presets/default.toml", "gpu_panel/panel.tcss",
            "gpu_engine/observe/hook/sitecustomize.py"} <= names
    assert not [n for n in names if n.endswith(".pyc")]


def test_what_pip_would_be_told_leaves_torch_out():
    said = packages.requirements()
    assert any(r.startswith("textual<9") for r in said)
    assert not [r for r in said if r.startswith(("torch", "pytest"))]
    assert len(said) == len([r for r in metadata.distribution("gpu-panel").requires or []
                                 if "extra" not in r])


@pytest.mark.parametrize(("found", "more", "expect"), [
    (Found((OLD, BARE, GOOD), None, 1 << 40), {}, (GOOD, "linked", False)),
    (Found((BARE,), None, 1 << 40), {}, (BARE, "download", False)),
    (Found((BARE,), None, 1 << 40), {"torch": False}, (BARE, "none", False)),
    (Found((OLD,), "/bin/uv", 1 << 40), {}, (None, "download", True)),
    (Found((BARE, GOOD), None, None), {"python": BARE.path}, (BARE, "download", False)),
])
def test_what_is_decided(found, more, expect):
    plan = decide.decide(Host("g"), found, PACKAGES, "d", "0.1.0", **more)
    assert (plan.base, plan.torch, plan.index) == expect
    assert len(plan.carried) == (1 if plan.index else 2)
    assert all(s.isprintable() for s in plan.sentences())


@pytest.mark.parametrize(("found", "more", "says"), [
    (Found((OLD,), None, None), {}, "no Python 3.11 or newer, and no uv that could bring one; "
                                    "found /usr/bin/python3.9 (3.9.2)"),
    (Found((), None, None), {}, "found no Python"),
    (Found((GOOD,), None, 1 << 20), {}, "1.0 MiB left in the home there"),
    (Found((BARE,), None, 1 << 30), {}, "most of it for torch (--no-torch)"),
    (Found((OLD, GOOD), None, None), {"python": OLD.path}, "is Python 3.9.2; 3.11 or newer"),
    (Found((GOOD,), None, None), {"python": "/x"}, "/x was not found there"),
])
def test_what_can_not_be_done_says_what_would_do(found, more, says):
    with pytest.raises(UserError) as err:
        decide.decide(Host("g"), found, PACKAGES, "d", "0.1.0", **more)
    assert says in str(err.value)


def test_a_package_made_for_another_processor_comes_from_the_index():
    arm = Python("/p", (3, 12, 0), "linux-aarch64", None, None, True)
    plan = decide.decide(Host("g"), Found((arm,), None, None), PACKAGES, "d", "0.1.0")
    assert plan.index
    assert "come from the package index" in plan.sentences()[1]
    only = [*PACKAGES, Package("x", ("cp311-cp311-manylinux",), {})]
    assert decide.decide(Host("g"), Found((GOOD,), None, None), only, "d", "0.1.0").index
    assert not decide.decide(Host("g"), Found((BARE,), None, None), only, "d", "0.1.0").index


def test_of_interpreters_with_torch_one_that_needs_no_index_is_taken():
    fits = Python("/b", (3, 11, 9), GOOD.platform, "2.13.0", "/s", True)
    only = [*PACKAGES, Package("x", ("cp311-cp311-manylinux",), {})]
    for pythons in ((GOOD, fits, BARE), (BARE, fits, GOOD)):
        plan = decide.decide(Host("g"), Found(pythons, None, None), only, "d", "0.1.0")
        assert (plan.base, plan.torch, plan.index) == (fits, "linked", False)


@given(st.text(max_size=300) | st.dictionaries(st.sampled_from(
    ["path", "version", "platform", "torch", "site", "venv", "free"]),
    st.none() | st.booleans() | st.integers() | st.text(max_size=20)
    | st.lists(st.integers(), max_size=4), max_size=8).map(json.dumps))
def test_any_answer_is_read(out):
    found = probe.read("uv " + out + "\n" + out)
    for python in found.pythons:
        assert python.path.startswith("/")
        assert "\x1b" not in python.path


def test_this_machine_is_looked_at(tmp_path):
    found = probe.inspect(machine(tmp_path / "h"), sys.executable)
    first = found.pythons[0]
    assert (first.path, first.version) == (sys.executable, sys.version_info[:3])
    assert first.torch == torch_version()
    assert Path(first.site or "", "torch").is_dir()
    assert found.free


def test_nobody_there_is_a_reason(tmp_path):
    with pytest.raises(Unreachable):
        probe.inspect(Host("x", via=("sh", "-c", "echo no such box >&2; exit 3")))


def test_twice_with_the_torch_that_is_there(tmp_path, packed):
    home = tmp_path / "a home"
    host = machine(home)
    found = probe.inspect(host, sys.executable)
    few = [p for p in packed if p.name in ("gpu-panel", "click", "psutil", "msgspec")]
    plan = decide.decide(host, found, few, packages.digest(few), "0.1.0", python=sys.executable)
    assert (plan.torch, plan.index) == ("linked", False)
    steps: list[str] = []
    bring.bring(plan, packages.requirements(), steps.append)
    assert steps[-1] == "done"
    with open_channel(host, 60) as channel:
        welcome = channel.ask(Hello())
    assert isinstance(welcome, Welcome)
    new = home / ".local/share/gpu-panel" / plan.name
    assert welcome.python == str(new / "bin" / "python")
    assert welcome.home == str(home / ".local/state/gpu-panel")
    assert welcome.torch is not None
    assert welcome.torch.version == torch_version()
    there = subprocess.run(
        [welcome.python, "-c", "import gpu_engine, psutil, torch; print(gpu_engine.__file__)"],
        capture_output=True, text=True, check=True).stdout
    assert there.startswith(str(new)), "ours, and not the checkout beside its torch"
    stamp = (new / "complete").stat().st_mtime_ns
    bring.bring(plan, packages.requirements(), steps.append)
    assert (new / "complete").stat().st_mtime_ns == stamp, "it is there already"
    assert sorted(p.name for p in new.parent.iterdir()) == ["host", plan.name], "nothing is left"
    assert new.stat().st_mode & 0o77 == 0
    # As after a disk that was tidied up: what only a launch imports is gone.
    Path(there.strip()).with_name("launching").joinpath("launcher.py").unlink()
    bring.bring(plan, packages.requirements(), steps.append)
    there = subprocess.run([home / ssh.SETUP / "bin/python", "-c",
                            "import gpu_engine.launching.launcher as l; print(l.__file__)"],
                           capture_output=True, text=True, check=True).stdout
    assert there.startswith(f"{new}-2/")
    bring.bring(plan, packages.requirements(), steps.append)
    assert sorted(p.name for p in new.parent.iterdir()) == ["host", plan.name, f"{plan.name}-2"]


def test_without_uv_torch_or_a_network_all_of_it_is_there(tmp_path, packed):
    """What is carried is enough for the panel itself."""
    base = tmp_path / "base"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(base)], check=True)
    host = machine(tmp_path / "h")
    found = probe.inspect(host, str(base / "bin" / "python"))
    plan = decide.decide(host, found, packed, packages.digest(packed), "0.1.0",
                         python=str(base / "bin" / "python"), torch=False)
    assert (plan.torch, plan.index) == ("none", False)
    bring.bring(plan, packages.requirements(), print)
    place = tmp_path / "h/.local/share/gpu-panel/host/bin"
    run = subprocess.run([place / "python", "-c",
                          "import gpu_panel.app, gpu_engine.remote.reach.file, tomlkit\n"
                          "import pynvml, sys\n"
                          "print(sys.prefix, 'torch' in sys.modules)"],
                         capture_output=True, text=True, check=True)
    assert run.stdout == f"{place.parents[1] / plan.name} False\n"
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


def test_what_fails_there_leaves_what_was_there_in_use(tmp_path, packed):
    home = tmp_path / "h"
    host = machine(home)
    broken = [packed[0], Package("click", ("py3-none-any",), {"click.py": b"1/0  # click"})]
    plan = decide.decide(host, probe.inspect(host, sys.executable), broken,
                         hashlib.sha256(b"x").hexdigest(), "0.1.0", python=sys.executable)
    old = home / ".local/share/gpu-panel/host/bin/python"
    old.parent.mkdir(parents=True)
    old.write_text("the old one")
    with pytest.raises(UserError, match=r"box: it could not be set up: python failed: .*click"):
        bring.bring(plan, (), print)
    assert old.read_text() == "the old one"
    assert [p.name for p in (home / ".local/share/gpu-panel").iterdir()] == ["host"]
