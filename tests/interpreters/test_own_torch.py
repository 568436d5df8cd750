"""The environment with torch that gpu-panel makes: by a real pip, from a folder of wheels."""

from __future__ import annotations

import fcntl
import re
import shutil
import socket
import stat
import threading
from pathlib import Path

import psutil
import pytest

from gpu_engine.devices import discover
from gpu_engine.interpreters import choose, own_torch
from gpu_engine.interpreters.build import Build
from gpu_engine.runs import disk_room

from ..command_line import called
from ..conftest import slots
from .environments import environment, torch_in
from .wheelhouse import wheelhouse

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.own_torch


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Path) -> None:
    """A machine without GPUs and without uv, whatever this one has."""
    monkeypatch.setattr(own_torch, "_NVIDIA", tmp_path / "nvidia")
    monkeypatch.setattr(own_torch, "_AMD", tmp_path / "kfd")
    monkeypatch.setattr(discover, "discover", lambda: slots(1))
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, *a, **k: None if name == "uv"
                        else which(name, *a, **k))


def test_the_build_is_that_of_the_machine(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    release, at = own_torch.RELEASE, "https://download.pytorch.org/whl/"
    for source, cuda, build, requirement, options in (
            ("cpu", None, "cpu", f"torch=={release}+cpu", ("--extra-index-url", f"{at}cpu")),
            ("nvml", "13.1", "cu130", f"torch=={release}", ()),
            ("nvml+amd", "12.4", "cu126", "torch>=2.2,<3", ("--index-url", f"{at}cu126")),
            ("amd", None, "rocm6.4", "torch>=2.2,<3", ("--index-url", f"{at}rocm6.4"))):
        found = own_torch.offer(source, cuda)
        assert (found.build, found.requirement, found.options) == (build, requirement, options)
    # CPU slots may be offered in place of GPUs that are there.
    for driver, build in (("580.65.06", "cu130"), ("535.1", "cu126"), ("470.82.01", "cu118")):
        (tmp_path / "nvidia").write_text(
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Sun Jul\n"
            "GCC version:  gcc version 12.2.0\n")
        assert own_torch.offer("cpu").build == build
    (tmp_path / "nvidia").unlink()
    (tmp_path / "kfd").mkdir()
    assert own_torch.offer("cpu").build == "rocm6.4"


def test_the_release_is_the_one_that_the_tests_pass_with() -> None:
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert pinned[1] == own_torch.RELEASE


def test_it_is_installed_and_taken_last(tmp_path: Path, monkeypatch, home: Path) -> None:
    wheelhouse(tmp_path / "wheels", monkeypatch)
    environ = {"PATH": ""}
    ours = choose.candidates.Place("/none/python", "gpu-panel's own")
    monkeypatch.setattr(choose.candidates, "own", lambda: ours)
    assert choose.of_ranks(None, tmp_path, environ).seen is None
    offer = own_torch.offer()
    told = list(own_torch.install(offer, threading.Event()))
    assert any("Successfully installed" in p.line for p in told)
    assert told[-1].written > told[0].written
    seen = choose.of_ranks(None, tmp_path, environ).seen
    assert seen is not None
    assert seen.path == str(home / "torch" / "bin" / "python")
    assert seen.build == Build("2.13.0+cpu", None, None)
    assert not (home / "torch" / "tmp").exists()
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    torch_in(environment(tmp_path / ".venv"))
    assert choose.of_ranks(None, tmp_path, environ).python == str(
        tmp_path / ".venv" / "bin" / "python")
    # Half an installation is none.
    (home / "torch" / "ready").unlink()
    assert own_torch.made() == []


def test_the_command_line_says_what_and_does_it(tmp_path: Path, monkeypatch, home: Path) -> None:
    """Also where something has torch already. Nothing is written before it is asked for."""
    wheelhouse(tmp_path / "wheels", monkeypatch)
    monkeypatch.setattr(choose, "current", lambda: choose.Chosen(None, ""))
    said = called("torch")
    assert said.returncode == 0, said
    for words in ("torch 2.13.0 for the processor alone", f"where   {home}/torch", "about 0.2 GB",
                  "torch==2.13.0+cpu numpy --extra-index-url", "--install installs it"):
        assert words in said.stdout
    assert not home.exists()
    done = called("torch", "--install")
    assert done.returncode == 0, done
    assert "Successfully installed" in done.stderr
    assert (home / "torch" / "ready").is_file()


def test_what_pip_says_is_told_and_nothing_is_left(tmp_path: Path, monkeypatch, home: Path) -> None:
    wheelhouse(tmp_path / "wheels", monkeypatch, "2.12.0")
    done = called("torch", "--install")
    assert done.returncode == 2
    assert "No matching distribution found for torch==2.13.0+cpu" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (home / "torch").exists()


def test_it_is_ended_while_the_network_hangs(monkeypatch, home: Path) -> None:
    """A server that accepts and never answers. The installer's processes are gone, its folder is,
    and another may begin."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for name, value in {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL":
                            f"http://127.0.0.1:{silent.getsockname()[1]}/simple"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
        offer, stop = own_torch.offer("nvml", "13.0"), threading.Event()
        steps = own_torch.install(offer, stop)
        heard = threading.Event()
        threading.Thread(target=lambda: (silent.accept(), heard.set()), daemon=True).start()
        while not heard.is_set():
            next(steps)
        with pytest.raises(own_torch.NotInstalled, match="another process is installing"):
            next(own_torch.install(offer, threading.Event()))
        stop.set()
        assert list(steps) == []
    assert not (home / "torch").exists()
    running = [p for p in psutil.Process().children(recursive=True)
               if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not [p for p in running if "pip" in p.cmdline()]
    with (home / "torch.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_uv_installs_where_it_has_installed_gpu_panel(tmp_path: Path, monkeypatch) -> None:
    """uv and pip are configured apart: the one that works for the person is taken."""
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    assert own_torch.offer().uv is None
    for name in ("bin", "lib"):
        (tmp_path / "tool" / name).mkdir(parents=True)
    (tmp_path / "tool" / "pyvenv.cfg").write_text("home = /x\nuv = 0.9\n")
    monkeypatch.setattr("sys.executable", str(tmp_path / "tool" / "bin" / "python"))
    offer = own_torch.offer()
    assert offer.uv == "/bin/uv"
    assert [step[:3] for step in own_torch._steps(offer)] == [
        ["/bin/uv", "venv", "--no-project"], ["/bin/uv", "pip", "install"]]


def test_what_can_not_work_is_not_begun(monkeypatch, home: Path) -> None:
    monkeypatch.setattr(disk_room, "of", lambda folder: disk_room.Room(str(folder), 1_000_000))
    offer = own_torch.offer("nvml", "13.0")
    with pytest.raises(own_torch.NotInstalled, match=r"0\.0 GB free, and about 7\.5 GB are needed"):
        next(own_torch.install(offer, threading.Event()))
    assert not home.exists()
