"""Files written whole or not at all, and read without ever waiting."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import stat
import subprocess
import tracemalloc
from pathlib import Path

import pytest

from gpu_engine.common import files


def test_the_content_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "state.json"
    files.write_json(path, {"a": [1, None, "é"]})
    files.write_json(path, {"b": 2})
    assert files.read_json(path) == {"b": 2}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_never_sees_half_of_it(tmp_path, monkeypatch):
    """Whoever opened the old file goes on reading it; the name leads to the old or the new."""
    path = tmp_path / "x"
    files.write_atomic(path, "old")
    seen: list[str] = []
    sync = os.fsync

    def looked(fd: int):
        seen.append(path.read_text())
        sync(fd)

    monkeypatch.setattr(os, "fsync", looked)
    with path.open() as before:
        files.write_atomic(path, "new")
        assert before.read() == "old"
    assert (seen, path.read_text()) == (["old"], "new")


def test_what_fails_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "x"
    files.write_atomic(path, "old")

    def full(fd: int):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_atomic(path, "new")
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(path, float("nan"))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_only_what_is_to_be_settled_waits_for_the_disk(tmp_path, monkeypatch):
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


def test_a_link_stays_a_link(tmp_path):
    path, target = tmp_path / "x", tmp_path / "there" / "y"
    target.parent.mkdir()
    target.write_text("old")
    path.symlink_to(target)
    files.write_atomic(path, "new")
    assert path.is_symlink()
    assert target.read_text() == "new"


def test_overwriting_takes_no_new_room(tmp_path):
    path = tmp_path / "x"
    files.write_atomic(path, "a" * 4096)  # synced, so that it has its blocks
    files.overwrite_inside(tmp_path, "x", "short")
    assert path.read_text() == "short"
    with pytest.raises(OSError, match="No space"):
        files.overwrite_inside(tmp_path, "x", "b" * (path.stat().st_blocks * 512 + 1))
    assert path.read_text() == "short"


def test_what_a_program_left_that_was_killed_is_removed(tmp_path):
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


def test_what_a_living_program_is_writing_stays(tmp_path, monkeypatch):
    """The supervisor tidies up while the program that has started it still writes there."""
    path, replace = tmp_path / "x.json", os.replace

    def tidied(temporary: str, target: str, **folders):
        files.remove_temporary(tmp_path)
        replace(temporary, target, **folders)

    monkeypatch.setattr(os, "replace", tidied)
    files.write_atomic(path, "new")
    assert path.read_text() == "new"
    for name in (".00000.log.{}.tmp", ".x.1.{}.12345678.tmp"):
        (tmp_path / name.format(os.getpid())).touch()
    files.remove_temporary(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


def why_not(path: Path) -> str | None:
    """Why a file is not opened."""
    try:
        files.open_file(path).close()
    except OSError as err:
        return files.reason(err)
    return None


def test_what_is_no_file_is_refused_by_its_kind(tmp_path):
    fifo, folder, sock = tmp_path / "fifo", tmp_path / "folder", tmp_path / "sock"
    os.mkfifo(fifo)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(sock))
        assert why_not(fifo) == "it is a FIFO, not a file"
        assert why_not(folder) == "it is a folder, not a file"
        assert why_not(sock) is not None
        assert why_not(Path("/dev/null")) == "it is a device, not a file"
    assert why_not(tmp_path / "none") == "no such file or directory"
    (tmp_path / "x").touch()
    assert why_not(tmp_path / "x") is None
    assert [files.read_json(p) for p in (fifo, folder, tmp_path / "none", tmp_path / "x")] \
        == [None] * 4


@pytest.mark.parametrize("text", [b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_none(tmp_path, text):
    (tmp_path / "x").write_bytes(text)
    assert files.read_json(tmp_path / "x") is None


# --- inside a run folder --------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    """A folder with one file in it, and one in a folder in it; beside it a secret."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "00000.log").write_text("secret")
    (tmp_path / "run" / "ranks").mkdir(parents=True)
    (tmp_path / "run" / "state.json").write_text('{"a": 1}')
    (tmp_path / "run" / "ranks" / "00000.log").write_text("said")
    return tmp_path / "run"


WAYS = {"appending": os.O_WRONLY | os.O_APPEND | os.O_CREAT, "writing": os.O_RDWR | os.O_CREAT,
        "reading": os.O_RDONLY}


def test_what_is_inside_is_read_and_written(run):
    assert files.json_inside(run, "state.json") == {"a": 1}
    assert files.read_inside(run, "ranks/00000.log") == b"said"
    for name in ("state.json", "ranks/new.json"):
        files.write_json_inside(run, name, [2], settled=False)
        assert files.json_inside(run, name) == [2]
        assert stat.S_IMODE((run / name).stat().st_mode) == 0o600
        assert files.why_not_inside(run, name) is None
    fd = files.open_inside(run, "ranks/00000.log", WAYS["appending"])
    assert os.get_blocking(fd)
    os.write(fd, b" more")
    os.close(fd)
    assert files.read_inside(run, "ranks/00000.log") == b"said more"
    assert files.why_not_inside(run, "ranks/none") == "no such file or directory"
    assert [str(p.relative_to(run)) for p in sorted(run.rglob("*"))] \
        == ["ranks", "ranks/00000.log", "ranks/new.json", "state.json"]


