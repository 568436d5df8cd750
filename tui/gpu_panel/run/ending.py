"""The run screen's dealings with the run itself: stop it, resume it, all about it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from textual import work

from gpu_engine.common.errors import UserError
from gpu_panel.common.background import in_thread
from gpu_panel.common.errors import guard

if TYPE_CHECKING:
    from gpu_panel.run.screen import RunScreen


class EndActions:
    """Mixed into the run screen."""

    _asked_to_stop = False

    def action_about(self: RunScreen) -> None:
        from gpu_panel.run.about import AboutRun

        self.app.push_screen(AboutRun(self.store, self.clock))

    @work(group="stop", exclusive=True, exit_on_error=False)
    async def action_stop(self: RunScreen) -> None:
        from gpu_panel.common.dialogs import Confirm

        state = self.store.state
        left = self.store.left
        if state is None or not (state.live or left):
            return
        now = self._asked_to_stop or state.state == "stopping"
        if left:
            question = Confirm(
                f"End what is left of run {self.run_folder.id}?",
                f"Its supervisor is gone; pid {', '.join(map(str, left[:8]))} still run"
                f"{'s' * (len(left) == 1)}.", yes="End it", no="Leave it")
        elif now:
            question = Confirm(
                f"End run {self.run_folder.id} now?",
                "It has been asked to stop. Ended now, the ranks don't finish their step: what "
                "came after the last checkpoint is lost.", yes="End now", no="Keep waiting")
        else:
            question = Confirm(
                f"Stop run {self.run_folder.id}?",
                "The ranks finish their step and save a checkpoint; the run can be resumed.",
                yes="Stop", no="Go on")
        if not await self.app.push_screen_wait(question):
            return
        try:
            await asyncio.to_thread(self.run_folder.stop, now=now)
        except (UserError, OSError) as err:
            self.notify(str(err), severity="warning", markup=False)
            return
        if left:
            self.notify("ended what was left")
            return
        self._asked_to_stop = True
        self.notify("ending the ranks" if now else "asked the ranks to stop")

    @work(group="resume", exclusive=True, exit_on_error=False)
    async def action_resume(self: RunScreen) -> None:
        """Ask for another attempt; this screen then follows it."""
        from gpu_panel.run.resume_dialog import Outset, Resume

        with guard(self.app):
            outset = await in_thread(lambda: Outset.of(self.run_folder), name="panel-outset")
            if await self.app.push_screen_wait(Resume(self.run_folder, outset)):
                await self.store.look_now()
                self.paint()
