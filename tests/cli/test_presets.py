"""`gpu-engine presets`: listed, and one's own deleted."""

from __future__ import annotations

import os
import subprocess

import pytest

from gpu_engine.common.errors import UserError
from gpu_engine.spec import presets

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
