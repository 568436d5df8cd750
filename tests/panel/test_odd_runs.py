"""Odd run folders in the panel: each has a line in the list, and its screen opens."""


from gpu_panel.launch.runs import RunsPane
from gpu_panel.run.screen import RunScreen

from .. import odd_runs, powers
from ..conftest import slots
from .panel_kit import on_top, panel, says, shown, until


async def test_each_is_a_line_with_its_reason_and_can_be_opened():
    good = odd_runs.ended()
    made = odd_runs.make()
    try:
        with powers.root_powers_dropped():
            async with panel(slots(1), size=(160, 60)) as (pilot, screen):
                table = screen.query_one(RunsPane)
                await until(pilot, lambda: table.lines is not None
                            and len(table.lines) == len(made) + 1)
                states = {line.id: line for line in table.lines}
                assert states[good.id].state == "completed"
                for what, (path, words) in made.items():
                    line = states[path.name]
                    told = f"{line.reason} {line.odd}"
                    assert words in told or what == "its plan has another shape", what
                closed = made["it is closed"][0].name
                assert states[closed].state == "unreadable"
                assert "can't be read: permission denied" in shown(table)

                await pilot.press("escape", "4")
                await until(pilot, lambda: table.has_focus)
                for what in ("it is closed", "events are a FIFO", "a log is a FIFO"):
                    table.cursor = [line.id for line in table.lines].index(made[what][0].name)
                    await pilot.press("enter")
                    await on_top(pilot, RunScreen)
                    run_screen = pilot.app.screen
                    await until(pilot, lambda s=run_screen: s.store.caught_up)
                    if what == "it is closed":
                        await says(pilot, "unreadable")
                    await pilot.press("escape")
                    await on_top(pilot, screen)
    finally:
        odd_runs.reopen(made)
