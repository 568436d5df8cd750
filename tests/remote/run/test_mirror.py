"""Files of a host, here: the same bytes, under names of ours alone, and no more than may be."""

from __future__ import annotations

import json
import threading
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.events.paths import DEVICES, devices_paths
from gpu_engine.remote.reach.call import Unreachable
from gpu_engine.remote.reach.protocol import BadMessage, Piece, typed
from gpu_engine.remote.run import link
from gpu_engine.remote.run.link import Mirror
from gpu_engine.remote.run.parts import Base, Part
from gpu_engine.remote.there.follow import _Sender
from gpu_engine.runs import disk_room
from gpu_engine.runs.folder import Run

PART = Part(host="gpu1", node=1, ranks=(2, 3), spec={}, folders=(), key="k")
EVENTS, LOG = "ranks/00002.jsonl", "ranks/00003.log"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "here" / "ranks").mkdir(parents=True)
    (tmp_path / "there" / "ranks").mkdir(parents=True)
    return tmp_path / "here"


def send(sender: _Sender, to: Mirror) -> None:
    sender.find()
    while pieces := list(sender.pieces()):
        for piece in pieces:
            to.append(typed(json.loads(json.dumps(piece)), Piece))


@given(st.lists(st.tuples(st.sampled_from(["write", "cut", "break", "send"]),
                          st.binary(max_size=600)), max_size=12))
def test_whatever_happens_there_it_is_the_same_here(tmp_path_factory, steps):
    """Written to, cut as logs are, with connections that break between any two pieces."""
    folder = tmp_path_factory.mktemp("m")
    here, there = folder / "here", Run(folder / "there")
    for path in (here, there.path):
        (path / "ranks").mkdir(parents=True)
    to = Mirror(here, PART, 1 << 20)
    sender = _Sender(there, to.at())
    for what, data in steps:
        if what == "write":
            for name in (EVENTS, LOG):
                with (there.path / name).open("ab") as file:
                    file.write(data)
        elif what == "cut" and (there.path / LOG).exists():
            send(sender, to)
            (there.path / LOG).write_bytes(data[:100])
        elif what == "break":
            to = Mirror(here, PART, 1 << 20)
            sender = _Sender(there, to.at())
        else:
            send(sender, to)
    send(_Sender(there, to.at()), to)
    for name in (EVENTS, LOG):
        if (there.path / name).exists() and (there.path / name).stat().st_size:
            assert (here / name).read_bytes() == (there.path / name).read_bytes()


def test_a_rank_that_comes_from_another_host_goes_on_where_that_one_stopped(here):
    """And what the host has of ranks that it had earlier does not come."""
    there = Run(here.parent / "there")
    (here / EVENTS).write_bytes(b"of another host\n")
    for rank in (1, 2, 3):
        (there.path / f"ranks/{rank:05d}.jsonl").write_bytes(b"%d\n" % rank * 200)
    part = replace(PART, bases=(Base(2, 16),))
    to = Mirror(here, part, 1 << 20)
    send(_Sender(there, to.at(), part.ranks, part.node), to)
    with (there.path / EVENTS).open("ab") as file:
        file.write(b"more\n")
    to = Mirror(here, part, 1 << 20)
    assert to.at()[0].offset == 400
    send(_Sender(there, to.at(), part.ranks, part.node), to)
    assert (here / EVENTS).read_bytes() == b"of another host\n" + b"2\n" * 200 + b"more\n"
    assert sorted(p.name for p in (here / "ranks").iterdir()) == ["00002.jsonl", "00003.jsonl"]

    (there.path / EVENTS).write_bytes(b"anew\n")  # begun anew there
    send(_Sender(there, to.at(), part.ranks, part.node), to)
    assert (here / EVENTS).read_bytes() == b"of another host\nanew\n"


@pytest.mark.parametrize("name", [
    "../spec.toml", "ranks/../state.json", "/etc/passwd", "state.json", "plan.json", "lock",
    "ranks/00001.jsonl", "ranks/00004.log", "ranks/2.jsonl", "node0.log", "ranks/00002.jsonl\n",
    "ranks/00002.JSONL", "hosts/gpu1.json", "", ".", "ranks/00002.jsonl/../x",
    "supervisor.log.1",
    "\x1b]0;x\x07", "ranks/\u0660\u0660\u0660\u0660\u0662.jsonl"])
def test_a_name_that_is_none_of_its_own_is_refused(here, name):
    before = sorted(p for p in here.parent.rglob("*"))
    with pytest.raises(BadMessage):
        Mirror(here, PART, 1 << 20).append(Piece(name, 0, b"x"))
    assert sorted(p for p in here.parent.rglob("*")) == before


