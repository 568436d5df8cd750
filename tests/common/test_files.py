"""Files written whole or not at all, and read without ever waiting."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from gpu_engine.common import files


def test_the_content_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    files.write_json(path, {"a": [1, None, "é"]})
    files.write_json(path, {"b": 2})
    assert files.read_json(path) == {"b": 2}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_never_sees_half_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opened the old file goes on reading it; the name leads to the old or the new."""
    path = tmp_path / "x"
    files.write_atomic(path, "old")
    seen: list[str] = []
    sync = os.fsync

    def looked(fd: int) -> None:
        seen.append(path.read_text())
        sync(fd)

    monkeypatch.setattr(os, "fsync", looked)
    with path.open() as before:
        files.write_atomic(path, "new")
        assert before.read() == "old"
    assert (seen, path.read_text()) == (["old"], "new")


def test_what_fails_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    files.write_atomic(path, "old")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_atomic(path, "new")
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(path, float("nan"))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_only_what_is_to_be_settled_waits_for_the_disk(tmp_path, monkeypatch) -> None:
    """The content is replaced in one step in either case."""
    path, waited = tmp_path / "x", []
    monkeypatch.setattr(os, "fsync", waited.append)
    files.write_json(path, 1, settled=False)
    assert (files.read_json(path), waited) == (1, [])
    files.write_json(path, 2)
    assert len(waited) == 1
    for name in ("x", "."):
        files.settle(tmp_path / name)
    assert len(waited) == 3
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    path, target = tmp_path / "x", tmp_path / "there" / "y"
    target.parent.mkdir()
    target.write_text("old")
    path.symlink_to(target)
    files.write_atomic(path, "new")
    assert path.is_symlink()
    assert target.read_text() == "new"


def test_overwriting_takes_no_new_room(tmp_path: Path) -> None:
    path = tmp_path / "x"
    files.write_atomic(path, "a" * 4096)  # synced, so that it has its blocks
    files.overwrite(path, "short")
    assert path.read_text() == "short"
    with pytest.raises(OSError, match="No space"):
        files.overwrite(path, "b" * (path.stat().st_blocks * 512 + 1))
    assert path.read_text() == "short"


def test_what_a_program_left_that_was_killed_is_removed(tmp_path: Path) -> None:
    kept = [tmp_path / "x.json", tmp_path / ".hidden", tmp_path / "step-1"]
    kept[0].touch()
    kept[1].touch()
    kept[2].mkdir()
    with subprocess.Popen(["true"]) as ended:
        pass
    for pid in (ended.pid, 9_999_999):
        for name in (f".x.json.{pid}.0a1b2c3d.tmp", f".00000.log.{pid}.tmp"):
            (tmp_path / name).touch()
    reused = tmp_path / f".y.json.{os.getpid()}.0a1b2c3d.tmp"
    reused.touch()
    os.utime(reused, (1, 1))
    for name in (f"{files.WRITING}step-2", f"{files.DELETING}step-0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.pt").touch()
    files.remove_temporary(tmp_path)
    files.remove_unfinished(tmp_path)
    files.remove_unfinished(tmp_path / "nowhere")
    assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_what_a_living_program_is_writing_stays(tmp_path: Path, monkeypatch) -> None:
    """The supervisor tidies up while the program that has started it still writes there."""
    path, replace = tmp_path / "x.json", Path.replace

    def tidied(temporary: Path, target: Path) -> None:
        files.remove_temporary(tmp_path)
        replace(temporary, target)

    monkeypatch.setattr(Path, "replace", tidied)
    files.write_atomic(path, "new")
    assert path.read_text() == "new"
    for name in (".00000.log.{}.tmp", ".x.1.{}.12345678.tmp"):
        (tmp_path / name.format(os.getpid())).touch()
    files.remove_temporary(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


def test_what_is_no_file_is_refused_by_its_kind(tmp_path: Path) -> None:
    fifo, folder, sock = tmp_path / "fifo", tmp_path / "folder", tmp_path / "sock"
    os.mkfifo(fifo)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(sock))
        assert files.why_not_readable(fifo) == "it is a FIFO, not a file"
        assert files.why_not_readable(folder) == "it is a folder, not a file"
        assert files.why_not_readable(sock) is not None
        assert files.why_not_readable(Path("/dev/null")) == "it is a device, not a file"
    assert files.why_not_readable(tmp_path / "none") == "no such file or directory"
    (tmp_path / "x").touch()
    assert files.why_not_readable(tmp_path / "x") is None
    assert [files.read_json(p) for p in (fifo, folder, tmp_path / "none", tmp_path / "x")] \
        == [None] * 4


@pytest.mark.parametrize("text", [b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_none(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "x").write_bytes(text)
    assert files.read_json(tmp_path / "x") is None
