"""Digests of long events files: they say what the events say, or they are not used."""

from __future__ import annotations

import fcntl
import json
import math
import os
import random
import zlib
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.events import downsample, run_reader, schema
from gpu_engine.events.downsample import Digester
from gpu_engine.events.paths import DIGESTED, digest_path, events_path
from gpu_engine.events.reader import Tail
from gpu_engine.events.run_reader import RunReader
from gpu_engine.events.view import RunView
from gpu_engine.runs import downsampling as digests
from gpu_panel.run.store import RunStore

from .. import event_lines
from ..event_lines import line


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Files of some kilobytes are long."""
    for module in downsample, digests:
        monkeypatch.setattr(module, "DIGESTED", 2000)
    monkeypatch.setattr(run_reader, "AT_ONCE", 4)
    for name in "_PIECE", "_END":
        monkeypatch.setattr(downsample, name, 600)


def a_run(folder: Path, seed: int, events: int, odd: float = 0.02) -> Path:
    """The events file of rank 0 in a run folder, with events of all kinds."""
    rng, t, step, out = random.Random(seed), 1000.0, 0, []
    out.append(line("start", {"rank": 0, "local_rank": 0, "node": 0, "pid": 7, "started": 1,
                              "world_size": 1, "device": ["CPU 0"], "attempt": 1}, t=t))
    for _ in range(events):
        t += rng.choice((0.1, 0.1, 0.5))
        kind = rng.random()
        if kind < odd:
            out.append(rng.choice((
                line("metric", {"step": step, "accuracy": rng.random()}, t=t),
                line("eval", {"step": step, "loss": rng.random()}, t=t),
                line("checkpoint", {"step": step, "path": "x", "seconds": 1.0, "bytes": 9}, t=t),
                line("phase", {"phase": "checkpoint", "since": t, "step": step, "done": 5}, t=t),
                line("step", {"step": step + 1, "lr": 0.1, "skipped": 0, "loss": math.nan,
                              "losses": [math.nan]}, t=t),
                b"{half a line\n", b"\n")))
            step += out[-1].count(b"NaN") // 2
        elif kind < odd + 0.1:
            out.append(line("memory", {"rss": rng.randrange(10**9), "gpu_allocated": [
                rng.randrange(10**9)]}, t=t))
        elif kind < odd + 0.2:
            out.append(line("phase", {"phase": "forward", "since": t, "step": step}, t=t))
        elif kind < odd + 0.21:
            step = max(step - 7, 0)  # an attempt goes back
        else:
            n = rng.choice((1, 3, 20, 100))
            losses = [round(rng.gauss(2.0, 0.1), 6) for _ in range(n)]
            step += n
            out.append(line("step", {
                "step": step, "lr": 0.1 / step, "skipped": 0, "n": n, "epoch": step // 100,
                "loss": sum(losses) / n, "samples_per_s": rng.uniform(90, 110), "data_wait": 0.1,
                **({"losses": losses} if n <= 20 else {
                    "loss_min": min(losses), "loss_max": max(losses), "loss_last": losses[-1]}),
            }, t=t))
    path = events_path(folder, 0)
    path.parent.mkdir(exist_ok=True)
    event_lines.append(path, *out)
    return path


def all_of(digester: Digester) -> None:
    while digester.advance():
        pass


def told(folder: Path) -> tuple[RunView, RunStore, RunReader]:
    """What is known of a run after everything was read by its reader."""
    reader, store = RunReader(folder), RunStore(SimpleNamespace(path=folder))
    reader.add([0])
    while (fresh := reader.read(10.0, 1500)) or reader.cut_short:
        store.fold(fresh)
    return store.view, store, reader


def exact(path: Path) -> RunView:
    """The same by every line."""
    view, tail = RunView(), Tail(path)
    while events := tail.read():
        for event in events:
            view.fold(0, event)
    return view


def same(view: RunView, other: RunView) -> None:
    for one, another in zip(view.ranks.values(), other.ranks.values(), strict=True):
        first, second = one.to_dict(), another.to_dict()
        for told in first, second:  # those of a block are means
            assert told.pop("samples_per_s") in (None, pytest.approx(100, abs=10))
            assert told.pop("data_wait") in (None, pytest.approx(0.1))
        assert first == second
    assert (view.bad_step, view.saved, view.evaluations, view.begins, view.attempt) == (
        other.bad_step, other.saved, other.evaluations, other.begins, other.attempt)


def blocks(path: Path) -> list[downsample.Block]:
    return list(downsample.blocks(path))


@given(seed=st.integers(0, 10**6), events=st.integers(0, 150),
       odd=st.sampled_from((0.0, 0.02, 0.2)))
def test_a_digest_says_what_the_events_say(tmp_path_factory, seed, events, odd):
    folder = tmp_path_factory.mktemp("run")
    path = a_run(folder, seed, events, odd)
    plain_view, plain, _ = told(folder)
    all_of(Digester(path))
    view, store, reader = told(folder)
    same(view, exact(path))
    same(plain_view, exact(path))
    assert reader.share() == 1.0
    for one, other in (store.loss.all, plain.loss.all), (store.loss.ranks.get(0),
                                                         plain.loss.ranks.get(0)):
        if other is not None and len(other):
            assert one is not None
            assert (one.last, one.bad_at) == (other.last, other.bad_at)
    for known in store.loss, plain.loss:
        assert not len(known.all) or known.all.last == exact(path).ranks[0].step


def test_blocks_hold_the_least_greatest_mean_and_last_of_their_losses(tmp_path):
    path = a_run(tmp_path, 5, 300, odd=0.0)
    all_of(Digester(path))
    data, found = path.read_bytes(), blocks(path)
    assert sum(b.events for b in found) > 150
    assert found[-1].end <= len(data) - 600
    for block in found:
        events = [json.loads(x) for x in data[block.begin:block.end].splitlines()]
        assert block.events == len(events)
        steps = [e for e in events if e["kind"] == "step"]
        one = block.step
        assert (one is None) == (not steps)
        if one is not None:
            low = [min(e.get("losses") or [e["loss_min"]]) for e in steps]
            high = [max(e.get("losses") or [e["loss_max"]]) for e in steps]
            n = sum(e["n"] for e in steps)
            assert (one.loss_min, one.loss_max, one.n) == (min(low), max(high), n)
            assert one.loss == pytest.approx(sum(e["loss"] * e["n"] for e in steps) / n)
            assert one.loss_last == steps[-1].get("loss_last", [*steps[-1].get("losses", [0])][-1])
            assert (one.t, one.step, one.lr) == tuple(steps[-1][k] for k in ("t", "step", "lr"))
            # Steps that follow each other; what an attempt does again is in no block.
            assert [e["step"] - e["n"] for e in steps[1:]] == [e["step"] for e in steps[:-1]]
        fullest = max((e["gpu_allocated"][0] for e in events if e["kind"] == "memory"), default=0)
        assert max((m.gpu_allocated[0] for m in block.memory), default=0) == fullest


def test_blocks_grow_with_what_is_before_them(tmp_path, monkeypatch):
    """So a run that is ten times as long has not ten times as many, and none is as wide as a dot
    of a chart."""
    monkeypatch.setattr(downsample, "_LEAST", 100)
    monkeypatch.setattr(downsample, "FEWEST", 1)
    path = a_run(tmp_path, 12, 5000, odd=0.0)
    all_of(Digester(path))
    sizes = {at: [b.end - b.begin for b in blocks(path) if b.begin // 100_000 == at]
             for at in (0, 2, 4)}
    assert all(sizes.values())
    # The line that makes a block large enough is still in it.
    assert all(size <= max(100, (at + 1) * 100_000 // 512) + 1500
               for at, each in sizes.items() for size in each)
    assert sorted(sizes[4])[len(sizes[4]) // 2] > 400_000 // 512


def test_a_block_is_never_larger_than_what_is_digested_at_once(tmp_path, monkeypatch):
    """Otherwise it would be begun again and again."""
    for name in "_LEAST", "_WHOLE":
        monkeypatch.setattr(downsample, name, 5000)
    path = a_run(tmp_path, 13, 3000, odd=0.0)
    digester = Digester(path)
    while digester.advance(7000):
        pass
    found = blocks(path)
    assert max(b.end - b.begin for b in found) in range(5000, 6000)
    assert found[-1].end > path.stat().st_size - 600 - 6000
    assert downsample._WHOLE + downsample._LONGEST < digests._AT_ONCE


def test_most_of_a_long_file_is_not_read(tmp_path, monkeypatch):
    path = a_run(tmp_path, 1, 3000, odd=0.0)
    all_of(Digester(path))
    read = []
    lines_of = Tail._lines_of
    monkeypatch.setattr(Tail, "_lines_of", lambda self, file, limit: (
        found := lines_of(self, file, limit), read.append(sum(map(len, found))))[0])
    view, _, _ = told(tmp_path)
    assert sum(read) < path.stat().st_size / 5
    same(view, exact(path))


@pytest.mark.parametrize("seed", range(5))
def test_as_the_file_grows_the_digest_does_by_whole_blocks(tmp_path, seed):
    (tmp_path / "whole").mkdir()
    data = a_run(tmp_path / "whole", seed, 400).read_bytes()
    (tmp_path / "ranks").mkdir()
    path, rng = events_path(tmp_path, 0), random.Random(seed)
    digester, at = Digester(path), 0
    while at < len(data):
        size = rng.randrange(1, 4000)
        event_lines.append(path, data[at:at + size])
        at += size
        if rng.random() < 0.2:
            digester = Digester(path)  # as after a restart
            with digest_path(path).open("ab") as file:
                file.write(rng.choice((b"", b"12345678 {\"beg")))
        digester.advance(rng.randrange(1, 9000))
        view, _, _ = told(tmp_path)
        same(view, exact(path))
    all_of(digester)
    found = blocks(path)
    assert all(one.end <= other.begin for one, other in pairwise(found))
    assert len(found) > 5


def test_two_do_not_digest_the_same_file(tmp_path):
    path = a_run(tmp_path, 2, 500)
    first, second = Digester(path), Digester(path)
    with digest_path(path).open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not first.advance()
        assert not blocks(path)
    first.advance(4000)
    all_of(second)
    all_of(first)
    found = blocks(path)
    assert found
    same(told(tmp_path)[0], exact(path))


@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "empty", "doubled", "foreign", "folder",
                                    "forged"])
@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_digest_costs_only_time(tmp_path, damage, seed):
    path = a_run(tmp_path, seed, 800)
    all_of(Digester(path))
    mine, rng = digest_path(path), random.Random(seed)
    data = bytearray(mine.read_bytes())
    if damage == "cut":
        mine.write_bytes(data[:rng.randrange(len(data))])
    elif damage == "flip":
        for _ in range(5):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        mine.write_bytes(data)
    elif damage == "gone":
        mine.unlink()
    elif damage == "empty":
        mine.write_bytes(b"")
    elif damage == "doubled":
        mine.write_bytes(data * 2)
    elif damage == "foreign":
        (tmp_path / "other").mkdir()
        other = a_run(tmp_path / "other", seed + 100, 800)
        all_of(Digester(other))
        mine.write_bytes(digest_path(other).read_bytes())
    elif damage == "folder":
        mine.unlink()
        mine.mkdir()
    else:
        text = b'{"begin":-5,"end":1,"mark":0,"events":1}'
        mine.write_bytes(b"%08x %b\nxyz\n\n 12\n" % (zlib.crc32(text), text) + bytes(data))
    same(told(tmp_path)[0], exact(path))


def test_a_changed_value_is_not_believed(tmp_path):
    path = a_run(tmp_path, 1, 400, odd=0.0)
    all_of(Digester(path))
    mine = digest_path(path)
    assert mine.read_bytes().count(b'"loss_max":2.') > 5
    mine.write_bytes(mine.read_bytes().replace(b'"loss_max":2.', b'"loss_max":9.'))
    _, store, _ = told(tmp_path)
    assert max(store.loss.all.hi) < 3.0


def test_an_events_file_that_was_cut_or_replaced_is_read_as_it_is(tmp_path):
    path = a_run(tmp_path, 3, 800)
    digester = Digester(path)
    all_of(digester)
    before = digest_path(path).read_bytes()
    os.truncate(path, path.stat().st_size // 3)
    event_lines.append(path, b"\n")
    same(told(tmp_path)[0], exact(path))
    a_run(tmp_path, 4, 900)  # goes on in it with other events
    same(told(tmp_path)[0], exact(path))
    path.unlink()
    a_run(tmp_path, 5, 800)
    same(told(tmp_path)[0], exact(path))
    all_of(Digester(path))
    assert digest_path(path).read_bytes()[:200] != before[:200]
    assert blocks(path)
    same(told(tmp_path)[0], exact(path))


def test_lines_without_an_end_are_passed_over(tmp_path):
    path = a_run(tmp_path, 6, 300, odd=0.0)
    with path.open("ab") as file:
        file.write(b"x" * 100_000 + b"\n")
        file.write(line("step", {"step": 10**6, "lr": 0.1, "skipped": 0, "n": 9000,
                                 "losses": [1.5] * 9000, "loss": 1.5}))
    a_run(tmp_path, 7, 300, odd=0.0)
    all_of(Digester(path))
    assert blocks(path)[-1].begin > 100_000
    same(told(tmp_path)[0], exact(path))


def test_short_files_have_none(tmp_path, monkeypatch):
    path = a_run(tmp_path, 8, 200)
    monkeypatch.setattr(downsample, "DIGESTED", path.stat().st_size + 1)
    assert not Digester(path).advance()
    assert not digest_path(path).exists()


def test_single_steps_can_be_read_again(tmp_path):
    path = a_run(tmp_path, 9, 2000, odd=0.0)
    all_of(Digester(path))
    _, _, reader = told(tmp_path)
    every = {e["step"]: e for e in event_lines.read(path) if e["kind"] == "step"}
    wanted = sorted(every)[len(every) // 2]
    again = reader.read_again(wanted, wanted, 1 << 20)
    assert again is not None
    steps = [e for one in again[0] if not isinstance(one, schema.Event) for e in one.steps]
    assert [list(e.losses) for e in steps if e.step == wanted] == [
        every[wanted].get("losses", [])]
    assert len(steps) < len(every) / 4
    assert reader.read_again(0, 10**9, 1000) is None


def test_the_supervisor_keeps_them_up_to_date(tmp_path, caplog):
    path = a_run(tmp_path, 10, 800)
    keeps = digests.Digests()
    keeps.update([path, events_path(tmp_path, 1)])
    made = len(blocks(path))
    assert made
    a_run(tmp_path, 11, 800)
    keeps.update([path])
    assert len(blocks(path)) == made  # it is not time yet
    keeps._due = 0.0
    keeps.update([path])
    assert len(blocks(path)) > made
    digest_path(path).unlink()
    digest_path(path).mkdir()  # it can't be written any more: said once, and given up
    for _ in range(2):
        a_run(tmp_path, 11, 800)
        keeps._due = 0.0
        keeps.update([path])
    assert [r.message for r in caplog.records].count(caplog.records[0].message) == 1
    assert "no digest of 00000.jsonl" in caplog.text


def test_a_run_that_lacks_them_gets_them(tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "DIGESTED", DIGESTED)
    path = a_run(tmp_path, 12, 1000)
    assert digests.make_missing(tmp_path) is None  # it is short
    event_lines.append(path, path.read_bytes() * (DIGESTED // path.stat().st_size + 1))
    made = digests.make_missing(tmp_path)
    assert made is not None
    assert made.wait() == 0
    assert sum(b.end - b.begin for b in blocks(path)) > DIGESTED / 2
    assert digests.make_missing(tmp_path) is None


def test_what_steps_were_spent_on_is_kept_whole(tmp_path):
    path = events_path(tmp_path, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for step in range(1, 400):
            file.write(line("step", {"step": step, "lr": 0.1, "skipped": 0, "loss": 1.0}, t=step))
            if step % 10 == 0:
                file.write(line("step_time", {"step": step, "n": 10, "seconds": 0.5, "data": 0.25,
                                              "median": 0.05}, t=step))
    all_of(Digester(path))
    assert sum(len(block.times) for block in blocks(path)) > 20
    view, _, reader = told(tmp_path)
    assert reader.skipped == 0
    spans = view.ranks[0].spans
    assert (sum(s.n for s in spans), sum(s.seconds for s in spans)) == (390, 19.5)
    assert [s.step for s in spans] == list(range(10, 400, 10))


def test_a_block_has_a_least_and_a_greatest_size() -> None:
    assert [downsample._size(at) for at in (0, 1 << 22, 1 << 50)] == [
        downsample._LEAST, 1 << 13, downsample._WHOLE]


def test_no_block_mixes_steps_with_a_loss_and_steps_without(tmp_path) -> None:
    path = events_path(tmp_path, 0)
    path.parent.mkdir()
    event_lines.append(path, *(line("step", {
        "step": n, "n": 1, "lr": 0.1, "skipped": 0, **({"loss": 1.5} if n // 30 % 2 else {})})
        for n in range(1, 600)))
    all_of(Digester(path))
    data = path.read_bytes()
    kinds = [{"loss" in json.loads(x) for x in data[b.begin:b.end].splitlines()}
             for b in blocks(path)]
    assert {True} in kinds
    assert {False} in kinds
    assert all(len(kind) == 1 for kind in kinds)


def test_steps_of_an_attempt_that_went_back_are_found_again(tmp_path) -> None:
    path, reader = events_path(tmp_path, 0), RunReader(tmp_path)
    path.parent.mkdir()
    reader.add([0])
    for steps in (100, 101, 102), (1, 2, 3):
        event_lines.append(path, *(line("step", {
            "step": n, "n": 1, "lr": 0.1, "skipped": 0, "loss": 1.0}) for n in steps))
        reader.read(10.0)
    assert reader.read_again(2, 2, 1 << 20)[0]


def test_an_event_of_further_optimizers_alone_is_found_again(tmp_path) -> None:
    path, reader = events_path(tmp_path, 0), RunReader(tmp_path)
    path.parent.mkdir()
    event_lines.append(path, line("step", {
        "step": 5, "n": 0, "lr": None, "skipped": None,
        "others": {"1": {"name": "d", "step": 5, "n": 5}}}))
    reader.add([0])
    reader.read(10.0)
    assert reader.read_again(5, 5, 1 << 20)[0]
