"""Rows from the events of several ranks: means, values of a step, attempts, live files."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.events.paths import events_path
from gpu_engine.events.reader import Tail
from gpu_engine.export.exporter import Names
from gpu_engine.export.rows import MOST_NAMES, Row, Source

from .. import event_lines
from .kit import T0, Written, told

LOSS = "train/loss"


def rows(run: Path) -> list[Row]:
    return [*Source(run).rows()]


def losses(found: list[Row]) -> dict[int, float]:
    return {row.step: row.values[LOSS] for row in found if LOSS in row.values}


def test_a_row_has_the_mean_of_the_ranks_and_what_belongs_to_its_step(home):
    with Written(ranks=2) as it:
        for rank in (0, 1):
            it.start(rank)
            if rank == 0:
                it.tell(0, "eval", t=0.5, step=0, accuracy=0.1)
            it.steps(rank, 2, [4.0 + rank, 3.0 + rank], 2.0, samples_per_s=100.0 * (rank + 1))
            it.tell(rank, "metric", t=2.5, step=3, depth=10.0 * rank)
            it.tell(rank, "memory", t=2.6, rss=(rank + 1) << 20, gpu_allocated=[1 << 30, 3 << 30],
                    gpu_reserved=[4 << 30], gpu_peak=[5 << 30], gpu_process=None)
            it.steps(rank, 3, [2.0 + rank], 3.0, lr=0.05)
            if rank == 0:
                it.tell(0, "eval", t=3.5, step=3, accuracy=0.9)
            it.tell(rank, "memory", t=3.9, rss=1 << 20, gpu_process=None)
            it.steps(rank, 4, [1.0 + rank], 4.0, lr=0.025)
            it.tell(rank, "memory", t=4.5, rss=(rank + 7) << 20, gpu_process=None)
        event_lines.append(it.path / "devices.jsonl", *(event_lines.line("devices", {
            "ids": ["0", "1"], "utilization": [u, None], "memory_used": [int(1e9 * u), 5],
            "power": [200.0, 300.0]}, t=T0 + t) for t, u in ((2.2, 0.5), (2.8, 0.7), (3.9, 1.0))))
    before, first, second, third, fourth = rows(it.path)
    assert (before.step, before.values) == (0, {"eval/accuracy": 0.1})
    assert (first.step, first.attempt, first.values) == (1, 1, {
        LOSS: 4.5, "train/loss_min": 4.0, "train/loss_max": 5.0})
    assert (second.step, second.t) == (2, T0 + 2.0)
    assert second.values == {
        LOSS: 3.5, "train/loss_min": 3.0, "train/loss_max": 4.0, "train/lr": 0.1,
        "train/epoch": 0, "train/skipped": 0, "train/samples_per_s": 300.0,
        "train/data_wait": 0.25}
    assert (third.step, third.t) == (3, T0 + 3.0)
    assert third.values["log/depth"] == 5.0
    assert third.values["eval/accuracy"] == 0.9  # it came after the step's event
    assert third.values["train/lr"] == 0.05
    assert third.values["memory/gpu_allocated"] == 3 << 30  # the fullest device
    assert third.values["memory/host"] == 2 << 20  # the largest rank
    assert third.values["device/0/utilization"] == pytest.approx(0.6)
    assert third.values["device/0/memory_used"] == 0.7e9
    assert "device/1/utilization" not in third.values
    assert third.values["device/1/power"] == 300.0
    assert (fourth.step, fourth.values["device/0/utilization"]) == (4, 1.0)
    assert (fourth.values["train/lr"], fourth.values["memory/host"]) == (0.025, 8 << 20), \
        "what was read after the last step is its own, and no second row of it"


def segments(total: int, cuts: list[int]) -> list[tuple[int, int]]:
    edges = [0, *sorted({c for c in cuts if 0 < c < total}), total]
    return [(a + 1, b) for a, b in pairwise(edges)]


@given(st.data())
def test_ranks_that_sum_up_steps_otherwise_count_with_the_mean_of_the_same_steps(data):
    """Against a loop that writes down for each rank what is known of each step."""
    total = data.draw(st.integers(1, 12))
    each: dict[int, list[float]] = {}
    parts: dict[int, list[tuple[int, int]]] = {}
    with TemporaryDirectory() as folder:
        run = Path(folder)
        (run / "ranks").mkdir()
        for rank in range(data.draw(st.integers(1, 3))):
            parts[rank] = segments(total, data.draw(st.lists(st.integers(1, total), max_size=6)))
            each[rank] = []
            for a, b in parts[rank]:
                mean = float(data.draw(st.integers(-5, 5)))
                each[rank] += [mean] * (b - a + 1)
                event_lines.append(events_path(run, rank), event_lines.line("step", {
                    "step": b, "n": b - a + 1, "loss": mean, "lr": 0.1, "skipped": 0}, t=T0 + b))
        found = losses(rows(run))
    # Every rank has every step, so the rows are those of rank 0.
    assert list(found) == [b for _, b in parts[0]]
    for a, b in parts[0]:
        means = [sum(known[a - 1:b]) / (b - a + 1) for known in each.values()]
        assert found[b] == pytest.approx(sum(means) / len(means), abs=1e-12)


def test_steps_that_a_resume_has_done_again_replace_the_lost_ones(home):
    with Written(ranks=2) as it:
        for rank in (0, 1):
            it.start(rank)
            it.steps(rank, 4, [9.0, 8.0, 7.0, 6.0], 4.0)
            it.tell(rank, "metric", t=4.1, step=4, x=1.0)
            it.steps(rank, 6, [5.0, 4.0], 6.0)
            it.start(rank, attempt=2, t=100)
        it.tell(0, "eval", t=100.5, step=4, loss=0.5)
        for rank in (0, 1):  # from the checkpoint of step 4
            it.steps(rank, 5, [1.0 + rank], 105.0)
            it.steps(rank, 7, [2.0 + rank, 3.0 + rank], 107.0)
    found = rows(it.path)
    assert [(r.step, r.attempt, r.values.get(LOSS)) for r in found] == [
        (1, 1, 9.0), (2, 1, 8.0), (3, 1, 7.0), (4, 1, 6.0), (4, 2, None),
        (5, 2, 1.5), (6, 2, 2.5), (7, 2, 3.5)]
    assert found[3].values["log/x"] == 1.0
    assert found[4].values == {"eval/loss": 0.5}
    assert found[3].values["train/samples_per_s"] == 200.0


def test_the_rate_of_an_attempt_is_that_of_its_own_ranks(home):
    with Written(ranks=2) as it:
        for rank in (0, 1):
            it.start(rank)
            it.steps(rank, 1, [2.0], 1.0)
        it.start(attempt=2, t=50)  # goes on with one rank
        it.steps(0, 3, [1.0, 0.5], 51.0)
    assert [(r.t - T0, r.values.get("train/samples_per_s")) for r in rows(it.path)] == [
        (1.0, 200.0), (51.0, None), (51.0, 100.0)], "and no time of it is in the pause"


def test_a_rate_is_told_once_every_rank_has_told_its_own(home):
    with Written(ranks=2) as it:
        it.start(0)
        it.start(1)
        it.steps(0, 1, [2.0], 1.0)
        it.steps(0, 2, [1.0], 2.0)
        it.many(1, 2, 2, 1.5, 2.0, samples_per_s=100.0)
    assert [r.values.get("train/samples_per_s") for r in rows(it.path)] == [None, 200.0]


def test_an_attempt_without_a_step_takes_nothing_away(home):
    with Written() as it:
        it.start()
        it.steps(0, 3, [3.0, 2.0, 1.0], 3.0)
        it.start(attempt=2, t=50)  # and fails at once
    assert losses(rows(it.path)) == {1: 3.0, 2: 2.0, 3: 1.0}


def test_of_many_readings_before_a_step_all_count(home):
    with Written() as it:
        it.start()
        event_lines.append(it.path / "devices.jsonl", *(event_lines.line("devices", {
            "ids": ["0"], "utilization": [float(i >= 500)], "memory_used": [5], "power": [200.0],
            "temperature": [50.0]}, t=T0 + i / 1000) for i in range(1000)))
        event_lines.append(it.run.events(0), *(event_lines.line(
            "memory", {"rss": 1 << (10 if i else 30)}, t=T0 + i / 1000) for i in range(2000)))
        it.steps(0, 1, [1.0], 3.0)
    [row] = rows(it.path)
    assert row.values["memory/host"] == 1 << 30
    assert row.values["device/0/utilization"] == 0.5


def test_values_that_are_not_finite_stay_as_they_are(home):
    with Written(ranks=2) as it:
        for rank in (0, 1):
            it.start(rank)
            it.steps(rank, 2, [1.0, math.nan if rank else 2.0], 2.0)
            it.tell(rank, "metric", t=2.5, step=2, norm=math.inf)
    _, second = rows(it.path)
    assert math.isnan(second.values[LOSS])
    assert "train/loss_min" not in second.values  # one finite value has no range
    assert second.values["log/norm"] == math.inf


def test_a_further_process_of_a_rank_does_not_count_and_damage_is_left_out(home):
    with Written() as it:
        it.start()
        it.start(1, as_rank=0, process=2)
        it.steps(0, 2, [1.0, 2.0], 2.0)
        it.steps(1, 2, [100.0, 200.0], 2.0)
        with it.run.events(0).open("ab") as file:
            file.write(b'{"broken\n\xff\xfe\n' + event_lines.line("new-kind", {"a": 1}))
        it.steps(0, 3, [3.0], 3.0)
        with it.run.events(0).open("ab") as file:
            file.write(b'{"t":1790000004.0,"kind":"step","step":4,"n":1,"lo')
    source = Source(it.path)
    assert losses([*source.rows()]) == {1: 1.0, 2: 2.0, 3: 3.0}
    assert source.skipped == 2


def test_a_second_optimizer_has_a_name_of_its_own(home):
    with Written() as it:
        it.start()
        it.steps(0, 1, [2.0], 1.0, others={"1": {"name": "critic", "step": 1, "n": 1,
                                                 "loss": 0.5, "losses": [0.5]}})
    assert rows(it.path)[0].values["train/loss[1]"] == 0.5


def test_a_script_that_only_logs_values_gives_rows_too(home):
    with Written() as it:
        it.start()
        for step in range(3):
            it.tell(0, "metric", t=step, step=step, score=step / 2)
    assert [(r.step, r.values) for r in rows(it.path)] == [
        (0, {"log/score": 0.0}), (1, {"log/score": 0.5}), (2, {"log/score": 1.0})]


def test_only_a_piece_of_a_large_file_is_read_ahead(home, monkeypatch):
    with Written() as it:
        it.start()
        lines = [event_lines.line("step", {"step": s, "n": 1, "loss": 1.0, "losses": [1.0],
                                           "lr": 0.1, "skipped": 0}, t=T0 + s)
                 for s in range(1, 20_001)]
        event_lines.append(it.run.events(0), *lines)
    read = []
    whole = Tail.read

    def counted(tail: Tail, limit: int = 1 << 20):
        events = whole(tail, limit)
        read.append(len(events))
        return events

    monkeypatch.setattr(Tail, "read", counted)
    found = Source(it.path).rows()
    assert next(found).step == 1
    assert sum(read) < 2000
    assert sum(1 for _ in found) == 19_999
    assert len(told(it.run, 0, "step")) == 20_000


# --- names --------------------------------------------------------------------------------------


def test_names_stay_apart_and_are_not_endless():
    names = Names(r"[^\w/]")
    assert names("log/a b") == "log/a_b"
    assert names("log/a.b") == "log/a_b_2"
    assert names("log/a b") == "log/a_b"
    assert names("\x1b[31mred") == "red"
    assert len(names("x" * 5000) or "") <= 203
    many = [names(f"n{i}") for i in range(MOST_NAMES + 5)]
    assert many[:3] == ["n0", "n1", "n2"]
    assert many[-1] is None
    assert sum(one is None for one in many) == 9
