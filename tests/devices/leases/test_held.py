"""Files that count while their process lives: what becomes of them by crashes, a full disk and
whatever else lies in the folder. By real processes of two users."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time

import pytest

from gpu_engine.devices import leases

from .users import make

MAKE = "made = make(box.claims, {'says': 'alice'})"
CHILD = """
ready, told = os.pipe()
child = os.fork()
if child == 0:
    {0}
    os.write(told, b"x")
    signal.pause()
os.read(ready, 1)
"""


def said(box):
    """Who says what, as everybody reads it."""
    return [(f.uid, f.said["says"]) for f in leases.read(box.claims) if f.live]


def listed(box, folder="claims"):
    return sorted(path.name for path in (box.path / folder).iterdir())


@pytest.fixture
def made(alice, box):
    alice.do(MAKE)
    yield alice
    alice.do("made.close()")
    assert said(box) == []


def test_it_counts_while_it_is_held(alice, box):
    alice.do(MAKE)
    [one] = leases.read(box.claims)
    assert (one.uid, one.live, one.said, one.mine) == (alice.uid, True, {"says": "alice"}, False)
    assert one.user == f"uid {alice.uid}"
    assert abs(one.made - time.time()) < 60
    assert one.path.stat().st_mode & 0o777 == 0o644, "under umask 077"
    alice.do("made.close()\nmade.close()")
    assert listed(box) == []


def test_killed_while_it_writes_it_leaves_nothing_that_counts(alice, box):
    alice.do(CHILD.format("pathlib.Path.rename = lambda *_: os._exit(1); os.close(ready)")
             .replace("signal.pause()", MAKE))
    alice.do("os.waitpid(child, 0)")
    [left] = listed(box)
    assert left.endswith(".tmp")
    assert leases.read(box.claims) == []
    alice.do(MAKE)
    assert not listed(box)[0].endswith(".tmp"), "its user's next one has cleared up"


def test_a_stopped_process_keeps_it(made, box):
    made.signal(signal.SIGSTOP)
    try:
        assert said(box) == [(made.uid, "alice")]
    finally:
        made.signal(signal.SIGCONT)


def test_nobody_can_remove_rename_replace_or_change_anothers(made, bob, box):
    bob.do("theirs = f'{claims_at}/{os.listdir(claims_at)[0]}'\n"
           "own = f\"{claims_at}/{'0' * 19}-{'0' * 8}\"\nopen(own, 'w').close()")
    for move in ("os.unlink(theirs)", "os.rename(theirs, theirs + 'x')", "open(theirs, 'w')",
                 "os.rename(own, theirs)", "os.chmod(theirs, 0)", "os.truncate(theirs, 0)",
                 "os.rmdir(claims_at)", "os.rename(claims_at, claims_at + 'x')",
                 "os.chmod(claims_at, 0)", "os.chown(theirs, uid, uid)",
                 "make(box.claims, {}, os.path.basename(theirs))"):
        assert "Error" in bob.refused(move), move
    bob.do("os.unlink(own)")
    assert said(box) == [(made.uid, "alice")]
    assert len(listed(box)) == 1


JUNK = {
    "a FIFO": "os.mkfifo(path, 0o666)",
    "a FIFO somebody writes to": "os.mkfifo(path, 0o666); kept = os.open(path, os.O_RDWR)",
    "a folder": "os.mkdir(path)",
    "an unreadable folder": "os.mkdir(path, 0)",
    "a symlink to another's": "os.symlink(os.listdir(claims_at)[0], path)",
    "a symlink to itself": "os.symlink(path, path)",
    "a symlink to what waits": "os.symlink('/dev/tty', path)",
    "a socket": "kept = socket.socket(socket.AF_UNIX); kept.bind(path)",
    "an empty file": "write(b'')",
    "a file that was never locked": "open(path, 'w').write('{\"says\": \"bob\"}')",
    "a file with a lease, which the kernel takes from nobody for 45 s":
        "write(b'{}'); signal.signal(signal.SIGIO, signal.SIG_IGN);"
        "fcntl.fcntl(kept, fcntl.F_SETLEASE, fcntl.F_WRLCK)",
    "a huge file": "write(b'{}'); os.ftruncate(kept, 1 << 40)",
    "another name": "path += 'x'; write(b'{}')",
    "no table": "write(b'[]')",
    "not UTF-8": "write(b'\\xff\\xfe')",
    "nested without end": "write(b'[' * 20000)",
    "a number without end": "write(b'1' * 20000)",
}


@pytest.mark.parametrize("junk", JUNK)
def test_whatever_else_lies_there_is_passed_over_at_once(made, bob, box, junk):
    bob.do("""
def write(body):
    global kept
    kept = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    os.write(kept, body)
    os.fchmod(kept, 0o644)
    fcntl.flock(kept, fcntl.LOCK_EX)
""" + f"path = f'{{claims_at}}/{{time.time_ns():019d}}-{{secrets.token_hex(4)}}'\n{JUNK[junk]}")
    assert len(listed(box)) == 2
    for reader in (made, bob):
        assert reader.ask("[f.uid for f in leases.read(box.claims) if f.live]") == [made.uid]
    assert said(box) == [(made.uid, "alice")]
    bob.do("isinstance(kept, int) and os.close(kept) if 'kept' in globals() else None\n"
           "globals().pop('kept', None)")


def test_too_few_descriptors_is_an_error_and_not_an_empty_folder(made, box, monkeypatch):
    """To pass over a file for a lack of one's own would be to overlook somebody's lease."""
    def full(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(leases.os, "open", full)
        with pytest.raises(OSError, match="Too many open files"):
            leases.read(box.claims)


def test_a_full_disk_leaves_no_half_of_it(alice, box):
    alice.do(CHILD.format("resource.setrlimit(resource.RLIMIT_FSIZE, (5, 5))").replace(
        "signal.pause()", f"""
    try:
        {MAKE}
    except OSError as error:
        os._exit(error.errno)
    os._exit(0)"""))
    assert alice.ask("os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])") == errno.ENOSPC
    assert listed(box) == []


def test_who_came_first_is_first(box):
    made = [make(box.line, {"n": n}) for n in range(5)]
    name = listed(box, "line")[1]
    made[1].close()
    made[1] = make(box.line, {"n": "again"}, name)
    assert [f.said["n"] for f in leases.read(box.line)] == [0, "again", 2, 3, 4]
    for one in made:
        one.close()


def test_one_at_a_time(alice, place, tmp_path, monkeypatch):
    """A process that is stopped with the lock holds up nobody for long; with it the lock ends."""
    home = place / "home"
    home.mkdir()
    os.chown(home, alice.uid, alice.uid)
    alice.do(CHILD.format(f"kept = leases.alone(pathlib.Path({str(home)!r})); kept.__enter__()"))
    child = alice.ask("child")
    os.kill(child, signal.SIGSTOP)
    monkeypatch.setattr(leases, "_LOCK_PATIENCE", 0.05)
    with pytest.raises(TimeoutError, match="perhaps a stopped one"), leases.alone(tmp_path):
        pass
    monkeypatch.setattr(leases, "_LOCK_PATIENCE", 60)
    got = threading.Event()

    def take():
        with leases.alone(tmp_path):
            got.set()

    thread = threading.Thread(target=take)
    thread.start()
    os.kill(child, signal.SIGKILL)
    assert got.wait(60)
    thread.join()
    alice.do("os.waitpid(child, 0)")
