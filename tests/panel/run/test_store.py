"""The store: bounded batches, whatever the files hold; and the texts made from it."""

import asyncio
import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.runs.folder import Run, State
from gpu_panel.run.banner import banner
from gpu_panel.run.doing import standing_still
from gpu_panel.run.store import RunStore

from ... import event_lines
from ...events import kinds
from ..run_kit import T0, Written, trained


async def test_a_long_run_is_read_in_pieces(tmp_path):
    run = Written(tmp_path)
    line = event_lines.line("step", {"step": 1, "n": 1, "epoch": 0, "loss": 2.0,
                                     "losses": [2.0]}, t=T0)
    phase = event_lines.line("phase", {"phase": "forward", "since": T0}, t=T0)
    for rank in (0, 1):
        run.raw(rank, phase + b"".join(line.replace(b'"step":1', b'"step":%d' % s)
                               for s in range(40_000)))
    store = RunStore(run.run)
    task = asyncio.create_task(store.follow())
    shares = []
    while not store.caught_up:
        await asyncio.sleep(0.001)
        if store.state is not None and store.ranks:
            shares += banner(store, T0)[0]
            if store.behind:  # what is read is old, and no sign that a rank is silent
                assert standing_still(store, T0 + 600) == []
    task.cancel()
    assert len(set(shares)) > 3  # the share that was read rises, so other tasks run in between
    assert any("reading events… " in s and s.endswith(" %") for s in shares)
    assert store.ranks[1].step == 39_999
    assert standing_still(store, T0 + 600)
    assert sum(store.loss.ranks[0].count) == 40_000


def test_a_rank_is_called_silent_only_where_the_reader_is_not_behind():
    store = RunStore(Run(Path("/nowhere/3f2a")))
    store.state = State("running", "3f2a", "toy", T0)
    store.fold([(0, [event_lines.from_dict({
        "t": T0 + n, "kind": "step", "step": n, "n": 1, "loss": 1.0}) for n in range(1, 9)])])
    for behind, still in ((True, []), (False, [0])):
        store.behind = behind
        assert [one.rank for one in standing_still(store, T0 + 600)] == still


def test_why_a_run_is_slow_is_looked_at_again_after_a_while():
    store = RunStore(Run(Path("/nowhere/3f2a")))
    assert store.verdicts(T0) == []
    for n in range(1, 9):
        store.fold([(0, [event_lines.from_dict({"t": T0 + n, "kind": "step_time", "step": 100 * n, "n": 100,
                                   "seconds": 1.0, "data": 0.9})])])
    assert store.verdicts(T0 + 1) == []
    assert [one.code for one in store.verdicts(T0 + 9)] == ["input-bound"]


@given(st.lists(kinds.any_event, max_size=12))
def test_no_event_breaks_the_screen(told):
    from gpu_panel.run import subjects
    from gpu_panel.run.doing import Peers, doing
    from gpu_panel.run.headline import figures, headline
    from gpu_panel.run.pane import Moment
    from gpu_panel.run.ranks import RanksPane

    store = RunStore(Run(Path("/nowhere/3f2a")))
    store.state = Run(Path("/nowhere/3f2a")).state()
    store.caught_up = True
    store.fold([(0, told), (1, told)])
    headline(store, T0 + 5, 80)
    figures(store, T0 + 5)
    banner(store, T0 + 5)
    for subject in subjects.every(store):
        subject.title(store)
        subject.lines(store)
    table = RanksPane()
    table.paint(store, Moment(T0 + 5, True, None))
    table.build(80)
    for view in store.ranks.values():
        doing(view, Peers.of(store.ranks), T0 + 5, live=True)
    for series in store.loss.ranks.values():
        assert all(math.isfinite(v) for v, n in zip(series.lo, series.count, strict=True) if n)


async def test_what_is_being_read_as_an_owner_leaves_is_not_lost(tmp_path):
    """The preview of a run hands its store to the run's screen, at any moment."""
    run = trained(tmp_path)
    store = RunStore(run.run)
    turns = 0
    while not store.caught_up:
        owner = asyncio.create_task(store.follow())
        for _ in range(turns):  # leave a little later each time
            await asyncio.sleep(0)
        turns += 1
        owner.cancel()
        await asyncio.gather(owner, store.reading or asyncio.sleep(0), return_exceptions=True)
    assert store.ranks[0].step == 99
    assert sum(store.loss.ranks[0].count) == sum(store.loss.ranks[1].count) == 100
