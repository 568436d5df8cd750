"""What is done to several runs at once, after one question that names them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from textual.app import App

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.runs import notes
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import Confirm
from gpu_panel.launch.runs.remove import into_bin, remove_all
from gpu_panel.run.questions import ask_to_cancel, ask_to_leave

if TYPE_CHECKING:
    from gpu_engine.runs.notes import Notes
    from gpu_panel.launch.runs.line import RunLine

_NAMED = 12
"""The most runs that a question names one by one."""


def named(lines: Sequence[RunLine]) -> str:
    """ "3f2a digits, 2c11 vgg and 4 more"."""
    names = [f"{line.id} {clean(line.name)}" for line in lines[:_NAMED]]
    more = len(lines) - _NAMED
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


async def ask_and_stop(app: App[Any], lines: Sequence[RunLine], title: str = "") -> None:
    """Ask the person, then ask the live ones of these runs to stop. Call this from a worker. Raises
    UserError, naming every run that could not be asked."""
    live = [line for line in lines if line.live]
    if not live:
        app.notify(f"Run {lines[0].id} has already ended: {lines[0].state}" if len(lines) == 1
                   else "These runs have already ended", markup=False)
        return
    waits = [line for line in live if line.state == "queued" and line.job]
    queue = [line for line in live if line.waits]
    if len(lines) == 1:
        question = ask_to_cancel(live[0].id) if waits else ask_to_leave(live[0].id) if queue \
            else Confirm(
            title or f"Stop run {live[0].id}", f"{live[0].name}: its ranks finish their step, save "
            "a checkpoint and end.", yes="Stop it", no="Keep running")
    else:
        going = [line for line in live if not line.waits]
        parts = [f"{named(going)}: their ranks finish their step, save a checkpoint and end."] \
            if going else []
        parts += [f"{named(queue)}: waiting, and removed from the queue."] \
            if queue else []
        text = " ".join(parts)
        if waits:
            text += f" {named(waits)}: still in Slurm's queue, and cancelled there."
        if len(live) < len(lines):
            text += f" {len(lines) - len(live)} of the {len(lines)} marked runs have ended."
        question = Confirm(f"Stop {len(live)} run{'s' * (len(live) > 1)}", text, yes="Stop them",
                           no="Keep running")
    if not await app.push_screen_wait(question):
        return
    from gpu_engine.launching.lookup import stop

    await in_thread(lambda: _each(live, lambda line: stop(line.run)), name="panel-stop")
    same.done(app, f"Run {live[0].id} was removed from the queue" if len(live) == len(queue) == 1
              else f"Run {live[0].id} was asked to stop" if len(live) == 1
              else f"{len(live)} runs were asked to stop", [["stop", line.id] for line in live])


async def ask_and_remove(app: App[Any], lines: Sequence[RunLine]) -> bool:
    """Ask the person, then move those of these runs that have ended into the bin. Returns
    whether any was. Call this from a worker. Raises UserError, naming every run that could
    not be deleted."""
    going = [line for line in lines if not line.live and line.state != "unreadable"]
    if not going:
        app.notify("None of the marked runs has ended: s stops them", severity="warning")
        return False
    sizes = await in_thread(lambda: sum(line.run.size() for line in going), name="panel-size")
    text = f"{named(going)}: {into_bin(sizes, 'ID')}"
    if len(going) < len(lines):
        text += f" {len(lines) - len(going)} of the {len(lines)} marked runs stay: they still " \
                "run or can't be read."
    if not await app.push_screen_wait(Confirm(f"Remove {len(going)} runs", text,
                                              yes="Remove them")):
        return False
    await in_thread(lambda: remove_all(line.run for line in going), name="panel-remove")
    same.done(app, f"{len(going)} runs are in the bin",
              [["runs", "rm", *(line.id for line in going)]])
    return True


def _each(lines: Sequence[RunLine], work: Callable[[RunLine], object]) -> None:
    """Do it to each run. Raises UserError at the end with all that went wrong."""
    trouble: list[str] = []
    for line in lines:
        try:
            work(line)
        except (UserError, OSError) as err:
            trouble.append(str(err))
    if trouble:
        raise UserError("\n".join(trouble))


async def write_on(app: App[Any], lines: Sequence[RunLine], change: Callable[[Notes], Notes]
                   ) -> None:
    """Change what is written on these runs. Raises UserError, naming every run on which that
    failed."""
    changed: list[list[str]] = []

    def write(line: RunLine) -> None:
        before = notes.read(line.run.path)
        changed.append(same.note(line.id, before, notes.change(line.run.path, change)))

    await in_thread(lambda: _each(lines, write), name="panel-notes")
    same.done(app, f"Written on run {lines[0].id}" if len(lines) == 1
              else f"Written on {len(lines)} runs", [one for one in changed if len(one) > 2])
