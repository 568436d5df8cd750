"""What comes from another machine: answers as they were recorded are read, what is odd is refused,
and texts are harmless."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.remote.reach import protocol
from gpu_engine.remote.reach.hosts import Host
from gpu_engine.remote.reach.protocol import BadMessage, Piece, Told, loaded, typed
from gpu_engine.remote.run.nodes import Checkup, Machine
from gpu_engine.remote.run.removal import Outcome

FOLDER = Path(__file__).parent
RECORDED = json.loads((FOLDER / f"wire_{protocol.VERSION}.json").read_text())
"""By command what it has answered, once with each number of the wire: older programs with the same
number answer so."""
KINDS: dict[str, tuple[Any, ...]] = {
    "devices": (protocol.Welcome, protocol.Looked), "plan": (protocol.Checked,),
    "errors": (dict[str, list[protocol.Fault]],), "run": (protocol.Started,),
    "follow": (Told, Piece, Told), "stacks": (list[protocol.Asked],),
    "trace": (list[protocol.Asked],), "stop": (protocol.Stopped,), "runs rm": (list[Outcome],),
    "export": (protocol.Chosen,), "port": (protocol.Listening,), "port tried": (protocol.Reached,),
    "receive": (protocol.CodeKept,)}
ANSWERS = [pair for name, kinds in KINDS.items()
           for pair in zip(RECORDED[name], kinds, strict=True)]
WELCOME = typed(RECORDED["devices"][0], protocol.Welcome)
STATE = RECORDED["follow"][2]


def read(answer: object, kind: Any) -> Any:
    """As from a line of the wire."""
    return typed(loaded(json.dumps(answer).encode()), kind)


def plain(found: Any) -> Any:
    """As JSON has it."""
    return json.loads(json.dumps(msgspec.to_builtins(found), allow_nan=False))


def holds(found: Any, recorded: Any) -> bool:
    """Whether all that was read stood there."""
    if isinstance(found, dict) and isinstance(recorded, dict):
        return all(holds(value, recorded[key]) for key, value in found.items() if key in recorded)
    return found == recorded if not isinstance(found, list) else all(map(holds, found, recorded))


def test_every_answer_of_this_wire_is_read_as_it_was_recorded():
    assert KINDS.keys() == RECORDED.keys()
    for answer, kind in ANSWERS:
        found = plain(read(answer, kind))
        assert holds(found, answer), (found, answer)
    assert read(RECORDED["follow"][1], Piece).data == b"hello\n\xff\n"


@given(st.sampled_from([pair for pair in ANSWERS if isinstance(pair[0], dict)]), st.data())
def test_an_answer_with_one_odd_value_is_read_or_refused(pair, data):
    """Refused, or a record whose every value is of its type: nothing odd gets in."""
    answer, kind = dict(pair[0]), pair[1]
    name = data.draw(st.sampled_from([*sorted(answer), "newer"]))
    answer[name] = data.draw(st.none() | st.booleans() | st.integers() | st.text(max_size=5)
                             | st.lists(st.integers(), max_size=3) | st.just({}) | st.just(1e400)
                             | st.just(10 ** 30))
    try:
        found = read(answer, kind)
    except BadMessage:
        return
    again = msgspec.to_builtins(found, builtin_types=(bytes,))
    assert msgspec.convert(again, kind) == found


@pytest.mark.parametrize(("line", "kind"), [
    (b'{"state":"running","id":"a","name":"b"}', Told),
    (b'{"state":"gone","id":"a","name":"b","created":1}', Told),
    *((line, protocol.Listening) for line in (
        b"{}", b"[]", b"", b"null", b'{"port":NaN}', b'{"port":1.5}', b'{"port":1e999}',
        b'{"port":true}', b'{"port":9223372036854775808}', b"[" * 100000)),
    *((line, Piece) for line in (
        b'{"name":"a","offset":0}', b'{"name":"a","offset":-1,"text":""}',
        b'{"name":"a","offset":0,"text":3}', b'{"name":"a","offset":0,"text":"\\ud800"}')),
    (b'{"snapshot":{"taken":1e301,"samples":[]}}', protocol.Looked),
    (b'{"cwd":"/","warnings":[' + b'"a",' * 4096 + b'"a"]}', protocol.Checked),
    (b'[{"why":"x","value":' + b'{"a":' * 20 + b"1" + b"}" * 20 + b"}]", list[protocol.Fault]),
    (b'{"path":"' + b"x" * (1 << 17) + b'"}', protocol.CodeKept)])
def test_odd_answers_are_refused(line, kind):
    with pytest.raises(BadMessage):
        typed(loaded(line), kind)


def test_for_scripts_a_checkup_is_plain_values():
    there = Machine(Host("h"), WELCOME, WELCOME.inventory, 0.1, 0.5)
    told = Checkup(there.host, there, ()).to_dict()
    assert told.keys() == {"host", "opened", "welcome", "inventory", "clock", "problems", "ok"} \
        == Checkup(Host("h"), None, ("away",)).to_dict().keys()
    assert plain(told["welcome"]) == {name: value for name, value in RECORDED["devices"][0].items()
                               if name not in ("kind", "inventory", "code")}
    json.dumps(told, allow_nan=False)


def test_texts_that_come_from_a_host_are_harmless():
    odd = "a\x1b]52;c;ZWNobw==\x07b\x1b[2J\u202ec\nsecond\x9b31m line"
    found = read(STATE | {"reason": odd, "cause": {"message": odd}}, Told)
    for text in (found.reason, found.cause.message):
        assert text == "abc\nsecond line"


def test_figures_that_are_not_numbers_are_unknown():
    look = json.loads(json.dumps(RECORDED["devices"][1]))
    look["snapshot"]["samples"][0]["utilization"] = float("nan")
    assert read(look, protocol.Looked).snapshot.samples[0].utilization is None
