"""The line of the waiting runs: who stands where, and what is told of one whom nobody serves."""

from __future__ import annotations

import fcntl
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_engine.runs import waiting
from gpu_engine.runs.state import State
from gpu_engine.runs.waiting import Entry, Wants

ENTRY = Entry(count=1, submitted=5.0, number=1, host="here")


@pytest.mark.parametrize(("wants", "text"), [
    (Wants(("0", "MIG-x", "1"), 3), "GPU 0, MIG-x, GPU 1"),
    (Wants(("cpu:0",), 1, cpu=True), "cpu:0"),
    (Wants(count=1, hosts=("a", "b")), "any 1 GPU on a or b"), (Wants(count=2), "any 2 GPUs"),
    (Wants(count=2, cpu=True), "any 2 CPU slots"),
    (Wants(count=2, cpu=None, free=20 << 30, hosts=("a", "any")),
     "any 2 devices with 20.0 GiB free of any host")])
def test_what_is_waited_for_in_words(wants, text):
    assert wants.text == text


@settings(max_examples=30)
@given(st.lists(st.builds(replace, st.just(ENTRY), priority=st.integers(-2, 2),
                          number=st.sampled_from([1, 1.5, 2]), submitted=st.integers(1, 3)),
                max_size=6, unique_by=id))
def test_the_line_is_sorted_and_the_same_until_somebody_comes_or_goes(tmp_path_factory, entries):
    home = tmp_path_factory.mktemp("home")
    folder, runs = home / "queue", [home / "runs" / f"{at:04x}" for at in range(len(entries))]
    for run, entry in zip(runs, entries, strict=True):
        run.mkdir(parents=True)
        waiting.enter(run)
        assert waiting.read(run) is None
        waiting.write(run, entry)
        assert waiting.read(run) == entry
    line = waiting.line(folder)
    # The higher priority first, then the lower number, then who came first.
    assert list(line) == [run.name for _, _, run in sorted(
        ((-e.priority, e.number, e.submitted), at, run)
        for at, (e, run) in enumerate(zip(entries, runs, strict=True)))]
    assert waiting.line(folder) is line
    for run in runs[:1]:
        (folder / "line" / ".nfs1").touch()
        assert waiting.line(folder) is line
        waiting.write(run, replace(entries[0], priority=9))
        assert next(iter(waiting.line(folder))) == run.name
        waiting.leave(run)
        waiting.leave(run)
        assert run.name not in waiting.line(folder)
        assert waiting.read(run) is None


def test_who_serves_it(tmp_path):
    run = tmp_path / "runs" / "1a"
    run.mkdir(parents=True)
    queued = State("queued", "1a", "x", 1.0, pid=7, ticks=8)
    assert waiting.judge(queued, run, held=False) is None
    waiting.enter(run)
    waiting.write(run, replace(ENTRY, sweep="s1"))
    alone = replace(queued, pid=None, ticks=None, reason=waiting.NOBODY)
    for state in ("queued", "starting"):
        assert waiting.judge(replace(queued, state=state), run, held=False) == alone
    assert waiting.judge(replace(queued, state="running"), run, held=False) is None
    with waiting.sweep_lock(tmp_path / "queue", "s1").open("w") as file:
        assert waiting.judge(queued, run, held=False) == alone
        fcntl.flock(file, fcntl.LOCK_EX)
        assert waiting.judge(queued, run, held=False) == replace(
            alone, reason="waits for runs ahead of it")
        last = replace(queued, reason="waits until 20:54")
        assert waiting.judge(last, run, held=False) == replace(alone, reason=last.reason)
    for before, reason in [(queued, None), (replace(alone, reason="x"), "x"),
                           (replace(alone, reason=None), "waits for its first check")]:
        assert waiting.judge(before, run, held=True) == replace(before, reason=reason)
    for odd in (replace(ENTRY, at_once=True), replace(ENTRY, sweep="../s")):
        waiting.write(run, odd)
        assert waiting.judge(queued, run, held=False) is None


def test_numbers_go_on_whatever_stands_there(tmp_path):
    assert [waiting.next_number(tmp_path / "queue") for _ in range(12)] == list(range(1, 13))
    counter = tmp_path / "queue" / "next"
    assert counter.stat().st_mode & 0o777 == 0o600
    counter.write_text("nonsense")
    assert waiting.next_number(tmp_path / "queue") == 1
    assert (tmp_path / "queue").stat().st_mode & 0o777 == 0o700
    with waiting.locked(tmp_path / "queue"), counter.open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
