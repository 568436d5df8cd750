"""Damaged checkpoints, full disks, and which checkpoints are kept."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from gpu_engine.training import checkpoint

from . import ranks
from .conftest import recorded


def state(step: int) -> dict:
    return {"step": step, "model": {"w": torch.full((1000,), float(step))}}


def save(folder: Path, step: int, **metrics: float) -> Path:
    return checkpoint.save(folder, state(step), [b"rank"], {"metrics": metrics}).path


def flip(path: Path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def in_place(path: Path) -> Path:
    path.unlink()
    return path


DAMAGE = {
    "a flipped bit": lambda p: flip(p / "state.pt"),
    "cut short": lambda p: os.truncate(p / "state.pt", 100),
    "gone": lambda p: (p / "state.pt").unlink(),
    "no manifest": lambda p: (p / "manifest.json").unlink(),
    "another rank's file": lambda p: (p / "rank-00000.pt").write_bytes(b"rankX"),
    "a link": lambda p: in_place(p / "state.pt").symlink_to(
        p.with_name("step-00000001") / "state.pt"),
    "a FIFO": lambda p: os.mkfifo(in_place(p / "state.pt")),
    "a linked manifest": lambda p: in_place(p / "manifest.json").symlink_to(
        p.with_name("step-00000001") / "manifest.json"),
    "a manifest of a file outside": lambda p: (p / "manifest.json").write_text(
        (p / "manifest.json").read_text().replace("rank-00000.pt", "../../outside")),
    "a manifest of another kind": lambda p: (p / "manifest.json").write_text("[1, 2]"),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_noticed_and_the_one_before_taken(tmp_path, how):
    first, second = save(tmp_path, 1), save(tmp_path, 2)
    DAMAGE[how](second)
    said: list[str] = []
    assert checkpoint.newest(tmp_path, said.append) == first
    assert "step-00000002" in said[0]
    assert ranks.saved(first)["model"]["w"][0] == 1


def test_nothing_is_saved_where_the_folder_is_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(checkpoint.NotWritten, match="is a link"):
        save(tmp_path / "checkpoints", 1)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_resume_falls_back_with_a_warning_and_never_starts_afresh(make):
    run = make("run", size=24, train={"steps": 6, "checkpoint_every": 3})
    ranks.train(run)
    folder = run / "checkpoints"
    flip(folder / "step-00000006" / "state.pt")
    ranks.train(run, attempt=2)
    assert "step-00000006" in ranks.read(run, 0, "warning")[-1]["message"]
    assert ranks.read(run, 0, "schedule")[-1]["first_step"] == 3
    assert recorded(run, 0, 2) == recorded(run, 0, 1)[3:]
    checkpoint.verify(folder / "step-00000006")  # written anew
    for path in checkpoint.listed(folder):
        flip(path / "state.pt")
    ranks.train(run, attempt=3, expect=1)
    assert "can be loaded" in ranks.read(run, 0, "error")[-1]["message"]


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    path = save(tmp_path, 1)
    canary = tmp_path / "canary"

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(canary),)

    torch.save({"step": 1, "model": Bomb()}, path / "state.pt")
    data = (path / "state.pt").read_bytes()
    import hashlib

    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["state.pt"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(checkpoint.Damaged):
        ranks.saved(path)
    assert not canary.exists()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs")
def test_full_disk_keeps_the_checkpoint_before(make, tmp_path):
    """On a small tmpfs: checkpoints of 2 MB, with room for two and a half."""
    run = make("run", {"big": 500_000, "pause": 0.01}, world=2, size=24,
               train={"steps": 9, "checkpoint_every": 2})
    with tmpfs(run / "checkpoints", "5m"):
        ranks.train(run, expect=1)
        left = checkpoint.listed(run / "checkpoints")
        assert [p.name for p in left] == ["step-00000002", "step-00000004"]
        assert checkpoint.newest(run / "checkpoints", lambda t: pytest.fail(t)) == left[1]
        assert not [p for p in (run / "checkpoints").iterdir() if p.name.startswith(".")]
        assert ranks.read(run, 0, "step")[-1]["step"] == 9
        messages = [e["message"] for e in ranks.read(run, 0, "warning")]
        assert all("No space left" in m for m in messages)
        assert len(messages) == 3
        # Rank 1, whose machine may have room, fails for rank 0.
        failed = [ranks.read(run, rank, "error")[-1] for rank in (0, 1)]
        assert [e["type"] for e in failed] == ["UserError", "PeerLost"]
        assert failed[1]["message"].startswith("rank 0: the final checkpoint")


class tmpfs:
    def __init__(self, path: Path, size: str):
        self.path, self.size = path, size

    def __enter__(self):
        self.path.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self.size}", "tmpfs",
                               str(self.path)], capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"no mount here: {done.stderr.decode()}")

    def __exit__(self, *_: object):
        subprocess.run(["umount", "-l", str(self.path)], check=True)


def test_the_rename_comes_last_after_everything_is_synced(tmp_path, monkeypatch):
    """What a power cut leaves behind depends on this order. No test can cut the power."""
    acts: list[tuple[str, str]] = []
    rename, fsync = Path.rename, os.fsync

    def renamed(self: Path, target: Path) -> Path:
        acts.append(("rename", self.name))
        checkpoint.verify(self)
        return rename(self, target)

    def synced(fd: int):
        acts.append(("sync", Path(f"/proc/self/fd/{fd}").readlink().name))
        fsync(fd)

    monkeypatch.setattr(Path, "rename", renamed)
    monkeypatch.setattr(os, "fsync", synced)
    path = save(tmp_path, 7)
    temp = next(name for act, name in acts if act == "rename")
    assert temp.startswith(".writing-step-00000007")
    assert acts == [("sync", "state.pt"), ("sync", "rank-00000.pt"), ("sync", "manifest.json"),
                    ("sync", temp), ("rename", temp), ("sync", tmp_path.name)]
    assert path.name == "step-00000007"
