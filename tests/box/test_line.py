"""Who waits before whom, between users, whatever one of them writes or does."""

from __future__ import annotations

import json

import pytest

from gpu_engine.box import line
from gpu_engine.box.line import Wants

from .users import BOB

WAIT = "mine = line.take_place(box, line.Wants(count=2, free_bytes=20 << 30), '3f2a')"
AHEAD = "[o.id for o in mine.ahead()]"


def forge(user, **changes):
    """Have a user post a place in which he writes what he likes."""
    about = {"name": "0" * 32, "run": None, "pid": user.pid, "count": 1, "keys": [],
             "free_bytes": None} | changes
    user.do(f"forged = notices.post(box.line, b'p', {json.dumps(about).encode()!r})")


def test_in_the_order_of_coming(alice, bob, box):
    alice.do(WAIT)
    bob.do("mine = line.take_place(box, line.Wants(keys=('GPU-a',)))")
    first, second = alice.ask("mine.id"), bob.ask("mine.id")
    assert bob.ask(AHEAD) == [first]
    assert alice.ask(AHEAD) == []
    with line.take_place(box, Wants(count=1)) as third:
        one, two = third.ahead()
        assert {one.id, two.id} == {first, second}
        by_id = {o.id: o for o in (one, two)}
        assert by_id[first].wants == Wants(2, (), 20 << 30)
        assert by_id[second].wants == Wants(None, ("GPU-a",))
        assert (by_id[first].run, by_id[first].pid, by_id[first].uid) == (
            "3f2a", alice.pid, alice.uid)
        seen = by_id[first].seen_since
        alice.do("mine.change(line.Wants(count=1))")
        (changed,) = [o for o in third.ahead() if o.id == first]
        assert changed.wants == Wants(1)
        assert changed.seen_since == seen, "it is the same place"
        third.pass_over(second)
        assert [o.id for o in third.ahead()] == [first]
        assert len(line.look(box)) == 2
        alice.do("mine.close()")
        assert third.ahead() == []
    assert bob.ask(AHEAD) == []
    bob.do("mine.close()")
    assert not any(box.line.iterdir())


def test_ones_own_places_are_ones_own_business(alice, box):
    alice.do(f"{WAIT}\nfirst = mine\n{WAIT}")
    assert alice.ask(AHEAD) == []
    assert alice.ask("line.look(box)") == []
    assert len(line.look(box)) == 2
    alice.do("first.close()")


def test_two_at_the_same_moment_do_not_wait_for_each_other(alice, bob, box, monkeypatch):
    """Both look before either has posted."""
    real = line._post

    def post(*args):
        monkeypatch.setattr(line, "_post", real)
        alice.do(WAIT)
        return real(*args)

    monkeypatch.setattr(line, "_post", post)
    with line.take_place(box, Wants(count=1)) as mine:
        assert mine.ahead() == []
        assert alice.ask(AHEAD) == []


def test_a_place_survives_its_process(alice, bob, box):
    """Alice's waiter is started anew, as from her file. It is where it was, for her and others."""
    bob.do(WAIT)
    alice.do(WAIT)
    with line.take_place(box, Wants(count=1)) as third:
        first, second = bob.ask("mine.id"), alice.ask("mine.id")
        alice.do("saved = json.dumps(mine.to_dict())\nos.close(mine._posted._fd)")
        assert [o.id for o in third.ahead()] == [first], "who is away keeps nobody waiting"
        alice.do("mine = line.rejoin(box, json.loads(saved), line.Wants(count=3))")
        assert alice.ask("mine.id") == second
        assert alice.ask(AHEAD) == [first]
        assert {o.id for o in third.ahead()} == {first, second}
        assert len(list(box.line.iterdir())) == 3, "what the dead process left is gone"


def test_who_is_away_for_long_has_lost_his_place(alice, box, monkeypatch):
    alice.do(WAIT)
    with line.take_place(box, Wants(count=1)) as mine:
        (other,) = mine.ahead()
        alice.do("saved = mine.to_dict()\nmine.close()")
        now = line.said.boottime()
        monkeypatch.setattr(line.said, "boottime", lambda: now + line.AWAY - 1)
        assert mine.ahead() == []
        alice.do("mine = line.rejoin(box, saved, line.Wants(count=1))")
        assert [o.id for o in mine.ahead()] == [other.id]
        alice.do("mine.close()")
        monkeypatch.setattr(line.said, "boottime", lambda: now + 2 * line.AWAY + 1)
        assert mine.ahead() == []
        alice.do("mine = line.rejoin(box, saved, line.Wants(count=1))")
        assert mine.ahead() == []


