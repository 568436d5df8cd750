"""Reading files that grow, shrink, are damaged, or are too long to be read whole."""

from __future__ import annotations

import os

import pytest

from gpu_engine.events import schema
from gpu_engine.events.paths import events_path
from gpu_engine.events.reader import RunReader, Tail, attempts, backwards, decoded, sample
from gpu_engine.events.writer import EventWriter, encode

from .. import event_lines

GOOD = event_lines.line("step", {"step": 1}, t=1.0)


def test_garbage_is_skipped_and_counted_and_a_shrunk_file_read_anew(tmp_path):
    path = tmp_path / "e"
    path.write_bytes(GOOD + b"garbage\n\xff\xfe\n[1]\n{}\n" + b"[" * 100_000 + b"\n"
                     + event_lines.line("step", {"step": "many"}) + GOOD)
    tail = Tail(path)
    assert [e.step for e in tail.read()] == [1, 1]
    assert tail.skipped == 6
    path.write_bytes(GOOD)
    assert len(tail.read()) == 1
    replacement = tmp_path / "new"
    replacement.write_bytes(GOOD * 50)
    replacement.replace(path)
    assert len(tail.read()) == 50
    event_lines.append(path, GOOD[:9])
    assert tail.read() == []
    path.write_bytes(GOOD)  # without the half line that was kept
    assert (len(tail.read()), tail.skipped) == (1, 6)


def test_what_is_not_known_is_no_damage(tmp_path):
    path = tmp_path / "e"
    path.write_bytes(event_lines.line("gossip", {"x": 1})
                     + event_lines.line("step", {"step": 2, "mood": "good"}))
    tail = Tail(path)
    assert [e.step for e in tail.read()] == [2]
    assert tail.skipped == 0


def test_a_lone_surrogate_costs_no_event(tmp_path):
    """As in the name of a file that is no UTF-8, which an error tells of."""
    event = decoded(encode(schema.Warning("a\udcffb\\ud \U0001f600")))
    assert event.message == "a?b\\ud \U0001f600"


def test_what_the_system_writes_in_part_is_written_on(tmp_path, monkeypatch):
    real, path = os.write, tmp_path / "e"
    writer = EventWriter(path)
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
    writer.write(GOOD, GOOD)
    monkeypatch.undo()
    writer.close()
    assert path.read_bytes() == GOOD * 2


def test_ranks_of_a_run_are_read_in_turn(tmp_path):
    (tmp_path / "ranks").mkdir()
    for rank, many in ((0, 4000), (1, 3), (2, 1)):
        event_lines.append(events_path(tmp_path, rank), *(
            event_lines.line("step", {"step": n}, t=1.0) for n in range(many)))
    reader = RunReader(tmp_path)
    assert reader.share() == 1.0
    reader.add([2, 0])
    reader.add([0, 1])
    got: dict[int, list[int]] = {0: [], 1: [], 2: []}
    first = reader.read(0.0, 1 << 12)
    assert 0.0 < reader.share() < 1.0
    assert len(first) == 1  # its time was over with the first piece
    while first:
        for rank, events in first:
            got[rank] += [e.step for e in events]
        first = reader.read(1.0, 1 << 12)
    assert {rank: len(steps) for rank, steps in got.items()} == {0: 4000, 1: 3, 2: 1}
    assert got[0] == list(range(4000))
    assert reader.share() == 1.0
    event_lines.append(events_path(tmp_path, 1), GOOD * 4000)
    event_lines.append(events_path(tmp_path, 2), GOOD * 4000)
    assert not reader.behind()  # what comes now is no past that was left unread
    turns = [reader.read(0.0, 1 << 12)[0][0] for _ in range(4)]
    assert sorted(turns) == [1, 1, 2, 2]  # none has to wait for the end of another's file
    assert reader.behind()


def test_a_line_longer_than_what_is_read_at_once_does_not_end_the_reading(tmp_path):
    (tmp_path / "ranks").mkdir()
    long = event_lines.line("warning", {"message": "x" * 900})
    event_lines.append(events_path(tmp_path, 0), long, GOOD)
    reader = RunReader(tmp_path)
    reader.add([0])
    assert sum(len(events) for _, events in reader.read(1.0, 64)) == 2


def test_a_line_without_end_is_thrown_away(tmp_path, monkeypatch):
    monkeypatch.setattr(Tail, "MAX_LINE", 1000)
    path = tmp_path / "e"
    path.write_bytes(b"x" * 1500)
    tail = Tail(path)
    assert (tail.read(), tail.skipped) == ([], 1)
    event_lines.append(path, b"x" * 900, b"\n", GOOD)
    assert [e.step for e in tail.read()] == [1]


def test_who_skips_reads_nothing_twice(tmp_path):
    path = tmp_path / "e"
    path.write_bytes(GOOD * 3)
    tail = Tail(path)
    assert len(tail.read()) == 3
    event_lines.append(path, GOOD)
    tail.skip(keep=1000)
    assert len(tail.read()) == 1
    event_lines.append(path, GOOD * 3)
    tail.skip(keep=len(GOOD) + 5)  # the first bytes are the end of a line
    assert len(tail.read()) == 1


@pytest.mark.parametrize("filler", [0, 10, 5000])
def test_the_last_of_a_kind_is_found_from_the_end(tmp_path, filler):
    path = tmp_path / "e"
    beat = event_lines.line("phase", {"phase": "data", "since": 1.0, "step": 0}, t=1.0)
    path.write_bytes(
        event_lines.line("start", {"rank": 0, "pid": 1}) + GOOD
        + event_lines.line("start", {"rank": 0, "pid": 2}) + b'{"kind":"start" broken\n'
        + beat * filler + b'{"t":1,"kind":"sta')
    assert [e.pid for e in backwards(path, schema.Start)] == [2, 1]
    found = list(backwards(path, schema.Step, schema.Phase))
    assert len(found) == filler + 1
    assert isinstance(found[-1], schema.Step)
    within = list(backwards(path, schema.Step, within=1000))
    assert bool(within) == (filler < 100)
    assert list(backwards(tmp_path / "none", schema.Start)) == []
    (tmp_path / "empty").touch()
    assert list(backwards(tmp_path / "empty", schema.Start)) == []


def test_the_steps_at_which_attempts_began(tmp_path):
    path = tmp_path / "e"
    assert list(attempts(path)) == []
    path.write_bytes(b"".join((
        event_lines.line("start", {"rank": 0}), event_lines.line("step", {"step": 4, "n": 2}),
        event_lines.line("step", {"step": 6, "n": 2}),
        event_lines.line("start", {"rank": 0, "attempt": 2}),  # which did no step
        event_lines.line("start", {"rank": 0, "attempt": 3}),
        event_lines.line("step", {"step": 5, "n": 0}), event_lines.line("step", {"step": 6}))))
    assert list(attempts(path)) == [(1, 3), (3, 6)]


def test_a_sample_has_the_beginning_the_end_and_some_of_the_middle_and_nothing_twice(tmp_path):
    path = tmp_path / "e"
    path.write_bytes(b"".join(event_lines.line("step", {"step": n}) for n in range(400)))
    steps = [e.step for e in sample(path, schema.Step, parts=3, piece=400, end=400)]
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (0, 399)
    assert any(100 < n < 300 for n in steps)
    assert len(steps) < 100
    every = [e.step for e in sample(path, schema.Step, parts=3, piece=40_000)]
    assert every == list(range(400))
