"""What is told of a run that goes on, from what its ranks have said."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_engine.events import notices, schema
from gpu_engine.events.reader import Tail
from gpu_engine.supervisor.children import Child
from gpu_engine.supervisor.ranks import RankState, failed_below, notices_of

from ..event_lines import from_dict


def ranks(*each: list[schema.Event]) -> dict[int, RankState]:
    states = {}
    for rank, events in enumerate(each):
        states[rank] = RankState(rank, Tail(Path("none")), 1)
        for event in (schema.Start(rank, rank, 0, 1, 1, len(each)), *events):
            states[rank].fold(event)
    return states


def step(at: int, loss: float) -> schema.Step:
    return schema.Step(at, 0.1, 0, loss=loss, losses=(loss,))


@pytest.mark.parametrize("losses", [True, False])
def test_each_is_told_once_and_the_worst_first(losses):
    apart, same = notices.apart(3, 5, group=False), notices.same_order(3, 10)
    nan = float("nan")
    seen = ranks([same, step(7, nan)], [apart, step(5, 1.0), step(6, nan), step(7, nan)],
                 [same, apart])
    told = notices_of(seen, losses=losses)
    assert [(n.code, n.rank, n.step) for n in told] == [
        *([("nonfinite", 1, 6)] if losses else []), ("not-reduced", 1, None),
        ("set-epoch", 0, None)]
    assert told[-1].cure == same.cure


def error(at: float, message: str) -> schema.Error:
    return from_dict({"t": at, "kind": "error", "type": "ValueError", "message": message,
                      "step": 5})


def test_of_several_ranks_that_failed_below_a_command_the_first_leads():
    seen = ranks([error(9.0, "late")], [error(8.0, "first")], [])
    [told] = notices_of(seen, losses=True, completed=True)
    assert (told.code, told.rank) == ("rank-lost", 1)
    assert "ValueError: first" in told.message
    assert notices_of(seen, losses=True) == ()  # while it runs, others may go on


def test_a_rank_that_the_attempt_before_had_is_not_lost():
    seen = ranks([schema.End("completed", 7, 1.0)])
    seen[1] = RankState(1, Tail(Path("none")), 2)
    seen[1].fold(schema.Start(1, 1, 0, 1, 1, 2, attempt=1))
    assert notices_of(seen, losses=True, completed=True) == ()
    command = Child((0,), "rank", 100, 1, None, 1, 9.0)  # pyright: ignore[reportArgumentType]
    assert failed_below(seen, [command], {}, (), str) == []
    seen[1].fold(schema.Start(1, 1, 0, 1, 1, 2, attempt=2))
    assert [f.rank for f in failed_below(seen, [command], {}, (), str)] == [1]
    assert [n.code for n in notices_of(seen, losses=True, completed=True)] == ["rank-lost"]


def test_a_full_disk_is_told_of_the_run():
    seen = ranks([notices.same_order(3, 10), notices.not_recorded(12.0, 7)],
                 [notices.not_saved("no space left"), notices.not_recorded(3.0, 1)])
    assert [(n.code, n.rank) for n in notices_of(seen, losses=True)] == [
        ("not-saved", 1), ("not-recorded", 0), ("set-epoch", 0)]
