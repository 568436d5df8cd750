"""Each trouble is named with its value and what to type."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_engine.devices.records import TOO_HOT, Device, DeviceProcess, Inventory, Sample
from gpu_engine.doctor import machine, user_files
from gpu_engine.doctor.machine import Finding
from gpu_engine.interpreters.inspection import Build, Seen
from gpu_engine.queue import serve
from gpu_engine.runs import folder, leftovers
from gpu_engine.runs.disk_room import Room

GIB = 1 << 30
GPU = Device("0", "gpu", "NVIDIA A100", 0, "GPU-0", 80 * GIB)


def level_of(found: list[Finding], *words: str) -> list[str]:
    """The levels of the findings that have all these words, in text or cure."""
    return [f.level for f in found if all(w in f"{f.text} → {f.cure}" for w in words)]


CUDA13, CUDA12, CPU, ROCM = (Build("2.13.0", "13.0", None), Build("2.12.0", "12.9", None),
                             Build("2.13.0+cpu", None, None), Build("2.13.0", None, "6.4"))


@pytest.mark.parametrize(("build", "gpus", "cuda", "level", "words"), [
    (CUDA13, "nvml", "13.0", "ok", "for CUDA 13.0"),
    (CUDA13, "nvml", "12.4", "problem", "too old for it, as it takes CUDA 12.4"),
    (CUDA12, "nvml", "12.2", "ok", "for CUDA 12.9"),  # compatible within a major version
    (CUDA12, "nvml", "13.0", "ok", ""),
    (CPU, "nvml", "13.0", "problem", "whl/cu130"),
    (CPU, "nvml", "12.4", "problem", "whl/cu126"),
    (ROCM, "nvml", "13.0", "problem", "for ROCm 6.4"),
    (ROCM, "amd", None, "ok", ""),
    (CUDA13, "amd", None, "problem", "can't use an AMD GPU"),
    (CPU, None, None, "ok", "for CPUs"),
    (None, None, None, "problem", "/p -m pip install torch")])
def test_torch_fits_the_driver(build, gpus, cuda, level, words):
    seen = Seen("/p", torch=build and Path("x"), build=build)
    found = machine.torch([(seen, "the default")], gpus=gpus, cuda=cuda)
    assert level_of(found, words) == [level]


def test_without_torch_by_default_one_near_by_is_offered():
    other = Seen("/q", build=CUDA13), "$VIRTUAL_ENV"
    found = machine.torch([(Seen("/p"), "the default"), other], gpus=None, cuda=None)
    assert level_of(found, "no torch in /p", "--set run.python=/q") == ["problem"]
    script = Seen("/p", problem="its files do not tell", unread=True)
    found = machine.torch([(script, "the default"), other], gpus=None, cuda=None)
    assert [f.level for f in found] == ["note", "ok"]


NONE = Inventory((), "nvml")


def kernel(root: Path, *makers: str, module: str = "", container: bool = False) -> Path:
    """What the kernel says of a machine with these cards, and a network card."""
    for i, (kind, maker) in enumerate([("0x030200", m) for m in makers] + [("0x020000", "10de")]):
        card = root / "sys/bus/pci/devices" / f"{i}"
        card.mkdir(parents=True)
        (card / "class").write_text(kind + "\n")
        (card / "vendor").write_text(f"0x{maker}\n")
    if module:
        (root / "sys/module" / module).mkdir(parents=True)
        (root / "sys/module" / module / "version").write_text("580.95\n")
    if container:
        (root / ".dockerenv").touch()
    return root


@pytest.mark.parametrize(("cards", "more", "found", "level", "words"), [
    ((), {}, NONE, "note", "no GPU driver"),
    (("1002",), {}, NONE, "note", "cards of AMD"),
    (("10de", "10de"), {}, NONE, "problem", "2 NVIDIA cards"),
    (("10de",), {"module": "nouveau"}, NONE, "problem", "nouveau"),
    (("10de",), {"container": True}, NONE, "problem", "--gpus all"),
    (("10de",), {"module": "nvidia"}, NONE, "problem", "libnvidia-compute-580"),
    (("10de",), {}, replace(NONE, problem="the driver did not answer in 12 s"), "problem",
     "dmesg"),
    (("10de",), {}, Inventory((GPU,), "nvml", "580.159", "13.0"), "ok",
     "driver 580.159, takes CUDA up to 13.0"),
    (("10de",), {}, replace(NONE, hidden=True, inherited_visible="-1",
                            visible_variable="CUDA_VISIBLE_DEVICES"), "note",
     "unset CUDA_VISIBLE_DEVICES")])
def test_drivers(tmp_path, cards, more, found, level, words):
    judged = machine.drivers([found], kernel(tmp_path, *cards, **more))
    assert level_of(judged, words) == [level]
    assert len(judged) == 1


def test_devices_with_something_wrong():
    inventory = Inventory((GPU,), "nvml")
    sample = Sample(GPU, memory_used=30 * GIB, memory_total=80 * GIB, throttle=(TOO_HOT,),
                    health=("2 uncorrected memory errors",), notes=("persistence mode is off",),
                    problem="GPU is lost")
    found = machine.of_samples(inventory, [sample])
    for words, level in (("1 × NVIDIA A100", "ok"), ("GPU 0: GPU is lost", "problem"),
                         ("2 uncorrected", "problem"), (TOO_HOT, "problem"),
                         ("nvidia-smi -pm 1", "note"), ("no process is seen", "note")):
        assert level_of(found, words) == [level], words
    held = replace(sample, processes=(DeviceProcess(1),))
    assert not level_of(machine.of_samples(inventory, [held]), "no process is seen")
    assert level_of(machine.of_samples(Inventory((), "cpu"), ()), "no devices") == ["problem"]


@pytest.mark.parametrize(("change", "level", "words"), [
    ("", "ok", " free"), ("gone", "ok", "it will be made"),
    ("file", "problem", "GPU_PANEL_HOME"),
    ("open", "problem", "chmod go-w "), ("least", "problem", "prune"), ("scarce", "note", "prune"),
    ("locks", "problem", "locks don't work")])
def test_folders(tmp_path, monkeypatch, change, level, words):
    at = tmp_path / "h"
    if change == "file":
        at.touch()
    elif change != "gone":
        at.mkdir(mode=0o700)
    if change == "open":
        at.chmod(0o777)
    if change == "locks":
        monkeypatch.setattr(user_files, "_lock_holds", lambda path, fd: False)
    most = {change: 1 << 60} if change in ("least", "scarce") else {}
    found = user_files.folder(at, **most)
    assert level_of(found, words) == [level]
    assert list(at.glob("*")) == [], "what was tried is gone"
    assert at.exists() == (change != "gone"), "looking makes nothing"


def test_a_folder_in_one_that_is_closed_to_others_is_closed(tmp_path):
    inside = tmp_path / "presets"
    inside.mkdir()
    inside.chmod(0o775)
    for mode, levels in ((0o700, []), (0o755, ["problem"])):
        tmp_path.chmod(mode)
        assert level_of(user_files.folder(tmp_path), "presets can be written by others") == levels


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_can_not_be_written(tmp_path):
    tmp_path.chmod(0o500)
    assert level_of(user_files.folder(tmp_path), "permission denied") == ["problem"]
    tmp_path.chmod(0o700)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else(tmp_path):
    os.chown(tmp_path, 12345, -1)
    assert level_of(user_files.folder(tmp_path), "belongs to another") == ["problem"]


def test_the_shared_folder(tmp_path, monkeypatch):
    levels = []
    for path, why in ((tmp_path, "it is open to others"), (None, None), (tmp_path / "no", None),
                      (tmp_path, None)):
        monkeypatch.setattr(user_files.leases, "where", lambda path=path: path)
        monkeypatch.setattr(user_files.leases, "why_not", lambda why=why: why)
        levels.append(user_files.shared()[0].level)
    assert levels == ["problem", "note", "note", "ok"]


@pytest.mark.parametrize(("env", "size", "utf8", "level", "words"), [
    ({}, (120, 40), True, "ok", "TERM=xterm-256color, 120×40"),
    ({}, None, True, "note", "no terminal"),
    ({"TERM": "dumb"}, (120, 40), True, "problem", "export TERM"),
    ({}, (120, 20), True, "note", "80×24"), ({}, (120, 40), False, "note", "export LANG"),
    ({"NO_COLOR": "1"}, (120, 40), True, "note", "unset NO_COLOR")])
def test_terminals(monkeypatch, env, size, utf8, level, words):
    monkeypatch.setattr(machine, "_size", lambda: size and os.terminal_size(size))
    monkeypatch.setattr(machine.locale, "getpreferredencoding",
                        lambda setting: "UTF-8" if utf8 else "ASCII")
    assert level_of(machine.terminal({"TERM": "xterm-256color"} | env), words) == [level]


@pytest.mark.parametrize(("change", "level", "words"), [
    ({"shm": 64 << 20, "container": True}, "note", "docker run --shm-size"),
    ({"shm": 64 << 20}, "note", "remount"), ({"shm": 32 * GIB}, "ok", "32.0 GiB"),
    ({"files": (1024, 4096)}, "note", "ulimit -n 4096"),
    ({"files": (1024, 1024)}, "note", "limits.conf"), ({"files": (65536, 65536)}, "ok", "65,536")])
def test_limits(monkeypatch, change, level, words):
    for where, name, value in (
            (machine.disk_room, "of", Room("", None, change.get("shm"))),
            (machine, "_in_container", "container" in change),
            (machine.resource, "getrlimit", change.get("files", (1 << 20, 1 << 20)))):
        monkeypatch.setattr(where, name, lambda *_, value=value: value)
    assert level_of(machine.limits(), words) == ([level] if level else [])


def test_logout(monkeypatch):
    for warning, level, cure in (
            ("… loginctl enable-linger", "problem", "loginctl enable-linger"), (None, "ok", None)):
        monkeypatch.setattr(machine.logind, "examine", lambda w=warning: w)
        assert [(f.level, f.cure) for f in machine.logout()] == [(level, cure)]


def test_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("GPU_PANEL_HOME", str(tmp_path))

    def run(name: str, state: str):
        return SimpleNamespace(id=name, path=name, state=lambda: SimpleNamespace(
            state=state, live=state in ("running", "queued"), reason="state.json is a FIFO"))

    every = [*(run(name, "lost") for name in "abcdefg"), run("x", "unreadable"), run("y", "queued")]
    monkeypatch.setattr(folder, "all_runs", lambda: every)
    monkeypatch.setattr(leftovers, "processes", lambda path: path == "a")
    monkeypatch.setattr(serve, "alone", lambda: {"y": None})
    found = user_files.runs()
    assert level_of(found, "run a is lost", "gpu-engine stop a") == ["problem"]
    assert level_of(found, "run b is lost", "gpu-engine resume b") == ["note"]
    assert level_of(found, "1 more are lost") == ["note"]
    assert level_of(found, "run x", "FIFO") == ["note"]
    assert level_of(found, "1 waiting run has no supervisor", "gpu-engine queue") == ["problem"]
    monkeypatch.setattr(folder, "all_runs", lambda: [run("z", "running")])
    assert [f.level for f in user_files.runs()] == ["ok"]
