"""Leases reach all users of a machine that share a folder, and data of others misleads nobody."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from gpu_engine.common.errors import UserError
from gpu_engine.devices import leases
from gpu_engine.devices.records import Device

A = Device("0", "gpu", "A100", index=0, uuid="GPU-aaaa")
B = Device("1", "gpu", "A100", index=1, uuid="GPU-bbbb")
TAKE = """
A = Device("0", "gpu", "A100", index=0, uuid="GPU-aaaa")
lease = leases.acquire(home, [A], "3f2a")
"""
HOLDER = "str(leases.holders(home)['GPU-aaaa'])"


@pytest.fixture
def homes(place, alice, bob):
    """A home folder for each user, which nobody else can enter."""
    for user in (alice, bob):
        home = place / f"home-{user.uid}"
        home.mkdir(mode=0o700)
        os.chown(home, user.uid, user.uid)
        user.do(f"home = pathlib.Path({str(home / 'leases')!r})")
    return place


def forge(user, /, **changes):
    """Have a user make a lease in which they write what they like."""
    about = {"run": "forged", "pid": user.pid, "shared": False,
             "devices": [{"key": "GPU-aaaa", "label": "GPU 0"}]} | changes
    user.do(f"forged = make(box.claims, json.loads({json.dumps(about)!r}))")


def test_another_users_lease_is_seen_and_refuses(alice, bob, homes, tmp_path):
    alice.do(TAKE)
    mine = tmp_path / "leases"
    (holder,) = leases.holders(mine).values()
    assert str(holder).startswith(f"run 3f2a of uid {alice.uid} (pid {alice.pid}, since 20")
    assert abs(holder.since - time.time()) < 60
    with pytest.raises(UserError) as caught:
        leases.acquire(mine, [B, A], "mine")
    assert str(caught.value) == (f"GPU 0 is held by {holder}. Take other devices, wait until it "
                                 "ends, or share on purpose")
    assert f"GPU 0 is held by run 3f2a of uid {alice.uid}" in bob.refused(TAKE)
    assert bob.ask("os.listdir(home)") == ["lock"]
    assert set(leases.holders(mine)) == {"GPU-aaaa"}, "all or none"
    leases.acquire(mine, [B], "mine").close()
    with leases.acquire(mine, [A], "beside", share=True):
        first = leases.holders(mine)["GPU-aaaa"]
        assert (first.run, [h.run for h in first.others]) == ("3f2a", ["beside"])
        assert alice.ask(HOLDER).count(" and run ") == 1
        alice.do("lease.close()")
        assert "run beside" in bob.refused(TAKE), "a sharer keeps out whoever does not share"
    assert leases.holders(mine) == {}
    bob.do(TAKE + "lease.close()")


def test_it_goes_with_its_process_and_its_user_clears_up(alice, bob, box, homes):
    alice.do(f"""
ready, told = os.pipe()
child = os.fork()
if child == 0:
    {TAKE.strip().replace(chr(10), chr(10) + "    ")}
    os.write(told, b"x")
    signal.pause()
os.read(ready, 1)
""")
    assert "run 3f2a" in bob.refused(TAKE)
    alice.do("os.kill(child, 9); os.waitpid(child, 0)")
    bob.do(TAKE)
    assert f"uid {bob.uid}" in alice.ask(HOLDER)
    bob.do("lease.close()")
    assert alice.ask("(leases.holders(home), os.listdir(home), os.listdir(box.claims))") == [
        {}, ["lock"], []]


def test_two_homes_of_one_user_do_not_share_a_device(box, tmp_path):
    with leases.acquire(tmp_path / "one", [A], "first"), \
            pytest.raises(UserError, match="held by run first"):
        leases.acquire(tmp_path / "two", [A], "second")


def test_one_without_the_shared_folder_is_seen_in_its_own_home(box, tmp_path, monkeypatch):
    monkeypatch.setenv(leases.VARIABLE, "")
    with leases.acquire(tmp_path / "leases", [A], "first"):
        monkeypatch.setenv(leases.VARIABLE, str(box.path))
        with pytest.raises(UserError, match="held by run first"):
            leases.acquire(tmp_path / "leases", [A], "second")


def test_a_run_that_is_ending_is_waited_for(box, tmp_path, monkeypatch):
    """Of a killed supervisor, one file may go a moment after the other."""
    ending = leases.acquire(tmp_path / "leases", [A], "first")
    monkeypatch.setattr(leases.time, "sleep", lambda _: ending.close())
    leases.acquire(tmp_path / "leases", [A], "second").close()


STRESS = """
def round_of(seed, times):
    random.seed(seed)
    got = 0
    while got < times:
        try:
            with leases.acquire(home, [A], str(seed)):
                os.close(os.open(alone, os.O_CREAT | os.O_EXCL, 0o600))
                time.sleep(random.uniform(0, 0.002))
                os.unlink(alone)
                got += 1
        except leases.UserError as error:
            assert "is held by" in str(error), error
