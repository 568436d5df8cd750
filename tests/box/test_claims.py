"""Users take devices without locks between them, and see who holds what."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from gpu_engine.box import claims, notices, said
from gpu_engine.box.claims import Taken
from gpu_engine.common.errors import UserError

from .users import BOB

GPU = {"GPU-a": "GPU 0"}
BOTH = GPU | {"GPU-b": "GPU 1"}
TAKE = "held = claims.take(box, {'GPU-a': 'GPU 0'}, '3f2a')"


def forge(user, /, **changes):
    """Have a user post a claim in which he writes what he likes."""
    about = {"name": "0" * 32, "run": "forged", "pid": user.pid, "since": 1.0, "shared": False,
             "devices": [["GPU-a", "GPU 0"]]} | changes
    user.do(f"forged = notices.post(box.claims, b'h', {json.dumps(about).encode()!r})")
    return about


def test_all_or_none_and_the_refusal_says_who(alice, bob, box):
    alice.do(TAKE)
    (holder,) = claims.holders(box)["GPU-a"]
    assert (holder.uid, holder.run, holder.pid) == (alice.uid, "3f2a", alice.pid)
    assert abs(holder.since - time.time()) < 60
    error = bob.refused("claims.take(box, {'GPU-b': 'GPU 1', 'GPU-a': 'GPU 0'}, 'other')")
    assert error.startswith("Taken: GPU 0 is held by run 3f2a of "), error
    assert f"of uid {alice.uid} (pid {alice.pid}, since 20" in error
    assert set(claims.holders(box)) == {"GPU-a"}
    bob.do("more = claims.take(box, {'GPU-b': 'GPU 1'}, 'other')")
    assert set(claims.holders(box)) == {"GPU-a", "GPU-b"}
    alice.do("held.close()\nheld.close()")
    assert set(claims.holders(box)) == {"GPU-b"}
    bob.do("more.close()")
    assert not any(box.claims.iterdir())


def test_it_goes_with_its_process(alice, bob, box):
    alice.do(f"""
ready, told = os.pipe()
child = os.fork()
if child == 0:
    {TAKE}
    os.write(told, b"x")
    signal.pause()
os.read(ready, 1)
""")
    assert "Taken" in bob.refused(TAKE)
    alice.do("os.kill(child, 9); os.waitpid(child, 0)")
    bob.do(TAKE)
    (holder,) = claims.holders(box)["GPU-a"]
    assert holder.uid == bob.uid


def test_another_home_of_the_same_user_is_refused_too(alice, box):
    alice.do(TAKE)
    assert "Taken" in alice.refused(TAKE)


def test_sharing_on_purpose(alice, bob, box):
    alice.do(TAKE)
    bob.do("more = claims.take(box, {'GPU-a': 'GPU 0'}, 'second', share=True)")
    assert [(h.uid, h.shared) for h in claims.holders(box)["GPU-a"]] == [
        (alice.uid, False), (bob.uid, True)]
    alice.do("held.close()")
    assert "run second" in alice.refused(TAKE), "a sharer keeps out whoever does not share"
    alice.do("held = claims.take(box, {'GPU-a': 'GPU 0'}, 'third', share=True)")
    assert len(claims.holders(box)["GPU-a"]) == 2


STRESS = """
def round_of(seed, times):
    random.seed(seed)
    got = 0
    while got < times:
        try:
            with claims.take(box, {'GPU-a': 'GPU 0'}, str(seed)):
                os.close(os.open(alone, os.O_CREAT | os.O_EXCL, 0o600))
                time.sleep(random.uniform(0, 0.002))
                os.unlink(alone)
                got += 1
        except claims.Taken:
            time.sleep(random.uniform(0, 0.01))
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


def test_real_processes_of_two_users_never_hold_it_at_once(alice, bob, box, place):
    """Who holds it makes a file that must not be there, and some are stopped now and then."""
    alone = place / "alone"
    alone.mkdir()
    alone.chmod(0o777)
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
    assert claims.holders(box) == {}


# --- somebody hostile -----------------------------------------------------------------------------

def test_forged_owners_pids_and_times_show_nothing_false(alice, bob, box):
    """Bob writes that he is alice: another name, her pid, an early time. It is his claim."""
    forge(bob, user="root", uid=0, pid=alice.pid, since=0)
    (holder,) = claims.holders(box)["GPU-a"]
    assert (holder.uid, holder.user, holder.pid) == (BOB, f"uid {BOB}", None)
    error = alice.refused(TAKE)
    assert f"of uid {BOB}" in error
    assert str(alice.pid) not in error


def test_a_claim_of_early_time_takes_nothing_from_who_holds(alice, bob, box):
    """No order follows from what is written: alice keeps the device, and everybody sees both."""
    alice.do(TAKE)
    forge(bob, since=0)
    assert [h.uid for h in claims.holders(box)["GPU-a"]] == [bob.uid, alice.uid]
    alice.do("held._posted.mark(b'h')")
    bob.do("forged.close()")
    assert [h.uid for h in claims.holders(box)["GPU-a"]] == [alice.uid]


