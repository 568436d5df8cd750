"""The launch screen's dealings with runs: start, follow, open, stop, remove."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from textual import work

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import write_atomic
from gpu_engine.devices.availability import Freedom
from gpu_engine.devices.leases import Holder
from gpu_panel.common import units
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import AskCount, Confirm
from gpu_panel.common.errors import guard
from gpu_panel.common.pane_bar import PaneBar
from gpu_panel.launch.devices.source import LOOKS
from gpu_panel.launch.form.pane import blame
from gpu_panel.launch.runs.pane import RunsTable

if TYPE_CHECKING:
    from gpu_engine.common.errors import Problem
    from gpu_engine.runs.folder import Run
    from gpu_panel.launch.review import Review
    from gpu_panel.launch.runs.feed import RunLine
    from gpu_panel.launch.screen import LaunchScreen


KEEP = 20
"""Runs that pruning keeps unless told otherwise."""


class RunActions:
    """Mixed into the launch screen."""

    _feed: Any = None
    _reading = False
    _skipped = False
    freedom: Mapping[str, Freedom] | None = None
    leases: Mapping[str, Holder] = MappingProxyType({})

    # --- following -----------------------------------------------------------------------------

    def refresh_runs(self: LaunchScreen) -> None:
        """Read what is new, unless the look before is still reading; where nothing runs and
        the devices are known, half as often."""
        idle = self.freedom is not None and len(self.devices.looks) >= LOOKS \
            and not self.live_runs
        self._skipped = idle and not self._skipped
        if not self._reading and not self._skipped:
            self._reading = True
            self._read_runs()

    @work(exit_on_error=False, group="runs")
    async def _read_runs(self: LaunchScreen) -> None:
        try:
            with guard(self.app):
                looks = self.devices.looks
                lines, unread, self.freedom, self.leases = await in_thread(
                    lambda: self._look_at_runs(looks), name="panel-runs")
                if self.is_mounted:
                    self.query_one(RunsTable).show(lines, unread)
                    live = self.live_runs
                    self.query_one(PaneBar).mark("runs", f"●{live}" if live else "")
                    self.review_if_leases_changed()
        finally:
            self._reading = False

    def _look_at_runs(self, looks: Any) -> tuple[list[RunLine], int, Mapping[str, Freedom],
                                                 Mapping[str, Holder]]:
        """In a thread: the disk may be slow."""
        from gpu_engine.devices import availability as free
        from gpu_engine.devices import leases as lease
        from gpu_engine.runs import folder as runs
        from gpu_panel.launch.runs.feed import RunsFeed

        if self._feed is None:
            self._feed = RunsFeed()
        lines, unread = self._feed.refresh()
        held = lease.holders(runs.leases_folder())
        return lines, unread, free.judge_all(looks, held) if looks else {}, held

    @property
    def live_runs(self: LaunchScreen) -> int:
        return sum(line.live for line in self.query_one(RunsTable).lines or ())

    def our_devices(self: LaunchScreen) -> dict[str, str]:
        """Device id → the run of ours that is on it."""
        out = {}
        for line in self.query_one(RunsTable).lines or ():
            for device, rank in line.devices:
                since = f" · {units.clock(time.time() - line.created)}"
                out[device] = f"run {line.id} rank {rank} · {line.name}{since}"
        return out

    def our_processes(self: LaunchScreen) -> dict[int, str]:
        """pid → the run and rank of ours that it is."""
        return {pid: f"run {line.id} rank {rank}"
                for line in self.query_one(RunsTable).lines or () for pid, rank in line.pids}

    # --- launching -----------------------------------------------------------------------------

    @work(exit_on_error=False, group="launch", exclusive=True)
    async def action_launch(self: LaunchScreen) -> None:
        with guard(self.app):
            if not hasattr(self, "form"):
                return
            found = await self.reviewed()
            if found is None:
                self.notify("Still looking for devices", severity="warning")
                return
            taken = await self._taken()
            held = [name for name, (state, _) in taken.items()
                    if state == "leased"]
            if found.prepared is None and not _only_held(found.problems, held, found.unusable):
                self.cant_launch(found)
                return
            # The engine starts beside others only where that is wished for.
            beside = any(state in ("leased", "busy") and not name.startswith("cpu:")
                         for name, (state, _) in taken.items())
            if taken and not await self.app.push_screen_wait(Confirm(
                    "Launch on devices that are not free",
                    "\n".join(reason for _, reason in taken.values())
                    + ("\n\nShared, both use it, and each is slower." if beside else ""),
                    yes="Share and launch" if beside else "Launch anyway")):
                return
            if beside:
                self.draft.share()
                found = await self.reviewed()
                if found is None or found.prepared is None:
                    self.cant_launch(found)
                    return
            prepared = found.prepared

            def start() -> Run:
                from gpu_engine.launch import launcher as launch

                return launch.start(prepared)

            run = await in_thread(start, name="panel-launch")
            self.open_run(run)

    def _to_problem(self: LaunchScreen, problems: Any) -> None:
        first = problems[0].key
        self.action_pane("devices" if first.startswith("devices.") else "form")
        self.form.focus_problem(problems)

    def cant_launch(self: LaunchScreen, found: Review | None) -> None:
        """Say why not, and go there."""
        if found is not None and found.problems:
            self.notify(blame(found.problems[0]), title="Can't launch", severity="error",
                        markup=False)
            self._to_problem(found.problems)

    async def _taken(self: LaunchScreen) -> dict[str, tuple[str, str]]:
        """Device id → state and reason of ticked ones that are not free; what is merely not
        known long enough is no reason."""
        from gpu_engine.devices import availability as free

        inventory = self.devices.inventory
        states = free.judge_all(self.devices.looks, await self.devices.leases())
        out: dict[str, tuple[str, str]] = {}
        for name in self.draft.ids:
            device = inventory.find(name) if inventory is not None else None
            if device is None or device.id not in states:
                continue
            state = states[device.id]
            # Any program keeps cores busy for moments; a run of ours is another matter.
            fine = ("free", "unknown", "busy") if device.is_cpu else ("free", "unknown")
            if state.state not in fine:
                out[device.id] = (state.state, f"{device.label}: {state.reason}")
        return out

    def open_run(self: LaunchScreen, run: Run) -> None:
        from gpu_panel.run.screen import RunScreen

        self.app.push_screen(RunScreen(run))

    # --- the list ------------------------------------------------------------------------------

    # By name, as @on is only found in a class that handles messages itself.
    @work(exit_on_error=False, group="run", exclusive=True)
    async def on_runs_table_wanted(self: LaunchScreen, event: RunsTable.Wanted) -> None:
        with guard(self.app):
            line = event.line
            if event.what == "open":
                self.open_run(line.run)
            elif event.what == "stop":
                await self.stop_run(line)
            elif event.what == "resume":
                await self._resume(line)
            else:
                await self._remove(line)

    async def stop_run(self: LaunchScreen, line: RunLine, title: str = "") -> None:
        if not line.live:
            self.notify(f"Run {line.id} is {line.state} already", markup=False)
            return
        if await self.app.push_screen_wait(Confirm(
                title or f"Stop run {line.id}", f"{line.name}: its ranks finish their step, save a "
                "checkpoint and end.", yes="Stop it", no="Let it run")):
            await in_thread(line.run.stop, name="panel-stop")
            self.notify(f"Run {line.id} was asked to stop", markup=False)

    async def _resume(self: LaunchScreen, line: RunLine) -> None:
        from gpu_panel.run.resume_dialog import ResumeDialog
        from gpu_panel.run.resume_options import ResumeOptions

        options = await in_thread(lambda: ResumeOptions.read(line.run), name="panel-resume")
        if await self.app.push_screen_wait(ResumeDialog(line.run, options)):
            self._look_at_once()
            self.open_run(line.run)

    async def _remove(self: LaunchScreen, line: RunLine) -> None:
        if line.live:
            self.notify(f"Run {line.id} is running: s stops it", severity="warning",
                        markup=False)
            return
        size = await in_thread(line.run.size, name="panel-size")
        if await self.app.push_screen_wait(Confirm(
                f"Remove run {line.id}", f"{line.name}: deletes {line.run.path} with logs and "
                f"checkpoints, {units.size(size)}. This can't be undone.", yes="Delete it")):
            await in_thread(line.run.remove, name="panel-remove")
            self._look_at_once()

    def _look_at_once(self: LaunchScreen) -> None:
        if self._feed is not None:
            self._feed.look_anew()
        self._skipped = True
        self.refresh_runs()

    @work(exit_on_error=False, group="run", exclusive=True)
    async def on_runs_table_prune(self: LaunchScreen) -> None:
        with guard(self.app):
            ended = await in_thread(_ended, name="panel-ended")
            if not ended:
                self.notify("No run has ended yet", severity="warning")
                return
            total = units.size(sum(size for _, size in ended))
            keep = await self.app.push_screen_wait(AskCount(
                "Keep the newest runs", min(KEEP, len(ended)), len(ended),
                f"Of the runs that have ended ({total} in all), how many of the newest stay?"))
            if keep is None:
                return
            going = ended[keep:]
            if not going:
                self.notify("All of them stay")
                return
            size = units.size(sum(size for _, size in going))
            names = ", ".join(run.id for run, _ in going[:12])
            names += f" and {len(going) - 12} more" if len(going) > 12 else ""
            if await self.app.push_screen_wait(Confirm(
                    f"Remove {len(going)} run{'s' * (len(going) > 1)}",
                    f"Deletes {size} of logs and checkpoints: {names}. This can't be undone.",
                    yes="Delete them")):
                await in_thread(lambda: _remove_all(run for run, _ in going), name="panel-prune")
                self._look_at_once()

    # --- copying -------------------------------------------------------------------------------

    def copy_line(self: LaunchScreen, text: str) -> None:
        """To the terminal's clipboard, which never says whether it took it, and to a file."""
        from gpu_engine.runs import folder as runs

        self.app.copy_to_clipboard(text)
        path = runs.home() / "copied.txt"
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomic(path, text + "\n")
        except OSError as err:
            self.notify(f"Sent to the terminal's clipboard; {path} can't be written: "
                        f"{err.strerror}", severity="warning", markup=False)
            return
        self.notify(f"Sent to the terminal's clipboard, and kept in {path}", title="Copied",
                    markup=False)


def _ended() -> list[tuple[Run, int]]:
    """Runs that have ended, newest first, with their bytes on disk."""
    from gpu_engine.runs import folder as runs

    return [(run, run.size()) for run in runs.all_runs() if run.state().state in runs.FINAL]


def _remove_all(going: Iterable[Run]) -> None:
    """Raises UserError with all that could not be removed, after removing the others."""
    trouble: list[str] = []
    for run in going:
        try:
            run.remove()
        except (UserError, OSError) as err:
            trouble.append(str(err))
    if trouble:
        raise UserError("\n".join(trouble))


def _only_held(problems: Sequence[Problem], held: Sequence[str], unusable: bool) -> bool:
    """Whether all that does not fit is that other runs hold these devices."""
    return not unusable and all(p.key == "devices.ids" and p.value in held for p in problems)