def test_its_own_names_are_taken(here):
    to = Mirror(here, PART, 1 << 20)
    for name in (EVENTS, LOG, "node1.log", "supervisor.log"):
        to.append(Piece(name, 0, b"text\n"))
    assert (here / "hosts/gpu1.log").read_bytes() == b"text\n"
    assert all((here / name).read_bytes() == b"text\n" for name in (EVENTS, LOG, "node1.log"))
    assert not (here / "supervisor.log").exists()


def test_a_link_that_lies_in_the_way_is_not_followed(here):
    (here / EVENTS).symlink_to(here.parent / "elsewhere")
    with pytest.raises(OSError, match="it is a link"):
        Mirror(here, PART, 1 << 20).append(Piece(EVENTS, 0, b"x"))
    assert not (here.parent / "elsewhere").exists()


@pytest.mark.parametrize("offset", [1, 5, 1 << 60])
def test_bytes_that_do_not_go_on_where_the_file_ends_are_refused(here, offset):
    to = Mirror(here, PART, 1 << 20)
    to.append(Piece(EVENTS, 0, b"abc"))
    with pytest.raises(BadMessage, match="3 are here"):
        to.append(Piece(EVENTS, offset, b"x"))
    assert (here / EVENTS).read_bytes() == b"abc"


def test_files_without_end_are_refused(here, monkeypatch):
    monkeypatch.setattr(link, "MOST_EVENTS", 150)
    to = Mirror(here, PART, -(16 << 20) + 30)
    for name in (EVENTS, LOG):
        to.append(Piece(name, 0, b"x" * 100))
        with pytest.raises(BadMessage, match=r"more than 1[25]0"):
            to.append(Piece(name, 100, b"x" * 100))


def test_a_place_says_what_stands_before_it(here):
    to = Mirror(here, PART, 1)
    to.append(Piece(EVENTS, 0, b"abc" * 200))
    at, = to.at()
    assert (at.name, at.offset, at.checked) == (EVENTS, 600, 256)
    assert at.crc == zlib.crc32((b"abc" * 200)[-256:])


def test_the_figures_of_its_devices_go_on_where_they_are_here(here: Path) -> None:
    there = Run(here.parent / "there")
    path, to = there.path / DEVICES, Mirror(here, PART, 1 << 20)
    path.write_bytes(b"one\n")
    send(_Sender(there, to.at(), PART.ranks, PART.node), to)
    with path.open("ab") as file:
        file.write(b"two\n")
    sent = [a for a in to.at() if a.name == DEVICES]
    assert [a.offset for a in sent] == [4]
    send(_Sender(there, to.at(), PART.ranks, PART.node), to)  # as after a broken connection
    mine = devices_paths(here)["gpu1"]
    assert mine == here / "hosts" / f"gpu1.{DEVICES}"
    assert mine.read_bytes() == b"one\ntwo\n"


def test_a_host_leaves_room_on_the_disk(here, monkeypatch):
    """What it has written is gone on with as soon as there is room."""
    to, free = Mirror(here, PART, 1 << 20), link.FLOOR + 10
    monkeypatch.setattr(disk_room, "of", lambda folder: disk_room.Room(str(folder), free))
    to.append(Piece(EVENTS, 0, b"x" * 10))
    with pytest.raises(OSError, match="512 MiB would be free on the disk"):
        to.append(Piece(EVENTS, 10, b"y" * 11))
    free = link.FLOOR * 2
    assert [at.offset for at in to.at()] == [10]
    to.append(Piece(EVENTS, 10, b"y" * 20))
    assert (here / EVENTS).stat().st_size == 30


def test_a_break_is_told_since_it_began_and_the_next_one_anew(here, monkeypatch):
    way, told = link.Link(here, PART, 1 << 20, threading.Event()), []
    clock, opens = iter(range(1, 99)), iter([False, False, True, False])

    def note(*_):
        told.append(way.part.since)
        if len(told) == 5:
            way._given_up.set()

    def serve(host):
        if next(opens):
            way._note(problem=None, since=None)
            note()
        raise Unreachable("gpu1", "no answer")

    monkeypatch.setattr(link.parts, "host_of", lambda run, part: None)
    monkeypatch.setattr(link, "time", SimpleNamespace(time=lambda: next(clock),
                                                      monotonic=lambda: 0.0))
    monkeypatch.setattr(way, "_serve", serve)
    way._wake = SimpleNamespace(wait=note, clear=lambda: None)
    way.run()
    assert told == [1, 1, None, 2, 2]
