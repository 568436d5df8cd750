"""All ranks end after the same step, whichever of them asks, and however they take turns."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.worker.rank.peers import End, PeerLost, Peers, Reason


class Memory:
    """A store in this process."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.values[key].encode() for key in keys]


class Waitless(Peers):
    """One rank's part, where everybody has come."""

    def _wait_for(self, keys: dict[int, str]) -> None:
        assert self._store.check(list(keys.values())), "this rank would wait for ever"


class Rank:
    """A rank whose steps end in a collective of all ranks."""

    def __init__(self, number: int, size: int, memory: Any) -> None:
        self.last = Waitless(number, size, memory, 10.0)
        self.keys = [f"gpu-panel/end/{r}" for r in range(size)]
        self.memory = memory
        self.look = lambda: self.last.look(memory)
        self.reason: Reason | None = None
        self.done = self.entered = 0
        self.end: End | None = None
        self.last.begin(lambda: self.done, lambda: self.reason)

    def can_go_on(self, ranks: list[Rank]) -> bool:
        """Whether the training thread would not wait now."""
        if self.end is not None:
            return False
        if self.entered > self.done:
            return all(rank.entered >= self.entered for rank in ranks)
        return self.done < self.last.bound or self.memory.check(self.keys)

    def go_on(self) -> None:
        """What the training thread does next."""
        if self.entered > self.done:
            self.done += 1
            if self.reason is not None and self.reason.stop:
                self.last.ask()
        elif self.done >= self.last.bound:
            self.end = self.last.reached()
        else:
            self.entered += 1


@given(st.integers(2, 4), st.integers(0, 3), st.integers(0, 6), st.integers(0, 2**32))
def test_all_ranks_end_after_the_same_step(size: int, asker: int, after: int, seed: int) -> None:
    order = random.Random(seed)
    memory = Memory()
    ranks = [Rank(r, size, memory) for r in range(size)]
    asker %= size
    for _ in range(2000):
        if ranks[asker].entered >= after:
            ranks[asker].reason = Reason(stop=True)
        able = [rank for rank in ranks if rank.can_go_on(ranks)]
        if all(rank.end for rank in ranks):
            break
        # The thread beside the training has its turn now and then, whatever the other waits for.
        order.choice([*(rank.go_on for rank in able), *(rank.look for rank in ranks)])()
    assert [rank.end for rank in ranks] == [End(stop=True, first=None, error="")] * size
    steps = {rank.done for rank in ranks}
    assert len(steps) == 1
    asked_in = max(after, 1)
    assert steps.pop() <= asked_in + 1, "at most one step more than the one that was under way"


@pytest.fixture
def pair() -> list[Rank]:
    memory = Memory()
    return [Rank(r, 2, memory) for r in range(2)]


def test_only_one_of_both_threads_promises_a_step(pair) -> None:
    rank = pair[0]
    rank.done = 5

    def asks_meanwhile(keys: list[str]) -> bool:
        rank.reason = Reason(stop=True)
        rank.last.ask()
        return True

    rank.memory.check = asks_meanwhile
    rank.look()
    assert rank.last.bound == 5


def test_a_step_that_ends_meanwhile_is_not_promised(pair) -> None:
    """The training thread may end its step between reading the steps and setting the bound."""
    rank = pair[0]
    seen = iter([10, 11, 11])
    rank.last.begin(lambda: next(seen), lambda: Reason(stop=True))
    rank.look()
    assert rank.last.bound == 12
    assert '[12, [true' in rank.memory.values["gpu-panel/end/0"]


def test_all_hear_the_first_reason_of_all(pair) -> None:
    for rank, reason in zip(pair, (Reason(step=7), Reason(step=6, error="thawed")), strict=True):
        rank.done, rank.reason = 8, reason
        rank.last.ask()
    assert [rank.last.reached() for rank in pair] == [End(False, (6, 1), "thawed")] * 2


def test_what_is_no_promise_is_refused_by_name(pair) -> None:
    pair[0].reason = Reason(stop=True)
    pair[0].last.ask()
    pair[0].memory.set("gpu-panel/end/1", '{"step": 1}')
    with pytest.raises(PeerLost, match=r"rank 1 .*not a step to end at: b'\{\"step\": 1\}'"):
        pair[0].last.reached()


