"""What a user may do to others' notices and to the folder, and what comes of it: nothing.

Every test says what a hostile user did, by real processes of two users.
"""

from __future__ import annotations

import errno
import os
import subprocess
import time

import pytest

from gpu_engine.box import notices

POST = "posted = notices.post(box.claims, b't', b'what alice says')"
MOST = 4


def read(box, most=MOST):
    return notices.read(box.claims, lambda body: body.decode(), most)


def listed(box):
    return sorted(path.name for path in box.claims.iterdir())


def said(box, most=MOST):
    """Who says what, as everybody reads it."""
    return [(n.uid, n.content) for n in read(box, most)]


@pytest.fixture
def posted(alice, box):
    alice.do(POST)
    yield alice
    alice.do("posted.close()")
    assert said(box) == []


def of_alice(alice):
    return [(alice.uid, "what alice says")]


def test_it_counts_while_its_process_lives(alice, bob, box):
    alice.do(POST)
    assert said(box) == of_alice(alice)
    (notice,) = read(box)
    path = box.claims / notice.name
    assert path.stat().st_mode & 0o777 == 0o644, "under umask 077"
    assert notice.mark == b"t"
    alice.do("posted.mark(b'h')")
    assert read(box)[0].mark == b"h"
    alice.do("posted.close()")
    assert said(box) == []
    assert not path.exists()


def test_a_killed_process_takes_it_along_and_its_user_clears_up(alice, bob, box):
    alice.do(f"""
ready, told = os.pipe()
child = os.fork()
if child == 0:
    {POST}
    os.write(told, b"x")
    signal.pause()
os.read(ready, 1)
""")
    assert said(box) == of_alice(alice)
    alice.do("os.kill(child, 9); os.waitpid(child, 0)")
    assert said(box) == []
    assert len(listed(box)) == 1, "root does not tidy up for others"
    assert bob.ask("len(notices.read(box.claims, bytes.decode, 4))") == 0
    assert alice.ask("len(notices.read(box.claims, bytes.decode, 4))") == 0
    assert listed(box) == []


def test_a_stopped_process_keeps_it(posted, bob, box):
    import signal

    posted.signal(signal.SIGSTOP)
    try:
        assert said(box) == of_alice(posted)
    finally:
        posted.signal(signal.SIGCONT)


def test_nobody_can_remove_rename_replace_or_change_anothers(posted, bob, box):
    bob.do("""
theirs = f"{claims_at}/{os.listdir(claims_at)[0]}"
open(f"{claims_at}/{'0' * 32}", "w").close()
""")
    for move in ("os.unlink(theirs)", "os.rename(theirs, theirs + 'x')", "open(theirs, 'w')",
                 "os.rename(f\"{claims_at}/{'0' * 32}\", theirs)", "os.chmod(theirs, 0)",
                 "os.truncate(theirs, 0)", "os.link(theirs, f\"{claims_at}/{'1' * 32}\")",
                 "os.rmdir(claims_at)", "os.rename(claims_at, claims_at + 'x')",
                 "os.chmod(claims_at, 0)", "os.chown(theirs, uid, uid)"):
        assert "Error" in bob.refused(move), move
    bob.do("os.unlink(f\"{claims_at}/{'0' * 32}\")")
    assert said(box) == of_alice(posted)


def test_nobody_can_lock_it(posted, bob, box):
    """A read lock and a `flock`, held for ever: neither makes it look dead, nor hinders its owner.
    A write lock takes a file that is open for writing."""
    bob.do("""
theirs = os.open(f"{claims_at}/{os.listdir(claims_at)[0]}", os.O_RDONLY)
fcntl.flock(theirs, fcntl.LOCK_EX)
lock = lambda kind, first, size: fcntl.fcntl(theirs, fcntl.F_OFD_SETLK, notices._LOCK.pack(
    kind, 0, first, size, 0))
""")
    assert "Bad file descriptor" in bob.refused("lock(fcntl.F_WRLCK, 0, 0)")
    assert "unavailable" in bob.refused("lock(fcntl.F_RDLCK, 0, 0)")
    assert said(box) == of_alice(posted)
    posted.do("posted.mark(b'h')")
    assert read(box)[0].mark == b"h"


