"""Two launches can't take one device, however the first of them ends."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_engine.common.errors import UserError
from gpu_engine.common.paths import private_folder
from gpu_engine.devices import leases
from gpu_engine.devices.records import Device

A = Device("0", "gpu", "A100", index=0, uuid="GPU-aaaa")
B = Device("1", "gpu", "A100", index=1, uuid="GPU-bbbb")
SLOT = Device("cpu:0", "cpu", "CPU core 0", index=0)

HOLD = """
import sys, time
from pathlib import Path
from gpu_engine.devices import leases
from gpu_engine.devices.records import Device
held = leases.acquire(Path(sys.argv[1]), [Device("0", "gpu", "A100", index=0, uuid="GPU-aaaa")],
                     "3f2a", share=len(sys.argv) > 2)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def elsewhere(tmp_path):
    """Another process that holds GPU 0."""
    started = []

    def hold(*more):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path / "leases"), *more],
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "leases"


def test_who_holds_it_is_known(folder, elsewhere):
    process = elsewhere()
    (holder,) = leases.holders(folder).values()
    assert (holder.device, holder.run, holder.pid) == ("GPU-aaaa", "3f2a", process.pid)
    assert holder.label == "GPU 0"
    assert abs(holder.since - time.time()) < 60
    with pytest.raises(UserError) as caught:
        leases.acquire(folder, [A, B], "other")
    assert str(caught.value) == (f"GPU 0 is held by {holder}. Take other devices, wait until it "
                                 "ends, or share on purpose")
    assert set(leases.holders(folder)) == {"GPU-aaaa"}, "all or none"


def test_it_goes_when_closed(folder):
    with leases.acquire(folder, [A, SLOT], "one") as held:
        found = leases.holders(folder)
        assert {name: (each.pid, each.label) for name, each in found.items()} == {
            "GPU-aaaa": (os.getpid(), "GPU 0"), leases.key(SLOT): (os.getpid(), "CPU 0")}
        mine = [int(fd.name) for fd in Path("/proc/self/fd").iterdir()
                if os.path.realpath(fd).startswith(os.path.realpath(folder))]
        assert len(mine) == 1
        assert not any(map(os.get_inheritable, mine)), "a rank would hold them, too"
    assert leases.holders(folder) == {}
    held.close()


def test_ranks_do_not_keep_it(folder):
    """A rank that is left behind must not hold a lease that nobody knows of."""
    held = leases.acquire(folder, [A], "one")
    rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    held.close()
    try:
        assert leases.holders(folder) == {}
    finally:
        rank.kill()
        rank.wait()


def test_sharing_on_purpose(folder, elsewhere):
    first = elsewhere()
    with leases.acquire(folder, [A], "second", share=True):
        holder = leases.holders(folder)["GPU-aaaa"]
        assert (holder.run, [o.run for o in holder.others]) == ("3f2a", ["second"])
        assert "3f2a" in str(holder)
        assert "second" in str(holder)
        assert str(replace(holder, others=holder.others * 9)) == str(holder)
        first.kill()  # it goes with its process
        first.wait()
        assert leases.holders(folder)["GPU-aaaa"].run == "second"
        assert leases.holders(folder)["GPU-aaaa"].shared
        with pytest.raises(UserError, match="run second"):
            leases.acquire(folder, [A], "third")
        leases.acquire(folder, [A], "third", share=True).close()
        with leases.take(folder, [A], "alone", share=False):  # as one that has not seen it
            assert leases.holders(folder)["GPU-aaaa"].run == "alone"
    assert leases.holders(folder) == {}
    leases.acquire(folder, [A], "third").close()


