"""Whatever a run folder holds, the run screen shows what it can."""

import math
import unicodedata

from gpu_engine.runs.folder import Cause

from ..run_kit import (
    SMALL,
    T0,
    WIDE,
    Mini,
    Written,
    flat,
    reached,
    screen_text,
    settled,
    trained,
    watched,
)


async def test_losses_that_are_not_finite(tmp_path):
    run = Written(tmp_path)
    for rank in (0, 1):
        run.start(rank)
        run.steps(rank, 0, 9)
    run.steps(1, 10, 14, loss=[1.0, math.nan, math.inf, -math.inf, math.nan])
    run.steps(0, 10, 14)
    async with watched(run, lambda s: s.view.bad_step is not None, at=8) as (_pilot, app):
        text = flat(screen_text(app))
        assert "the loss of rank 1 was not finite at step 11" in text
        assert "×" in text
        assert "1 not finite" in text
        assert "NaN" in text


async def test_damaged_and_torn_and_foreign_lines(tmp_path):
    run = trained(tmp_path)
    run.raw(0, b"not json\n\x00\xff\xfe\n[1,2]\n{\"t\":1}\n")
    run.raw(0, b'{"t":%d,"kind":"step","step":"x","losses":7}\n' % T0)
    run.raw(0, b'{"t":%d,"kind":"_init__","x":1}\n' % T0)
    run.raw(0, b'{"t":%d,"kind":"memory","gpu_allocated":[{}],"rss":[]}\n' % T0)
    run.raw(0, b'{"t":%d,"kind":"step","step":130,"losses":[null,"x",2]}\n' % T0)
    run.raw(0, b'{"t":%d,"kind":"step","step":120,"loss":1e300,"later":[{}]}\n' % T0)
    run.raw(0, b'{"t":1790000051,"kind":"step","step":121,"n":1,"los')  # not finished yet
    async with watched(run, lambda s: s.skipped_lines == 7) as (pilot, app):
        assert "damaged lines ignored" in flat(screen_text(app))
        store = app.run_screen.store
        assert store.ranks[0].step == 120
        run.raw(0, b'ses":[1.5]}\n')
        await settled(pilot, reached(0, 121))
        assert store.loss.ranks[0].at(121) == (1.5, 1.5, 1.5)


async def test_names_and_errors_can_do_nothing(tmp_path):
    evil = "\x1b]52;c;eA==\x07\x1b[2J\u202e[bold]ev[/il"
    run = trained(tmp_path, name=evil)
    run.write(0, ("warning", 1, {"message": evil}),
              ("eval", 2, {"step": 3, evil: 1.0}),
              ("phase", 3, {"phase": evil, "since": T0, "step": 1}),
              ("checkpoint", 4, {"step": 3, "path": evil, "seconds": 1.0, "bytes": 5}),
              ("error", 5, {"type": evil, "message": evil, "traceback": evil + "\n" + evil}))
    run.state("failed", ended=T0 + 9, reason=evil, cause=Cause(evil, 0, evil, evil))
    for size in (WIDE, SMALL):
        async with watched(run, lambda s: s.view.first_error() is not None, size=size) as (
                _pilot, app):
            text = screen_text(app)
            assert "[bold]ev[/il" in text
            assert not [c for c in text.replace("\n", "")
                        if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


async def test_a_folder_with_nothing_in_it(tmp_path):
    from gpu_engine.runs.folder import Run

    (tmp_path / "9999").mkdir()
    app = Mini(Run(tmp_path / "9999"))
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        assert "? lost: state.json is missing" in flat(screen_text(app))


async def test_on_cpu_host_memory_is_drawn(tmp_path):
    run = Written(tmp_path, cpu=True)
    for rank in (0, 1):
        run.start(rank)
        run.steps(rank, 0, 19, cpu=True)
    async with watched(run, reached(1, 19), at=10) as (_pilot, app):
        text = flat(screen_text(app))
        assert "host memory ─ 2.2 GiB a rank" in text
        assert "allocated" not in text  # columns for GPUs
