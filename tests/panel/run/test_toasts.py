"""Messages leave the traceback in sight."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_panel.run.log import LogView

from ..run_kit import SMALL, WIDE, Mini, settled, trained, until


@pytest.mark.parametrize("size", [SMALL, WIDE])
async def test_a_message_lies_on_the_keys_and_not_on_the_log(tmp_path: Path, size) -> None:
    run = trained(tmp_path)
    app = Mini(run.run)
    async with app.run_test(size=size, notifications=True) as pilot:
        await settled(pilot)
        await pilot.press("4")
        app.notify("Run 3f2a failed: rank 1: the labels are not in 0..9", title="Failed")
        await until(pilot, lambda: app.screen.query("Toast"))
        (toast,) = app.screen.query("Toast")
        await until(pilot, lambda: toast.region.height)
        log = app.run_screen.query_one(LogView)
        assert toast.region.height == 2
        assert not log.content_region.overlaps(toast.region)
        assert toast.region.bottom == size[1]