@pytest.mark.parametrize("damage", [
    "None", "[]", "{}", "saved | {'boot': 'another'}", "saved | {'uid': 0}",
    "saved | {'name': '../x'}", "saved | {'before': []}", "saved | {'before': {'x': 'y'}}"])
def test_a_damaged_file_gives_a_new_place(alice, bob, box, damage):
    alice.do(f"{WAIT}\nsaved = mine.to_dict()\nmine.close()")
    bob.do(WAIT)
    alice.do(f"mine = line.rejoin(box, {damage}, line.Wants(count=1))")
    assert alice.ask(AHEAD) == [bob.ask("mine.id")]


# --- somebody hostile -----------------------------------------------------------------------------

def test_files_made_early_are_no_places(alice, bob, box):
    """Bob makes files long before, with the right content, which no process holds; later he locks
    one of them. He is behind alice."""
    bob.do("""
early = f"{line_at}/{secrets.token_hex(16)}"
with open(early, "w") as file:
    file.write('p' + json.dumps({"name": "1" * 32, "run": None, "pid": 1, "count": 1, "keys": [],
                                 "free_bytes": None}))
os.chmod(early, 0o644)
""")
    alice.do(WAIT)
    bob.do("kept = os.open(early, os.O_RDWR)\n"
           "fcntl.fcntl(kept, fcntl.F_OFD_SETLK, notices._lock(fcntl.F_WRLCK))")
    assert alice.ask(AHEAD) == []
    bob.do("os.close(kept)")


def test_a_copied_id_is_not_the_place(alice, bob, box):
    """Bob writes the id of root's place into his own: it is another one, behind alice."""
    with line.take_place(box, Wants(count=1)) as roots:
        alice.do(WAIT)
        forge(bob, name=roots.id.partition(":")[2])
        assert alice.ask(AHEAD) == [roots.id]
    assert alice.ask(AHEAD) == []
    bob.do("forged.close()")


def test_a_place_that_was_passed_over_does_not_come_back(alice, bob, box):
    """Bob never takes what is free for him. Whatever he posts then is behind alice."""
    bob.do(WAIT)
    alice.do(f"{WAIT}\nmine.pass_over(mine.ahead()[0].id)")
    bob.do("saved = mine.to_dict()\nmine.change(line.Wants(count=7))")
    assert alice.ask(AHEAD) == []
    bob.do("mine.close()\nmine = line.rejoin(box, saved, line.Wants(count=1))")
    assert alice.ask(AHEAD) == []
    bob.do(f"mine.close()\n{WAIT}")
    assert alice.ask(AHEAD) == []


def test_one_user_has_so_many_places_and_no_more(alice, bob, box):
    bob.do(f"many = []\nfor _ in range({line.MOST}):\n    {WAIT}\n    many.append(mine)")
    assert "no more count" in bob.refused(WAIT)
    bob.do("many += [notices.post(box.line, b'p', json.dumps({'name': secrets.token_hex(16), 'run':"
           " None, 'pid': 1, 'count': 1, 'keys': [], 'free_bytes': None}).encode())"
           " for _ in range(50)]")
    alice.do(WAIT)
    assert len(alice.ask(AHEAD)) == line.MOST
    bob.do("for m in many: m.close()")
    assert alice.ask(AHEAD) == []


def test_what_others_want_is_bounded_and_harmless(alice, bob, box):
    alice.do(WAIT)
    for changes in ({"count": -1}, {"count": "all"}, {"count": 10 ** 30}, {"keys": ["\x1b[2J"]},
                    {"keys": 7}, {"keys": [["x"]]}, {"free_bytes": -5}, {"free_bytes": 1 << 60},
                    {"run": 7}, {"name": "x"}, {"pid": "me"}):
        forge(bob, **changes)
        assert [o.uid for o in line.look(box)] == [alice.uid], changes
        bob.do("forged.close()")
    forge(bob, run="\x1b[31mevil\n", pid=alice.pid)
    (other,) = [o for o in line.look(box) if o.uid == BOB]
    assert (other.run, other.pid) == ("evil ", None)
    bob.do("forged.close()")
