"""The doctor as a whole: on this machine, with a hanging driver, with a check that breaks."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from gpu_engine.doctor import gather
from gpu_engine.doctor.checks import every
from gpu_engine.doctor.examine import examine
from gpu_engine.doctor.records import Check, ok
from gpu_engine.spec import presets

from ..command_line import called


def test_it_finds_what_is_broken_and_says_what_to_type(home: Path):
    """Everything is real here: a preset that is wrong, a home that others can write, a run whose
    supervisor is gone."""
    (home / "presets").mkdir(parents=True)
    (home / "presets" / "mine.toml").write_text("[batch]\nsice = 3\n")
    (home / "hosts.toml").write_text("[hosts.a]\nshh = 1\n")
    (home / "runs" / "0ab1").mkdir(parents=True)
    (home / "runs" / "0ab1" / "state.json").write_text(json.dumps(
        {"id": "0ab1", "name": "x", "state": "running", "created": 1.0}))
    home.chmod(0o777)
    out = called("doctor", "--json")
    said = json.loads(out.stdout)
    assert (out.returncode, said["ok"]) == (1, False)
    assert {f["check"] for f in said["findings"]} == {c.name for c in every(hosts=False)}
    problems = {f["text"]: f["cure"] for f in said["findings"] if f["level"] == "problem"}
    assert [cure for text, cure in problems.items() if "batch.sice" in text] \
        == [f"$EDITOR {presets.own_folder() / 'mine.toml'}"]
    assert any("hosts.a.shh" in text for text in problems)
    assert f"chmod go-w {home}" in problems.values()
    assert any("run 0ab1 is lost" in f["text"] for f in said["findings"])
    assert any(f["text"].startswith("torch 2.") for f in said["findings"])
    assert any("git version" in f["text"] for f in said["findings"])
    assert not list(home.glob(".doctor*")), "what was tried is gone"


def test_it_speaks_to_a_person(home: Path):
    out = called("doctor")
    assert out.returncode == ("PROBLEM" in out.stdout), out.stdout
    assert "installed  ok      gpu-panel" in out.stdout
    assert "  → sudo gpu-engine queue" not in out.stdout  # the suite has no shared folder
    assert "GPU_PANEL_SHARED is empty" in out.stdout


def test_one_check_that_hangs_or_breaks_never_ends_the_others():
    for_ever = threading.Event()

    def breaks() -> list:
        raise RuntimeError("this is \x1b[31mred")

    def hangs() -> list:
        for_ever.wait()
        return []

    found = list(examine([Check("hangs", hangs, 0.05), Check("breaks", breaks),
                          Check("well", lambda: [ok("well")])]))
    for_ever.set()
    assert [(one.name, one.healthy) for one in found] == [
        ("hangs", False), ("breaks", False), ("well", True)]
    assert "no answer in 0.05 s" in found[0].findings[0].text
    assert found[1].findings[0].text == "this check itself failed: RuntimeError: this is red"


def test_the_kind_of_a_file_system(tmp_path: Path):
    text = ("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
            f"2 1 0:9 / {tmp_path} rw shared:1 - nfs4 host:/x rw\n"
            f"3 1 0:9 / {tmp_path}/a\\040b rw - tmpfs tmpfs rw\nbroken line\n")
    assert [gather.kind_of(tmp_path / p, text) for p in (".", "x", "a b/c", "../y")] == [
        "nfs4", "nfs4", "tmpfs", "ext4"]
    assert gather.kind_of(tmp_path, "") is None


def test_a_folder_is_tried(tmp_path: Path):
    found = gather.folder(tmp_path)
    assert (found.there, found.unwritable, found.locks) == (True, None, True)
    assert found.clock is not None
    assert abs(found.clock) < 2
    assert not gather.folder(tmp_path / "new" / "one").there
    assert not (tmp_path / "new").exists(), "looking makes nothing"
    (tmp_path / "file").touch()
    assert gather.folder(tmp_path / "file").unwritable
    if os.geteuid():  # root may write anywhere
        tmp_path.chmod(0o500)
        assert gather.folder(tmp_path).unwritable == "permission denied"
        tmp_path.chmod(0o700)


def test_cards_are_read_from_the_bus(tmp_path: Path):
    for name, kind, maker in (("a", "0x030200", "0x10de"), ("b", "0x038000", "0x1002"),
                              ("c", "0x020000", "0x8086"), ("d", "0x120000", "0x10de")):
        (tmp_path / "sys/bus/pci/devices" / name).mkdir(parents=True)
        (tmp_path / "sys/bus/pci/devices" / name / "class").write_text(kind + "\n")
        (tmp_path / "sys/bus/pci/devices" / name / "vendor").write_text(maker + "\n")
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    (tmp_path / "sys/module/nvidia/version").write_text("580.95.05\n")
    (tmp_path / ".dockerenv").touch()
    found = gather.cards(tmp_path)
    assert (found.on_bus, found.modules, found.nvidia, found.container) == (
        ("10de", "1002", "10de"), ("nvidia",), "580.95.05", True)


def test_what_is_needed_is_read_from_the_metadata():
    found = gather.package("click<9,>=8.1")
    assert found is not None
    assert (found.name, found.wanted) == ("click", "<9,>=8.1")
    assert found.version
    absent = gather.package("no-such-package>=1")
    assert absent is not None
    assert absent.version is None
    for optional in ("ruff>=1; extra == 'dev'", "no-such>=1; sys_platform == 'darwin'", "torch>=2"):
        assert gather.package(optional) is None