@pytest.mark.parametrize("name", ["../outside/00000.log", "/etc/passwd", "ranks//x", "", ".",
                                  "ranks/../../x"])
def test_a_name_leads_nowhere_else(run, name):
    with pytest.raises(ValueError, match="no name inside"):
        files.open_inside(run, name)
    with pytest.raises(ValueError, match="no name inside"):
        files.write_inside(run, name, "x")


@pytest.mark.parametrize("flags", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("there", [True, False], ids=["there", "dangling"])
def test_no_link_is_followed(run, flags, there):
    """Neither in place of the file nor of the folder in which it is."""
    target = run.parent / "outside" / "00000.log"
    if not there:
        target.unlink()
    (run / "link").symlink_to(target)
    (run / "folder").symlink_to(target.parent)
    (run / "ranks" / "up").symlink_to(target.parent)
    for name in ("link", "folder/00000.log", "ranks/up/00000.log"):
        with pytest.raises(OSError, match=re.escape(f"{run}/{name}")):
            files.open_inside(run, name, flags)
    assert files.why_not_inside(run, "link") == "it is a link, and none is followed in a run folder"
    assert (target.read_text() == "secret") if there else not target.exists()


def test_a_link_is_replaced_by_what_is_written(run):
    """And its target stays as it is. In a folder that is a link nothing is written."""
    target = run.parent / "outside" / "00000.log"
    (run / "notes.json").symlink_to(target)
    files.write_json_inside(run, "notes.json", "mine")
    assert files.json_inside(run, "notes.json") == "mine"
    assert not (run / "notes.json").is_symlink()
    (run / "other").symlink_to(target.parent)
    with pytest.raises(OSError, match=r"other/00000\.log"):
        files.write_inside(run, "other/00000.log", "mine")
    assert list(target.parent.iterdir()) == [target]
    assert target.read_text() == "secret"


@pytest.mark.parametrize("flags", WAYS.values(), ids=WAYS)
def test_only_a_file_is_opened_and_nothing_is_waited_for(run, flags):
    os.mkfifo(run / "fifo")
    (run / "folder").mkdir()
    before = _next_descriptor()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(run / "sock"))
        for name in ("fifo", "folder", "sock"):
            with pytest.raises(OSError, match=name):
                files.open_inside(run, name, flags)
    for name in ("fifo", "folder", "none/x", "ranks/none"):
        assert files.json_inside(run, name) is None
    assert _next_descriptor() == before


@pytest.mark.parametrize("flags", WAYS.values(), ids=WAYS)
def test_no_device_is_opened(flags):
    with pytest.raises(OSError, match="it is a device"):
        files.open_inside(Path("/dev"), "null", flags)


def test_another_users_file_is_read_only(run, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OSError, match="belongs to another user"):
        files.open_inside(run, "ranks/00000.log", os.O_WRONLY)
    assert files.read_inside(run, "ranks/00000.log") == b"said"


def _next_descriptor() -> int:
    """The number that the next file gets: it grows where one stays open."""
    fd = os.open(os.devnull, os.O_RDONLY)
    os.close(fd)
    return fd


def test_a_file_with_two_names_is_read_only(run):
    target = run.parent / "outside" / "00000.log"
    os.link(target, run / "hard")
    assert files.read_inside(run, "hard") == b"secret"
    with pytest.raises(OSError, match="hard link"):
        files.open_inside(run, "hard", os.O_WRONLY)
    with pytest.raises(OSError, match="hard link"):
        files.overwrite_inside(run, "hard", "x")
    files.write_inside(run, "hard", "mine")
    assert (target.read_text(), (run / "hard").read_text()) == ("secret", "mine")


def test_no_more_is_read_than_a_file_of_ours_can_have(run):
    with (run / "huge").open("wb") as file:
        file.truncate(600 << 20)
    tracemalloc.start()
    try:
        assert files.json_inside(run, "huge") is None
        assert files.read_json(run / "huge") is None
        with pytest.raises(OSError, match="larger than 16 MiB"):
            files.read_inside(run, "huge")
        assert tracemalloc.get_traced_memory()[1] < 3 * files.MOST
    finally:
        tracemalloc.stop()
    assert files.read_inside(run, "ranks/00000.log", 4) == b"said"
    with pytest.raises(OSError, match="larger"):
        files.read_inside(run, "ranks/00000.log", 3)


def test_a_lock_that_is_a_link_is_held_by_nobody(run):
    (run / "lock").symlink_to(run.parent / "outside" / "00000.log")
    with (run.parent / "outside" / "00000.log").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert files.locked(run / "lock") is False
        assert files.locked(run.parent / "outside" / "00000.log") is True


def test_who_only_looks_keeps_nobody_from_a_lock(run, monkeypatch):
    (run / "lock").touch()
    with (run / "lock").open() as looking, (run / "lock").open("r+") as file:
        fcntl.flock(looking, fcntl.LOCK_SH)
        monkeypatch.setattr(files.time, "sleep", lambda _: looking.close())
        assert files.take_lock(file.fileno())
        with (run / "lock").open("r+") as another:
            assert not files.take_lock(another.fileno())
