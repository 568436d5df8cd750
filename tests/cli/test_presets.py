"""`gpu-engine presets`: listed, and one's own deleted."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from gpu_engine.common.errors import UserError
from gpu_engine.spec import presets
from gpu_engine.spec.read import from_dict

from ..command_line import called

pytestmark = pytest.mark.usefixtures("home")


def engine(*args: str) -> subprocess.CompletedProcess[str]:
    return called("presets", *args)


def test_the_command_line_deletes_ones_own():
    presets.save("ddp", presets.load("ddp").spec)
    assert "ddp.toml  (hides the shipped one)" in engine().stdout
    gone = engine("ddp", "--delete")
    assert gone.returncode == 0
    assert "ddp.toml deleted; the shipped preset of this name is used again" in gone.stdout
    assert presets.load("ddp").shipped
    again = engine("ddp", "--delete")
    assert again.returncode == 2
    assert "ddp ships with gpu-panel and can't be deleted" in again.stderr
    assert "you have no preset 'nope'" in engine("nope", "--delete").stderr
    assert engine("--delete").returncode == 2


def test_the_command_line_copies_describes_and_renames():
    assert "mine.toml" in engine("ddp", "--duplicate", "mine").stdout
    assert engine("mine", "--describe", "two cards").returncode == 0
    assert "ddp.toml" in engine("mine", "--rename", "ddp").stdout
    rows = {row["name"]: row for row in json.loads(engine("--json").stdout)}
    assert "mine" not in rows
    assert (rows["ddp"]["description"], rows["ddp"]["changes"]) == ("two cards", [])
    assert rows["single"]["description"]  # from the comment in its file
    presets.save("ddp", from_dict({"batch": {"size": 7}}))
    listed = engine().stdout
    assert "two cards" in listed
    assert "batch.size: 64 → 7" in listed
    both = engine("ddp", "--rename", "x", "--delete")
    assert both.returncode == 2
    assert "--rename and --delete can't be given together" in both.stderr


def test_broken_ones_can_be_deleted_and_a_fifo_is_not_waited_for():
    folder = presets.own_folder()
    folder.mkdir(parents=True)
    (folder / "bad.toml").write_text("[")
    os.mkfifo(folder / "pipe.toml")
    listed = engine()
    assert listed.returncode == 0
    assert "it is a FIFO, not a file" in listed.stdout
    for name in ("bad", "pipe"):
        assert engine(name, "--delete").returncode == 0
    assert list(folder.iterdir()) == []
    for name in ("../x", "", "/etc/passwd"):
        with pytest.raises(UserError):
            presets.remove(name)