children = []
for seed in range(3):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            round_of(seed, TIMES)
            code = 0
        finally:
            os._exit(code)
    children.append(child)
"""


def test_real_processes_of_two_users_never_hold_it_at_once(alice, bob, box, homes):
    """Who holds it makes a file that must not be there, and some are stopped now and then."""
    alone = homes / "alone"
    alone.mkdir()
    alone.chmod(0o777)
    for user in (alice, bob):
        user.do(f"{TAKE}lease.close()")  # while the other has none of its processes yet
    for user in (alice, bob):
        user.do(f"alone = {str(alone / 'file')!r}\nTIMES = 25\n{STRESS}")
    pids = [pid for user in (alice, bob) for pid in user.ask("children")]
    for n in range(12):
        os.kill(pids[n % 6], signal.SIGSTOP)
        time.sleep(0.02)
        os.kill(pids[n % 6], signal.SIGCONT)
    for user in (alice, bob):
        assert user.ask("[os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children]") == [
            0, 0, 0]
    assert not any(box.claims.iterdir())


def test_a_full_disk_leaves_no_half_of_a_lease(box, tmp_path, monkeypatch):
    def full(folder):
        if folder == box.claims:
            raise OSError(28, "No space left on device", str(folder))

    monkeypatch.setattr(leases, "remove_temporary", full)
    with pytest.raises(UserError, match=r"claims: no space left on device.*starts without the "):
        leases.acquire(tmp_path / "leases", [A], "one")
    assert leases.holders(tmp_path / "leases") == {}
    monkeypatch.setenv(leases.VARIABLE, "")
    leases.acquire(tmp_path / "leases", [A], "one").close()


def test_a_folder_that_is_not_trusted_is_not_asked(box, tmp_path):
    with leases.acquire(tmp_path / "one", [A], "first"):
        box.claims.chmod(0o777)
        assert leases.holders(tmp_path / "two") == {}
        leases.acquire(tmp_path / "two", [A], "second").close()


# --- what stands in a file is its owner's word ----------------------------------------------------

def test_forged_owners_pids_and_times_show_nothing_false(alice, bob, homes):
    """Bob writes that he is root, alice's pid, an early time. It is his lease."""
    forge(bob, user="root", uid=0, pid=alice.pid, since=0)
    shown = alice.ask(HOLDER)
    assert shown.startswith(f"run forged of uid {bob.uid} (since 20")
    assert str(alice.pid) not in alice.refused(TAKE)


def test_texts_of_others_are_harmless(bob, box, tmp_path):
    forge(bob, run="\x1b]52;c;AAAA\x07evil\r\n\x1b[2J" + "x" * 5000, host="\x1b[2J\n",
          devices=[{"key": "GPU-aaaa", "label": "\x1b[31mGPU\u202e 0\n"}])
    (holder,) = leases.holders(tmp_path / "leases").values()
    assert holder.label.isprintable()
    assert len(holder.run) <= 200
    assert str(holder).isprintable()


@pytest.mark.parametrize("changes", [
    {"devices": "all of them"}, {"devices": None}, {"devices": []}, {"devices": [["GPU-aaaa"]]},
    {"devices": {"key": "GPU-aaaa"}}, {"devices": [{"key": 7}]}])
def test_nonsense_is_passed_over(bob, box, tmp_path, changes):
    forge(bob, **changes)
    assert "GPU-aaaa" not in leases.holders(tmp_path / "leases")


@pytest.mark.parametrize("changes", [
    {"pid": -1}, {"pid": 1.5}, {"pid": True}, {"pid": 10 ** 400}, {"pid": 1 << 40},
    {"run": ["x"]}, {"run": None}, {"host": 7}, {"shared": "yes"},
    *({"why": "x", "until": until} for until in (
        1e300, -1e18, 10 ** 400, True, "soon", 1e12, float("nan"), float("inf")))])
def test_what_is_no_fact_is_unknown(bob, box, tmp_path, changes):
    forge(bob, **changes)
    (holder,) = leases.holders(tmp_path / "leases").values()
    assert holder.until is None
    assert str(holder).isprintable()
    assert holder.user == f"uid {bob.uid}"
    assert holder.pid in (None, bob.pid)