def test_whoever_only_tries_for_ever_is_named_after_a_while(alice, bob, box, monkeypatch):
    """With the least of all names. He is taken for one who holds it, and keeps nobody waiting."""
    about = forge(bob)
    bob.do("forged.mark(b't')")
    monkeypatch.setattr(claims, "_LONGER", 0.1)
    with pytest.raises(Taken) as caught:
        claims.take(box, GPU, "mine", patience=0.1)
    assert f"run forged of uid {BOB}" in str(caught.value)
    assert [h.uid for h in caught.value.holders] == [BOB]
    bob.do("forged.close()")
    forge(bob, name="f" * 32)
    bob.do("forged.mark(b't')")
    with pytest.raises(Taken):
        claims.take(box, GPU, "mine", patience=0.1)
    claims.take(box, GPU, "mine", share=True).close()
    bob.do("forged.close()")
    claims.take(box, GPU, "mine").close()
    assert about["run"] == "forged"


def test_a_link_to_ones_own_claim_is_not_anothers(alice, box):
    """Where users may link to others' files: the alias has another name, but the same inode."""
    real = notices.post

    def post(folder, mark, content):
        posted = real(folder, mark, content)
        os.link(folder / posted.name, folder / ("0" * 32))
        return posted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(notices, "post", post)
        claims.take(box, GPU, "mine").close()


def test_a_clock_that_is_set_changes_no_more_than_what_is_shown(alice, bob, box):
    """Half a century back, and forth again, in the middle of it."""
    alice.do("real = time.time\ntime.time = lambda: real() - 5e8\n" + TAKE)
    bob.do("real = time.time\ntime.time = lambda: -1.5")
    assert "is held by run 3f2a" in bob.refused(TAKE)
    assert abs(claims.holders(box)["GPU-a"][0].since - time.time()) < 60
    alice.do("time.time = real\nheld.close()")
    bob.do("time.time = real\n" + TAKE)
    alice.do("time.time = lambda: 1e11")
    assert "is held by" in alice.refused(TAKE)
    alice.do("time.time = real")


NONSENSE = [
    {"devices": "all of them"}, {"devices": None}, {"devices": []}, {"devices": [["GPU-a"]]},
    {"devices": [[7, "GPU 0"]]}, {"devices": [["x" * 201, "GPU 0"]]}, {"name": "../../etc"},
    {"devices": {"GPU-a": "GPU 0"}}, {"devices": [["a\x1b[31mb", "GPU 0"]]}, {"name": None},
    {"pid": -1}, {"pid": 1.5}, {"pid": True}, {"pid": 10 ** 400}, {"since": "early"},
    {"since": -1}, {"since": 10 ** 400}, {"since": float("nan")}, {"since": float("inf")},
    {"run": ["x"]}]


def test_nonsense_is_passed_over(alice, bob, box):
    for changes in NONSENSE:
        forge(bob, **changes)
        assert set(claims.holders(box)) <= {"GPU-a"}, changes
        if changes != {"devices": []}:
            assert claims.holders(box) == {}, changes
        bob.do("forged.close()")
    for body in (b"", b"{}", b"[]", b"null", b"[" * 20000, b'{"a":' * 5000, b"\xff", b"1" * 5000):
        bob.do(f"forged = notices.post(box.claims, b'h', {body!r})")
        assert claims.holders(box) == {}, body[:20]
        bob.do("forged.close()")


def test_texts_of_others_are_harmless(alice, bob, box):
    forge(bob, run="\x1b]52;c;AAAA\x07evil\r\n\x1b[2J" + "x" * 5000,
          devices=[["GPU-a", "\x1b[31mGPU\u202e 0\n"]])
    (holder,) = claims.holders(box)["GPU-a"]
    assert holder.label.isprintable()
    assert holder.run is not None
    assert holder.run.isprintable()
    assert len(holder.run) <= said.LONGEST
    assert str(holder).isprintable()


def test_too_many_claims_of_one_user_are_his_own_trouble(alice, bob, box):
    bob.do("many = [notices.post(box.claims, b'h', json.dumps({'name': secrets.token_hex(16),"
           "'run': None, 'pid': 1, 'since': 0, 'shared': True, 'devices': [['GPU-c', '']]}"
           f").encode()) for _ in range({claims.MOST + 4})]")
    assert len(claims.holders(box)["GPU-c"]) == claims.MOST
    assert "end some of your runs" in bob.refused(TAKE)
    alice.do(TAKE)
    assert len(claims.holders(box)["GPU-a"]) == 1
    bob.do("for m in many: m.close()")


def test_what_can_not_be_written_is_an_error(box):
    with pytest.raises(UserError, match="too many"):
        claims.take(box, {str(n): "" for n in range(129)}, "mine")
    box.claims.rmdir()
    with pytest.raises(OSError, match="claims"):
        claims.take(box, GPU, "mine")
    with pytest.raises(OSError, match="claims"):
        claims.holders(box)