def test_a_dead_one_is_not_kept_alive(alice, bob, box):
    """Its owner is gone, and somebody else holds the file open and locked as well as he can."""
    alice.do(POST)
    bob.do("""
theirs = os.open(f"{claims_at}/{os.listdir(claims_at)[0]}", os.O_RDONLY)
fcntl.flock(theirs, fcntl.LOCK_EX)
""")
    alice.do("os.close(posted._fd)")
    bob.do("fcntl.fcntl(theirs, fcntl.F_OFD_SETLK, notices._LOCK.pack(fcntl.F_RDLCK, 0, 0, 0, 0))")
    assert said(box) == []
    bob.do("os.close(theirs)")
    assert alice.ask("len(notices.read(box.claims, bytes.decode, 4))") == 0
    assert listed(box) == [], "its owner could clear it up all the same"


def test_a_name_or_a_text_makes_nobody_its_owner(alice, bob, box):
    """A copy of another's notice, posted the right way: it is the copier's."""
    alice.do(POST)
    bob.do("forged = notices.post(box.claims, b't', b'what alice says')")
    assert sorted(said(box)) == sorted([*of_alice(alice), (bob.uid, "what alice says")])
    bob.do("forged.close()")
    alice.do("posted.close()")


def named(code):
    return f"path = f\"{{claims_at}}/{{secrets.token_hex(16)}}\"\n{code}"


JUNK = {
    "a FIFO": "os.mkfifo(path, 0o666)",
    "a FIFO somebody writes to": "os.mkfifo(path, 0o666); kept = os.open(path, os.O_RDWR)",
    "a folder": "os.mkdir(path)",
    "an unreadable folder": "os.mkdir(path, 0)",
    "a symlink to a notice": "os.symlink(os.listdir(claims_at)[0], path)",
    "a symlink to itself": "os.symlink(path, path)",
    "a symlink to what waits": "os.symlink('/dev/tty', path)",
    "a socket": "kept = socket.socket(socket.AF_UNIX); kept.bind(path)",
    "a file that nobody may read": "os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0))",
    "an empty file": "open(path, 'w').close()",
    "a file that was never locked": "open(path, 'w').write('twhat alice says')",
    "a file with a flock": "kept = open(path, 'w'); kept.write('tx'); kept.flush();"
                           "fcntl.flock(kept, fcntl.LOCK_EX)",
    "a huge file": "kept = notices.post(box.claims, b't', b'x'); os.ftruncate(kept._fd, 1 << 40)",
    "not UTF-8": "kept = notices.post(box.claims, b't', b'\\xff\\xfe')",
}
STALE = "a file with a lease, which the kernel takes from nobody for 45 s"
LEASE = """
path = f"{claims_at}/{secrets.token_hex(16)}"
kept = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
os.write(kept, b"tx")
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(kept, fcntl.F_SETLEASE, fcntl.F_WRLCK)
"""


def strict(body):
    try:
        return body.decode()
    except ValueError:
        return None


@pytest.mark.parametrize("junk", [*JUNK, STALE])
def test_whatever_else_lies_there_is_passed_over_at_once(posted, bob, box, junk):
    bob.do(LEASE if junk == STALE else named(JUNK[junk]))
    assert len(listed(box)) == 2
    for reader in (posted, bob):
        reader.do("""
def strict(body):
    try:
        return body.decode()
    except ValueError:
        return None
""")
        began = time.monotonic()
        for _ in range(2):
            seen = reader.ask("[n.uid for n in notices.read(box.claims, strict, 4)]")
            assert seen == [posted.uid]
        assert time.monotonic() - began < 30
    assert [(n.uid, n.content) for n in notices.read(box.claims, strict, MOST)] == of_alice(posted)
    bob.do("os.close(kept) if 'kept' in globals() and isinstance(kept, int) else None\n"
           "globals().pop('kept', None)")


def test_of_each_user_so_many_count_and_no_more(posted, bob, box):
    bob.do("many = [notices.post(box.claims, b't', b'many') for _ in range(9)]")
    for _ in range(2):
        assert sorted(said(box)) == sorted([*of_alice(posted), *[(bob.uid, "many")] * MOST])
    bob.do("names = sorted(m.name for m in many)\n"
           "for m in many:\n    if m.name in names[:7]: m.close()")
    assert sorted(said(box)) == sorted([*of_alice(posted), *[(bob.uid, "many")] * 2])
    bob.do("for m in many: m.close()")


