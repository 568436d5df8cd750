"""Ranks wait for a busy rank as long as it lives, and say what they wait for."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from gpu_engine.training import checkpoint
from gpu_engine.worker.rank import peers
from gpu_engine.worker.rank.peers import PeerLost, Peers, beat

from . import ranks
from .conftest import names
from .test_saving import phase, step

TIMEOUT = 3.0
"""Seconds for `parallel.timeout`. The waits in these tests take longer."""


def waits_longer(run: Path, rank: int, words: str):
    """Whether `rank` has had the detail `words` for longer than the timeout."""
    def look() -> bool:
        said = [e for e in ranks.read(run, rank, "phase") if words in e.get("detail", "")]
        return bool(said) and said[-1]["t"] - said[0]["t"] > TIMEOUT + 1
    return look


@pytest.mark.parametrize(("where", "beside"), [("hold_saves", False), ("hold_data", True)])
def test_longer_than_the_timeout(make, tmp_path, where, beside):
    """Three waits: for rank 1's data, for its first batch, and for rank 0's final checkpoint."""
    hold, item = tmp_path / "hold", tmp_path / "item"
    hold.touch()
    item.touch()
    params = {where: str(hold), "rank": 1, "double": False}
    if beside:
        params["hold_item"] = str(item)
    run = make("run", params, world=2, size=24, train={"steps": 4, "workers": 0},
               parallel={"timeout": TIMEOUT})
    with ranks.started(run) as both:
        if beside:
            both.until(waits_longer(run, 0, "waiting for rank 1: reading its data"))
            hold.unlink()
            both.until(lambda: ranks.read(run, 1, "schedule"))
            began = time.time()
            both.until(lambda: phase(run, 0).get("detail") == "waiting for rank 1: reading its data"
                       and phase(run, 0)["t"] - began > TIMEOUT + 1)
        else:
            both.until(waits_longer(run, 1, "waiting for rank 0: writing a checkpoint: "))
            hold.unlink()
        item.unlink()
        assert both.wait() == [0, 0]
    for rank in range(2):
        assert ranks.read(run, rank, "error") == []
    assert names(run) == [checkpoint.name_of(4)]


def test_a_streams_first_batch_is_waited_for(make, tmp_path):
    item = tmp_path / "item"
    item.touch()
    run = make("run", {"stream": True, "hold_item": str(item), "rank": 0}, world=2, size=24,
               train={"steps": 4, "workers": 1}, parallel={"timeout": TIMEOUT})
    with ranks.started(run) as both:
        both.until(waits_longer(run, 1, "waiting for rank 0: reading its data"))
        item.unlink()
        assert both.wait() == [0, 0]
    assert step(run, 1) == 4


def test_a_silent_rank_is_given_up_and_named(make, tmp_path):
    hold = tmp_path / "hold"
    hold.touch()
    run = make("run", {"hold_data": str(hold), "rank": 1}, world=2, size=24,
               train={"steps": 4}, parallel={"timeout": TIMEOUT})
    with ranks.started(run) as both:
        both.until(lambda: "waiting for rank 1" in phase(run, 0).get("detail", ""))
        both.signal(1, signal.SIGSTOP)
        assert both.processes[0].wait() == 1
    error = ranks.read(run, 0, "error")[-1]
    assert error["type"] == "PeerLost"
    assert "rank 1 has shown no sign of life for 3 s (parallel.timeout)" in error["message"]


def test_a_failure_reaches_those_that_wait(make, tmp_path):
    run = make("run", {"fail_data": True, "rank": 1}, world=2, size=24, train={"steps": 4})
    ranks.train(run, expect=1)
    assert ranks.read(run, 1, "error")[-1]["type"] == "OSError"
    error = ranks.read(run, 0, "error")[-1]
    assert error["type"] == "PeerLost"
    assert "rank 1: OSError: no such data" in error["message"]


class Clock:
    """A clock that moves on only when somebody sleeps."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float):
        self.now += seconds


@pytest.fixture
def pair(monkeypatch):
    """Two ranks' meetings on one store, in one process, with that clock."""
    store, clock = dist.HashStore(), Clock()
    monkeypatch.setattr(peers, "time", clock)
    first, second = (Peers(r, 2, store, 10.0) for r in range(2))
    return first, second, lambda text: beat(store, 1, text), clock


def test_a_rank_waits_only_as_long_as_heartbeats_come(pair):
    first, _, pulse, clock = pair
    said: list[str] = []
    beats = 60

    def say(text: str):
        nonlocal beats
        said.append(text)
        if beats:
            beats -= 1
            pulse("reading its data")

    first.report_wait = say
    with pytest.raises(PeerLost, match=r"rank 1 .* 10 s .* last reading its data"):
        first.wait()
    assert 60 * peers._LOOK + 10 < clock.now < 60 * peers._LOOK + 13
    assert said[1] == "waiting for rank 1: reading its data"
    assert said[-1] == ""


def test_a_rank_that_was_killed_on_this_machine_is_missed_at_once(pair):
    first, _, _, clock = pair
    first._store.set("gpu-panel/here/1", json.dumps([peers._machine(), 1, -1]))
    with pytest.raises(PeerLost, match="the process of rank 1 has ended without a word"):
        first.wait()
    assert clock.now < 2 * peers._LOOK


def test_rank_0_keeps_the_store_until_the_others_have_left_but_not_for_ever(pair):
    first, second, _, clock = pair
    first.leave()
    assert clock.now == pytest.approx(peers._PARTING, abs=0.1)
    second.leave()
    before = clock.now
    first.leave()
    assert clock.now == before


def test_a_rank_that_is_ahead_leaves_what_others_still_look_for(monkeypatch):
    """Rank 0 passes a meeting, tells a text without waiting, and comes to the next meeting before
    rank 1 has looked whether the first is complete."""
    store = dist.HashStore()
    first, second = (Peers(r, 2, store, 10.0) for r in range(2))

    def come(rank: Peers, how: str, *said) -> None:
        """Where a rank is that has come but not looked."""
        class Stopped(Exception):
            pass

        def stop(*_) -> None:
            raise Stopped

        with monkeypatch.context() as patch, contextlib.suppress(Stopped):
            patch.setattr(rank, "_wait_for", stop)
            getattr(rank, how)(*said)

    keys = [f"gpu-panel/met/1/{rank}" for rank in range(2)]
    come(second, "wait")
    first.wait()
    first.broadcast("text")
    come(first, "wait")
    assert store.check(keys)  # rank 1 can still leave the first meeting
    assert second.broadcast("") == "text"
    second.wait()
    for number in range(4, 9):  # nothing is left behind in the long run
        come(second, "wait")
        first.wait()
        second._said = second._said[-1:]  # as when it has looked
        assert store.check([f"gpu-panel/met/{number}/{r}" for r in range(2)])
        assert not store.check([f"gpu-panel/met/{number - 1}/0"])


def test_what_ranks_give_to_rank_0_is_gone_once_it_has_it() -> None:
    store = dist.HashStore()
    first, second = (Peers(r, 2, store, 10.0) for r in range(2))
    for number in range(1, 5):
        assert second.gather(b"\x00b") == []
        assert first.gather(b"") == [b"", b"\x00b"]
        assert not any(store.check([f"gpu-panel/met/{number}/{r}"]) for r in range(2))
