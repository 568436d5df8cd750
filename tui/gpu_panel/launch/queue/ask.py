"""Asks what the form's run is to wait for, and puts it into the queue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from textual.app import App
from textual.binding import Binding

from gpu_engine.common.errors import Problem, SpecError
from gpu_engine.devices.records import Inventory
from gpu_engine.queue import submit
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import Confirm
from gpu_panel.launch.draft import Draft
from gpu_panel.launch.queue.dialog import Queued, QueueDialog
from gpu_panel.launch.queue.wish import Wish, to_vary
from gpu_panel.launch.runs.line import RunLine

_CURED = ("devices.ids", "devices.pick")
"""Keys of problems that another answer in the dialog may cure."""


class LaunchTaken(Confirm):
    """Asks whether to launch on devices that are not free. `waits`: the person has put the run into
    the queue instead."""

    BINDINGS = [Binding("Q", "wait", "wait for them")]  # noqa: RUF012  Textual's way
    waits = False

    def action_wait(self) -> None:
        self.waits = True
        self.dismiss(False)


async def problems(draft: Draft, inventory: Inventory) -> tuple[Problem, ...]:
    """What does not fit and waiting would not cure, whatever the person answers in the dialog."""
    def look() -> tuple[Problem, ...]:
        try:
            submit.plan(first_wish(draft).spec(draft.spec_to_wait()), inventory)
        except SpecError as err:
            return tuple(p for p in err.problems if p.key not in _CURED)
        return ()

    return await in_thread(look, name="panel-queue")


async def ask_and_queue(app: App[Any], draft: Draft, inventory: Inventory,
                        runs: tuple[RunLine, ...], *, vary: bool) -> Queued | None:
    """Show the dialog; None if the person leaves it. `vary`: begin with the values that are to
    vary. Call this from a worker. Raises SpecError."""
    live, spec, first = [line for line in runs if line.live], draft.spec_to_wait(), \
        first_wish(draft)
    if vary:
        first = replace(first, vary=to_vary(spec))
    found: Queued | None = await app.push_screen_wait(QueueDialog(
        spec, inventory, draft.base, first, live, vary=vary))
    if found is not None:
        whose = found.sweep[0].upper() + found.sweep[1:] if found.sweep else f"Run {found.run.id}"
        same.done(app, f"{whose} waits in the queue for {found.devices}", [found.words])
        if found.doubt is not None:
            app.notify(found.doubt, title=f"Run {found.run.id}", severity="warning", markup=False,
                       timeout=12)
    return found


def first_wish(draft: Draft) -> Wish:
    """What the dialog proposes: the ticked devices; as many as the preset asks for, if it does not
    name them and the person has ticked none."""
    picks = None if draft.ids_by_hand else draft.picks
    free = draft.picks_with
    return Wish(picks is not None or not draft.ids, str(picks or max(1, len(draft.ids))),
                f"{free:g}" if free and picks else "")
