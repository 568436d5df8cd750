"""The ranks pane: columns that fit, a line for each rank, repainting, the chosen rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, get_args

from textual.app import ComposeResult
from textual.content import Content

from gpu_engine.events import schema
from gpu_engine.events.rank_view import RankView
from gpu_engine.events.schema import Collective, Error, Stands
from gpu_engine.plan.records import DeviceUse, LaunchPlan, RankPlan
from gpu_engine.runs.state import StateName
from gpu_panel.common.rows import STYLES
from gpu_panel.run.devices import DeviceFigures
from gpu_panel.run.doing import Peers, doing
from gpu_panel.run.pane import Moment
from gpu_panel.run.ranks import COLUMNS, RanksPane, layout
from gpu_panel.run.states import GLYPHS, TONES, colour, glyph, tone
from gpu_panel.theme import ThemedApp

from ...plans import plan
from ..run_kit import GIB, NOW, view

# --- columns -----------------------------------------------------------------------------------

def test_what_matters_most_stays():
    row = [("0", ""), ("GPU 0", ""), ("forward", ""), ("1,240", ""), ("1.829", ""), ("6.2k", ""),
           ("3 %", ""), ("dffbbbbwoo", ""), ("97 %", ""), ("301 W", ""), ("61 °C", ""),
           ("28.1", ""), ("33.9", ""), ("34.1", ""), ("2.1", ""), ("0.3 s", "")]
    for width in range(12, 200):
        sizes = layout([row], width)
        assert 2 + sum(sizes.values()) + 2 * (len(sizes) - 1) <= width
    assert len(layout([row], 152)) == len(COLUMNS)
    at_80 = list(layout([row], 78))
    assert at_80[:6] == ["rank", "where", "doing", "step", "loss", "per s"]
    assert {"allocated", "peak", "seen"} <= set(at_80)
    assert list(layout([row], 24)) == ["rank", "step", "loss"]


# --- the widget --------------------------------------------------------------------------------

class Table(ThemedApp):
    def compose(self) -> ComposeResult:
        yield RanksPane()


def show(
        table: RanksPane, ranks: dict[int, RankView], planned: LaunchPlan | None=None, *,
        now: float = NOW, figures: DeviceFigures | None = None, behind: bool = False):
    store: Any = SimpleNamespace(ranks=ranks, plan=planned, state=None, behind=behind,
                                 devices=figures or DeviceFigures())
    table.paint(store, Moment(now, True, None))


def lines(table: RanksPane) -> list[str]:
    return [table.render_line(y).text.rstrip() for y in range(table.size.height)]


def title(table: RanksPane) -> str:
    return Content.from_markup(str(table.border_title)).plain


async def test_data_parallel_has_a_line_a_device():
    async with Table().run_test(size=(130, 8)) as pilot:
        table = pilot.app.query_one(RanksPane)
        rank = view(0, gpu_allocated=[28 * GIB, 29 * GIB], gpu_reserved=[33 * GIB, 33 * GIB],
                    gpu_peak=[34 * GIB, 35 * GIB], rss=2 * GIB, loss=1.5, data_wait=0.03)
        two = (DeviceUse("1", "GPU 1", None, "cuda:0"), DeviceUse("3", "GPU 3", None, "cuda:1"))
        dp = plan(2, mode="dp", cpu=False, ranks=(RankPlan(0, 0, 0, two),))
        show(table, {0: rank}, dp)
        await pilot.pause()
        assert [" ".join(line.split()) for line in lines(table)[:3]] == [
            "rank where doing step loss per s data wait allocated reserved peak host seen",
            "0 GPU 1 forward 100 1.500 100 3 % 28.0 33.0 34.0 2.0 0.3 s",
            "GPU 3 29.0 33.0 35.0"]


async def test_sixty_four_ranks_scroll():
    async with Table().run_test(size=(100, 20)) as pilot:
        table = pilot.app.query_one(RanksPane)
        ranks = {r: view(r) for r in range(64)}
        show(table, ranks)
        await pilot.pause()
        table.focus()
        await pilot.press("end")
        show(table, ranks)
        assert "63" in lines(table)[-1]


async def test_of_what_is_still_being_read_no_end_is_told():
    async with Table().run_test(size=(100, 20)) as pilot:
        table = pilot.app.query_one(RanksPane)
        show(table, {0: view(0)}, behind=True)
        await pilot.pause()
        assert "reading …" in lines(table)[1]
        assert "ended" not in lines(table)[1]


async def test_enter_picks_the_rank_under_the_cursor():
    picked: list[int] = []

    class Asking(Table):
        def on_run_pane_rank_chosen(self, message: RanksPane.RankChosen):
            picked.append(message.rank)

    async with Asking().run_test(size=(100, 20)) as pilot:
        table = pilot.app.query_one(RanksPane)
        show(table, {r: view(r) for r in range(4)})
        table.focus()
        await pilot.press("down", "down", "enter")
        assert picked == [2]
        table.rank_chosen(1)
        assert lines(table)[2].startswith("▸")


async def test_the_bar_of_time_fills_what_is_free_with_percentages(monkeypatch):
    spans = [schema.StepTime(100, 10, 10.0, data=0.3, forward=3.0, backward=2.0, wait=None,
                             optimizer=0.01)]
    async with Table().run_test(size=(120, 8)) as pilot:
        table = pilot.app.query_one(RanksPane)
        show(table, {0: view(0, spans=spans)})
        await pilot.pause()
        row = lines(table)[1]
        bar = row[lines(table)[0].index("time"):row.index("0.3 s") - 2]
        assert len(row) == 116  # all of the pane, less its frame
        assert "".join(c for c in bar if c != "━").split() == ["30", "%", "20", "%", "47", "%"]
        assert title(table) == "ranks ─ 1  ━ data  ━ forward  ━ backward  ━ optimizer  ━ rest"
        assert "[$text-muted]━ rest" in table.border_title
        assert [style for text, style in next(iter(table.build(116)[1][0].lines))
                if text.endswith("━") and "47" in text] == ["track"]
        show(table, {0: view(0, spans=[schema.StepTime(110, 10, 10.0, forward=9.0)])})
        await pilot.pause()
        assert "data" in title(table)  # it does not come and go
        assert "data" not in lines(table)[1]
        table.anew()
        monkeypatch.setattr(pilot.app, "no_color", True)
        show(table, {0: view(0, spans=spans)})
        await pilot.pause()
        assert {"f", "b", "·"} <= set(lines(table)[1][row.index("━"):])
        assert title(table) == "ranks ─ 1  d data  f forward  b backward  o optimizer  · rest"


# --- figures of devices, and the order ----------------------------------------------------------


async def test_the_devices_figures_stand_beside_their_ranks_while_they_are_fresh():
    async with Table().run_test(size=(150, 8)) as pilot:
        table = pilot.app.query_one(RanksPane)
        figures = DeviceFigures()
        event = schema.Devices(("1", "0"), utilization=(0.97, 0.5), power=(301.4, None))
        object.__setattr__(event, "t", NOW - 4)
        figures.fold(None, event, 100)
        seen, two = {0: view(0), 1: view(1)}, plan(2, cpu=False)
        show(table, seen, two, figures=figures)
        await pilot.pause()
        text = [" ".join(line.split()) for line in lines(table)[:3]]
        assert "util power seen" in text[0]  # no temperature is known
        assert "50 % –" in text[1]
        assert "97 % 301 W" in text[2]
        show(table, seen, two, now=NOW + 40, figures=figures)
        await pilot.pause()
        assert "util" not in lines(table)[0]


def ranks_in(table: RanksPane) -> list[int]:
    return [int(key) for key in table.keys]


async def test_ranks_are_sorted_and_those_that_fail_come_first():
    async with Table().run_test(size=(130, 12)) as pilot:
        table = pilot.app.query_one(RanksPane)
        seen = {0: view(0, loss=1.0, gpu_peak=[3]), 1: view(1, loss=3.0, gpu_peak=[1]),
                2: view(2, loss=float("nan"), gpu_peak=[2]), 3: view(3, step=90, loss=2.0),
                4: view(4, outcome="failed", loss=0.5), 5: view(5, beat=NOW - 60, loss=0.4)}
        show(table, seen)
        await pilot.pause()
        assert ranks_in(table) == [4, 5, 0, 1, 2, 3]
        table.focus()
        await pilot.press("o")
        assert ranks_in(table)[:3] == [4, 5, 3]  # fewest steps
        assert str(table.border_subtitle) == "slowest first"
        await pilot.press("o")
        assert ranks_in(table) == [4, 5, 2, 1, 3, 0]
        at = table.cursor = 3
        key = table.key_at_cursor
        await pilot.press("o")
        assert ranks_in(table)[2:5] == [0, 2, 1]
        assert table.key_at_cursor == key  # the cursor stays on its rank
        assert table.cursor != at
        seen[3].outcome = "failed"
        show(table, seen)
        assert ranks_in(table) == [3, 4, 5, 0, 2, 1]


# --- What a rank is doing, in words, and how the state of a run looks ---


def words(ranks: list[RankView], rank=0, *, live=True, unheard: tuple[int, ...]=()) -> str:
    known = {v.rank: v for v in ranks}
    return doing(known[rank], Peers.of(known), NOW, live=live, unheard=unheard)[0]


def test_what_a_rank_does():
    assert words([view(0), view(1)]) == "forward"
    assert words([view(0, phase=None)]) == "starting"
    assert words([RankView(0)]) == "not started yet"
    assert words([RankView(0)], live=False) == "has recorded nothing"
    assert words([view(0, outcome="completed")]) == "✓ completed"
    failed = view(0, error=Error("OutOfMemoryError", "", None, None, None))
    assert words([failed]) == "✗ OutOfMemoryError"
    assert words([view(0)], live=False) == "ended in forward"


def test_silence_is_said():
    assert words([view(0, beat=NOW - 9)]) == "forward"
    assert words([view(0, beat=NOW - 11)]) == "silent · forward"
    assert words([view(0, beat=NOW - 6)], unheard=(0,)) == "not heard of · forward"


def test_a_rank_that_waits_names_whom():
    late = RankView(1)
    assert words([view(0, phase="init"), late]) == "waiting for rank 1"
    hung = view(1, beat=NOW - 60, phase="data")
    assert words([view(0, phase="backward", phase_since=NOW - 9), hung]) == "waiting for rank 1"
    slow = view(1, phase="data")
    assert words([view(0, phase="backward", phase_since=NOW - 9), slow]) == "waiting for rank 1"
    assert words([view(0, phase="backward", phase_since=NOW - 1), slow]) == "backward"
    many = [RankView(r) for r in range(1, 9)]
    assert words([view(0, phase="init"), *many]) == "waiting for ranks 1, 2, 3 and 5 more"


def test_a_rank_that_stands_still_says_in_what():
    """A script's phase is "running" wherever it is."""
    one = Collective("0", 37, "all_reduce", "9 float", NOW - 26, False, False)
    at = {"phase": "running", "phase_since": NOW - 26}
    waits = Stands(99, "running", NOW - 26, False, "t.py:5", collectives={0: one})
    assert words([view(0, **at, stands=waits), view(1, **at)]) == \
        "waits in all_reduce #37 (9 float)"
    assert words([view(0, **at, stands=Stands(99, "running", NOW - 26, True, "t.py:9"))]) == "works"
    assert words([view(0, stands=waits)]) == "forward", "it has gone on to something else"


def test_who_is_behind_is_said_in_words():
    assert words([view(0, step=80), view(1)]) == "forward · 20 behind"
    fast = view(0, step=80, step_times=[(NOW - 1, 60), (NOW, 80)])
    assert words([fast, view(1)]) == "forward"
    assert words([view(0), view(1, step=99)], 1) == "forward"
    assert words([view(0, samples_per_s=50.0), view(1), view(2)]) == "forward · slowest"


# --- states --------------------------------------------------------------------------------------


def test_every_state_has_a_glyph_and_a_style_that_lists_know():
    states = set(get_args(StateName))
    assert states == set(GLYPHS) == set(TONES)
    assert set(TONES.values()) <= set(STYLES)
    assert all(len(one) == 1 for one in GLYPHS.values())


def test_a_state_of_another_version_is_shown_as_unknown():
    assert (glyph("paused"), tone("paused"), colour("paused")) == ("?", "dim", "")
