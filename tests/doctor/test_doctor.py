"""The doctor as a whole: on this machine, with a hanging driver, with a check that breaks."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from gpu_engine.doctor.checks import Check, every, examine
from gpu_engine.doctor.machine import ok
from gpu_engine.spec import presets

from ..command_line import called


def test_it_finds_what_is_broken_and_says_what_to_type(home: Path):
    """Everything is real here: a preset that is wrong, a home that others can write to, a run whose
    supervisor is gone."""
    (home / "presets").mkdir(parents=True)
    (home / "presets" / "mine.toml").write_text("[batch]\nsice = 3\n")
    (home / "hosts.toml").write_text("[hosts.a]\nshh = 1\n")
    (home / "runs" / "0ab1").mkdir(parents=True)
    (home / "runs" / "0ab1" / "state.json").write_text(json.dumps(
        {"id": "0ab1", "name": "x", "state": "running", "created": 1.0}))
    (home / ".doctor-1.tmp").touch()  # of another doctor; with it the home is still ours to close
    home.chmod(0o777)
    assert list(presets.all_presets())
    assert home.stat().st_mode & 0o077 == 0
    (home / ".doctor-1.tmp").unlink()
    out = called("doctor", "--json")
    said = json.loads(out.stdout)
    assert (out.returncode, said["ok"]) == (1, False)
    assert {f["check"] for f in said["findings"]} == {c.name for c in every()}
    problems = {f["text"]: f["cure"] for f in said["findings"] if f["level"] == "problem"}
    assert [cure for text, cure in problems.items() if "batch.sice" in text] \
        == [f"$EDITOR {presets.own_folder() / 'mine.toml'}"]
    assert any("hosts.a.shh" in text for text in problems)
    assert any("run 0ab1 is lost" in f["text"] for f in said["findings"])
    assert any(f["text"].startswith("torch 2.") for f in said["findings"])
    assert any("git: /" in f["text"] for f in said["findings"])
    assert not list(home.glob(".doctor*")), "what was tried is gone"
    (home / "others.txt").touch()  # it may be a folder of several people, and stays as it is
    home.chmod(0o777)
    assert f"chmod go-w {home}" in {f["cure"] for f in json.loads(
        called("doctor", "--json").stdout)["findings"]}


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
    assert [(name, all(f.level != "problem" for f in findings)) for name, findings in found] == [
        ("hangs", False), ("breaks", False), ("well", True)]
    assert "no answer in 0.05 s" in found[0][1][0].text
    assert found[1][1][0].text == "this check itself failed: RuntimeError: this is red"
