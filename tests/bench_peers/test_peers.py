"""docs/performance.md is what its results give, and says so truly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bench.peers import compare, page, reasons, results
from bench.peers.measures import BESIDE, GROWTH, MEASURES
from bench.peers.results import Figure, Group
from bench.peers.rounds import NotMeasured, interleaved
from bench.peers.spread import Spread, ratios

ROOT = Path(__file__).parents[2]


def group(*figures: Figure, missing: dict[str, str] | None = None) -> Group:
    return Group("2026-01-02 03:04 UTC", "abc1234", {
        "cores": "2", "cpu": "a processor", "memory": "8 GiB", "system": "Linux 6"}, {
        "torch": "2.0"}, 1.5, list(figures), missing or {})


def test_the_page_is_what_the_results_give():
    assert page.PAGE.read_text() == page.rendered(results.read()), "python -m bench.peers write"


def test_every_group_has_been_measured_and_less_than_five_rounds_are_admitted():
    kept, text = results.read(), page.PAGE.read_text()
    assert set(kept) == {*BESIDE, *GROWTH}
    for name, one in kept.items():
        assert one.figures, name
        few = min(len(f.values) for f in one.figures) < 5
        assert (f"- {reasons.TITLES[name]}: only" in text) == few, name
        assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d UTC", one.date)
        assert {(name, f.measure) for f in one.figures} <= set(MEASURES)
        assert name in reasons.TITLES
        assert name in reasons.HOW


def test_nothing_kept_names_a_machine_or_a_path():
    assert not re.search(r"/(home|root|tmp|work)/", results.PATH.read_text())


def test_the_others_get_the_torch_that_is_developed_with():
    def torch(path: Path) -> list[str]:
        return [line for line in path.read_text().splitlines() if line.startswith("torch==")]

    assert torch(ROOT / "bench/peers/requirements.txt") == torch(ROOT / "constraints.txt") != []


def test_ratios_compare_values_of_the_same_round():
    # The machine was ten times slower in the second round: the ratio is the same.
    assert ratios([2.0, 20.0, 4.0], [1.0, 10.0, 1.0]) == Spread(2.0, 2.0, 4.0, 3)
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0, 2.0], [1.0])


def test_programs_take_turns_in_going_first():
    order: list[str] = []

    def program(name: str):
        return lambda: order.append(name) or {"step": float(len(order))}

    found, missing = interleaved("case", {n: program(n) for n in "abc"}, 3)
    assert "".join(order) == "abcbcacab"
    assert found["step", "a"] == [1.0, 6.0, 8.0]
    assert missing == {}


def test_a_program_that_fails_once_has_no_figures_and_a_reason():
    calls: list[int] = []

    def fails_later():
        calls.append(1)
        if len(calls) == 2:
            raise NotMeasured("it ended")
        return {"step": 1.0}

    kept: list[int] = []
    found, missing = interleaved("case", {"good": lambda: {"step": 2.0}, "bad": fails_later}, 4,
                                 lambda found, missing: kept.append(len(found["step", "good"])))
    assert kept == [1, 2, 3, 4]
    assert found == {("step", "good"): [2.0] * 4}
    assert missing == {"bad": "it ended"}
    assert len(calls) == 2


@pytest.fixture
def groups() -> dict[str, Group]:
    return {"gpus": group(
        Figure("watching", "8 GPUs", "gpu-panel", [0.04, 0.05, 0.06, 0.05, 0.05]),
        Figure("watching", "8 GPUs", "small", [0.01] * 5),
        Figure("watching", "8 GPUs", "middling", [0.05] * 5),
        Figure("watching", "8 GPUs", "large", [0.1] * 5),
        Figure("first frame", "8 GPUs", "gpu-panel", [1.0] * 5),
        Figure("first frame", "8 GPUs", "small", [0.5] * 5),
        missing={"absent": "it is not installed here"})}


def test_few_rounds_are_said(groups: dict[str, Group]):
    for figure in groups["gpus"].figures:
        del figure.values[4:]
    assert [p.peer for p in compare.losses(compare.pairs(groups))] == ["small", "small"]
    assert "- Watching GPUs: only 4 of 5 rounds were made" in page.rendered(groups)


def test_nothing_lost_is_said_so(groups: dict[str, Group]):
    groups["gpus"].figures = [f for f in groups["gpus"].figures if f.program != "small"]
    text = page.rendered(groups)
    assert "None." in text[text.index("## Where gpu-panel loses"):text.index("## Beside others")]
    assert "**Watching**" not in text
