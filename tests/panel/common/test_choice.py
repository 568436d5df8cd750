"""A choice between options takes as many lines as it needs."""

from __future__ import annotations

import pytest

from gpu_panel.common.choice import Choice

from ..machines import shared_machine
from ..panel_kit import panel, settled

pytestmark = pytest.mark.usefixtures("home")


async def test_a_choice_that_takes_two_lines_is_clicked_where_it_stands():
    machine, sampler = shared_machine()
    async with panel(machine, sampler=sampler, size=(160, 48)) as (pilot, screen):
        mode = screen.query_one("#f-parallel-mode", Choice)
        mode.styles.width = 24
        await pilot.pause()
        assert mode.size.height == 2
        await pilot.click(mode, offset=(3, 1))
        await settled(pilot, screen)
        assert mode.value == "multinode" or screen.draft.value("parallel.mode") == mode.value
        lines = [strip.text.rstrip() for strip in mode.render_lines(mode.size.region)]
        assert lines[1].lstrip()[:1] == "●"