def test_files_are_private_and_name_the_holder(folder):
    with leases.acquire(folder, [A], "one"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
        (path,) = (p for p in folder.iterdir() if p.name != "lock")
        assert json.loads(path.read_text())["run"] == "one"


def test_a_link_in_its_place_is_not_followed(folder, tmp_path):
    folder.mkdir()
    (tmp_path / "precious").write_text("kept")
    (folder / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match="lock: too many levels of symbolic links"):
        leases.acquire(folder, [A], "one")
    assert (tmp_path / "precious").read_text() == "kept"


def test_a_slot_is_of_this_machine(folder, monkeypatch):
    """The folder may be shared by machines, each of which has a cpu:0."""
    with leases.acquire(folder, [SLOT, A], "one"):
        monkeypatch.setattr(leases.socket, "gethostname", lambda: "another")
        assert leases.key(SLOT) not in leases.holders(folder)
        leases.acquire(folder, [SLOT], "two").close()
        assert "on " in str(leases.holders(folder)["GPU-aaaa"])


def test_the_line_is_in_the_order_of_names_and_keeps_what_a_dead_one_left(folder):
    private_folder(folder)
    names = [f"{at:019d}-{'0' * 7}{at}" for at in range(1, 4)]
    stamps = {leases.stamp(folder)}
    with leases.wait(folder, {"run": "b"}, names[1]) as second, \
            leases.wait(folder, {"run": "a"}, names[0]):
        (folder / "line" / names[2]).write_text('{"run": "c"}')
        for at, odd in enumerate(("{", "[]", "x" * 40_000, "[" * 9000)):
            (folder / "line" / f"{at:019d}-{'a' * 8}").write_text(odd)
        os.mkfifo(folder / "line" / f"{9:019d}-{'a' * 8}")
        (folder / "line" / f"{8:019d}-{'a' * 8}").symlink_to(folder / "line" / names[0])
        files = leases.waiting(folder)
        assert [(f.said["run"], f.live, f.mine, f.made) for f in files] == [
            ("a", True, True, 1e-9), ("b", True, True, 2e-9), ("c", False, True, 3e-9)]
        stamps.add(leases.stamp(folder))
        time.sleep(0.01)  # longer than a tick of the file system's clock
        second.close()
        stamps.add(leases.stamp(folder))
        assert len(stamps) == 3
        for _ in range(2):
            leases.forget(folder, names[2])
        assert [f.said["run"] for f in leases.waiting(folder)] == ["a"]
    assert leases.waiting(folder) == []


def test_a_hold_is_in_words_and_is_let_go_in_every_folder(folder, box):
    hold = leases.Hold(leases.new_name(), "bring it up", time.time() + 600)
    until = time.strftime("%H:%M", time.localtime(hold.until))
    with leases.acquire(folder, [A, B], None, hold=hold):
        assert {stat.S_IMODE((place / hold.name).stat().st_mode)
                for place in (folder, box.claims)} == {0o600, 0o644}
        [(file, labels)] = leases.holds(folder)
        assert (file.path.name, labels) == (hold.name, ("GPU 0", "GPU 1"))
        holder = leases.holders(folder)["GPU-bbbb"]
        assert (holder.pid, holder.until, holder.others) == (None, hold.until, ())
        assert str(holder) == f"{file.user} until {until}: bring it up"
        with pytest.raises(UserError, match=r"Take other devices, or wait until it ends$"):
            leases.acquire(folder, [A], None, hold=hold)
        for _ in range(2):
            leases.let_go(folder, hold.name)
        assert (leases.holders(folder), [*box.claims.iterdir()]) == ({}, [])
        with leases.acquire(folder, [A], "run"):
            assert leases.holds(folder) == []


def test_who_holds_it_in_words(monkeypatch):
    monkeypatch.setattr(leases.socket, "gethostname", lambda: "here")
    at = time.time() - 9e4
    told = leases.Holder("d", "3f2a", "bob", 7, "there", at)
    since = time.strftime("since %Y-%m-%d %H:%M", time.localtime(at))
    held = leases.Holder("d", user="al", why="x", until=at + 9e5)
    until = time.strftime("%b %d %H:%M", time.localtime(held.until))
    soon = time.time() + 86400 / 2 - 60
    for holder, words in [
            (leases.Holder("d"), "another run"), (leases.Holder("d", why=""), "somebody"),
            (told, f"run 3f2a of bob (pid 7, on there, {since})"),
            (replace(told, host="here"), f"run 3f2a of bob (pid 7, {since})"),
            (replace(held, until=soon), time.strftime("al until %H:%M: x", time.localtime(soon))),
            (held, f"al until {until}: x"), (replace(held, until=None), "al: x"),
            (leases.Holder("d", "a", others=(leases.Holder("d", "b"), held)),
             f"run a and run b and al until {until}: x"),
            (leases.Holder("d", why="", others=(leases.Holder("d", "b"),)), "somebody and run b")]:
        assert str(holder) == words


def test_who_has_had_the_lock_for_too_long_is_not_waited_for(folder, monkeypatch):
    monkeypatch.setattr(leases, "_LOCK_PATIENCE", 0.05)
    with leases.alone(folder), pytest.raises(UserError, match="lock: another launch, perhaps a "):
        leases.acquire(folder, [A], "one")
    leases.acquire(folder, [A], "one").close()


def test_of_many_launches_one_gets_it(folder):
    """While others look at who holds what, which must not keep anybody from taking."""
    stop = threading.Event()

    def look():
        while not stop.is_set():
            leases.holders(folder)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for thread in lookers:
        thread.start()
    try:
        for _ in range(8):
            got = []
            barrier = threading.Barrier(4)

            def launch(number, barrier=barrier, got=got):
                barrier.wait()
                try:
                    order = [A, B] if number % 2 else [B, A]
                    got.append(leases.acquire(folder, order, str(number)))
                except UserError:
                    pass

            launches = [threading.Thread(target=launch, args=(n,)) for n in range(4)]
            for thread in launches:
                thread.start()
            for thread in launches:
                thread.join()
            assert len(got) == 1
            got[0].close()
    finally:
        stop.set()
        for thread in lookers:
            thread.join()