def test_a_flood_hides_nothing_and_is_looked_at_once(posted, bob, box, monkeypatch):
    bob.do("""
for n in range(5000):
    open(f"{claims_at}/{secrets.token_hex(16)}", "w").close()
    os.mkdir(f"{claims_at}/any name {n}")
""")
    opened = []
    real = notices._open
    monkeypatch.setattr(notices, "_open", lambda at, name: opened.append(name) or real(at, name))
    assert said(box) == of_alice(posted)
    assert len(opened) == 5001, "names that are none of ours are not even opened"
    opened.clear()
    assert said(box) == of_alice(posted)
    assert len(opened) == 1
    bob.do("""

for name in os.listdir(claims_at):
    path = f"{claims_at}/{name}"
    if os.lstat(path).st_uid == uid:
        os.rmdir(path) if os.path.isdir(path) else os.unlink(path)
""")
    assert said(box) == of_alice(posted)
    assert len(notices._known[box.claims]) == 1, "names that are gone are forgotten"


def test_a_hard_link_counts_for_nobody_else_and_not_twice(posted, bob, box):
    """Where the kernel lets users link to others' files. Here root does it."""
    (name,) = listed(box)
    os.link(box.claims / name, box.claims / ("0" * 32))
    os.link(box.claims / name, box.claims / ("0" * 31 + "1"))
    posted.do("last = notices.post(box.claims, b't', b'another')")
    assert sorted(said(box, 2)) == sorted([*of_alice(posted), (posted.uid, "another")])
    posted.do("last.close()\nposted.close()")
    assert said(box) == []
    posted.do(POST)
    assert said(box) == of_alice(posted)


@pytest.mark.parametrize("openat2", [True, False])
def test_nothing_is_opened_across_a_mount(posted, box, monkeypatch, openat2):
    """A user's own file system (FUSE) may never answer. It can be mounted on a file of his."""
    target = box.claims / ("0" * 32)
    source = box.path / "source"
    source.write_text("")
    target.write_text("")
    if not openat2:
        monkeypatch.setattr(notices, "_openat2", lambda: None)
    elif notices._openat2() is None:
        pytest.skip("this kernel has no openat2")
    keeper = notices.post(box.path, b"t", b"from elsewhere")
    mounted = subprocess.run(["mount", "--bind", box.path / keeper.name, target],
                             capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    try:
        across = [] if openat2 else [(0, "from elsewhere")]
        assert said(box) == [*across, *of_alice(posted)]
    finally:
        subprocess.run(["umount", target], check=True)
        target.unlink()
        keeper.close()


def test_a_file_of_ones_own_that_is_not_yet_named_is_not_there(alice, box):
    """Between its making and its name nobody sees it, and nobody clears it up."""
    alice.do("real = os.link\nos.link = lambda *a, **k: 1 / 0")
    assert "ZeroDivisionError" in alice.refused(POST)
    alice.do("os.link = real")
    assert listed(box) == []


def test_too_few_descriptors_is_an_error_and_not_an_empty_folder(posted, box, monkeypatch):
    """To pass over a file for a lack of one's own would be to overlook a claim."""
    def full(at, name):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(notices, "_open", full)
        with pytest.raises(OSError, match="Too many open files"):
            read(box)
    assert said(box) == of_alice(posted)


def test_a_name_whose_file_is_another_by_now_hides_nobody(alice, bob, box):
    """Bob puts another file of his under a name that was read before, and gives back the inode,
    which the file system may give to alice. Her notice is not taken for a hard link to his."""
    bob.do("first, second = [notices.post(box.claims, b't', b'bob') for _ in range(2)]")
    assert len(said(box)) == 2
    bob.do("os.rename(f'{claims_at}/{second.name}', f'{claims_at}/{first.name}')\n"
           "os.close(first._fd)")
    alice.do("several = [notices.post(box.claims, b't', b'alice') for _ in range(4)]")
    if bob.ask("first.inode") not in alice.ask("[one.inode for one in several]"):
        pytest.skip("this file system gives an inode number to nobody else so soon")
    assert sorted(said(box)) == [*[(alice.uid, "alice")] * 4, (bob.uid, "bob")]
    alice.do("for one in several: one.close()")
    bob.do("second.name = first.name\nsecond.close()")
