"""gpu-engine follow: a run until it ends, line by line, as run does."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import click

from gpu_engine.cli import ranks, tab
from gpu_engine.cli.output import echo, line, lines
from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError, with_type
from gpu_engine.events.reader import Tail
from gpu_engine.events.writer import to_dict
from gpu_engine.runs.folder import EXIT_CODES, Run, State
from gpu_engine.runs.follow import Follower

if TYPE_CHECKING:
    from gpu_engine.plan.records import LaunchPlan
    from gpu_engine.remote.reach.files import At

_LINE_EVERY, _LOOK_EVERY = 2.0, 0.25
"""Seconds between two lines of progress, and between two looks at the run."""


@click.command()
@click.argument("run", default="last", shell_complete=tab.runs)
@click.option("--at", multiple=True, metavar="FILE:BYTE",
              help="Of this file only what stands from this byte on; or of several.")
@click.option("--rank", "ranks", type=click.IntRange(0), multiple=True,
              help="Only the files of this rank; several times for several.")
@click.option("--node", type=click.IntRange(0), default=0, hidden=True)
@click.option("--json", "as_json", is_flag=True,
              help="Print lines of JSON: how the run is, whenever that changes, and what its "
                   "files gain.")
def follow(run: str, at: tuple[str, ...], ranks: tuple[int, ...], node: int, as_json: bool) -> None:
    """Follow RUN (an id, the beginning of one, or "last") to its end, as run does. Ctrl-C ends the
    following, not the run.

    With --json the files are what its ranks record (ranks/*.jsonl, a line of JSON for each event)
    and print (*.log), and what the devices did (devices.jsonl). --at goes on behind a line that
    came: at its offset and the bytes of its text.
    """
    from gpu_engine.places.verbs import find

    found = find(run)
    if as_json:
        from gpu_engine.remote.there import follow as following

        lines(following.lines(found, map(_at, at), ranks or None, node))
        sys.exit(EXIT_CODES.get(found.state().state, 1))
    if at or ranks:
        raise click.UsageError("--at and --rank go with --json; logs --rank shows one rank's")
    sys.exit(to_the_end(found, found.require_plan(), leave=True))


def _at(text: str) -> At:
    """FILE:BYTE, or with the check of what is before it. Raises click.UsageError."""
    from gpu_engine.remote.reach import files

    name, *numbers = text.split(":")
    try:
        found = files.At(name, *map(int, numbers))
    except (TypeError, ValueError):
        found = None
    if found is None or min(found[1:]) < 0:
        raise click.UsageError(f"--at {text}: expected FILE:BYTE, as ranks/00000.log:4096")
    if files.here(name) is None:
        raise click.UsageError(f"--at {text}: {name} is none of the files that are followed: "
                               "ranks/00000.jsonl, ranks/00000.log, node0.log, devices.jsonl, "
                               "supervisor.log")
    return found


def to_the_end(run: Run, plan: LaunchPlan, *, as_json: bool = False, quiet: bool = False,
               leave: bool = False, output: ranks.Output | None = None) -> int:
    """Follow a run that was just started. Returns the exit code for this program.

    What the ranks print and the result go to standard output, progress to standard error. quiet: no
    progress. as_json: nothing but lines of JSON, on standard output. leave: Ctrl-C leaves the run.
    output: what of the ranks' output is printed; None: all.
    """
    follower = Follower(run)
    if as_json:
        lines = _Json(follower, plan)
        state = watch(follower, quiet=True, each=lines.print_new)
        lines.print_json("ended", state.to_dict())
        return EXIT_CODES.get(state.state, 1)  # live: nobody here can follow it
    if not quiet:
        for warning in plan.warnings:
            echo(f"warning: {warning}", err=True)
        echo(f"run {run.id}  {plan.name}  {plan.sentences()[0]}  {run.path}", err=True)
        if plan.chosen is not None:
            echo(plan.chosen, err=True)
    output = output or ranks.of_ranks(run)
    state = watch(follower, quiet=quiet, each=output.show, leave=leave)
    _report_end(follower)
    return EXIT_CODES.get(state.state, 1)  # live: nobody here can follow it


class _Json:
    """Tells of a run in lines of JSON: what its ranks record and print, and its state."""

    def __init__(self, follower: Follower, plan: LaunchPlan) -> None:
        self._run = follower.run
        self._tails: dict[int, Tail] = {}
        self._state: str | None = None
        self.print_json("run", {"id": self._run.id, "path": str(self._run.path), "name": plan.name,
                                 "chosen": plan.chosen, "warnings": list(plan.warnings)})

    def print_new(self, last: bool) -> None:
        """Print what is new."""
        state = self._run.state()
        if state.state != self._state and state.live:
            self._state = state.state
            self.print_json("state", {"state": state.state})
        for rank in self._run.ranks():
            tail = self._tails.setdefault(rank, Tail(self._run.events(rank)))
            while events := tail.read():
                for event in events:
                    self.print_json(event.kind, to_dict(event) | {"rank": rank})

    @staticmethod
    def print_json(kind: str, fields: dict[str, object]) -> None:
        """Print a line of this kind at once."""
        echo(line({"kind": kind} | fields))
        sys.stdout.flush()


def watch(follower: Follower, *, quiet: bool = False, leave: bool = False,
          each: Callable[[bool], None] = lambda last: None) -> State:
    """Show progress until the run has ended. Ctrl-C stops it; a second Ctrl-C kills it. `each` is
    called at each look, the last time with True. quiet: no progress. leave: Ctrl-C is raised."""
    from gpu_engine.places.verbs import Followed
    from gpu_engine.plan.own_command import on_stop

    goes_on, pressed, progress = Followed(follower.run), 0, _Progress(follower)
    while True:
        try:
            release()
            if not quiet:
                follower.poll()
            # Of a quiet run only the state is read: the ranks need the cores.
            state = follower.run.state() if quiet else follower.state
            live = goes_on(state)
            each(not live)
            if not live:
                follower.poll(budget=2.0)
            if not quiet:
                progress.show(live=live)
            if not live:
                return follower.state
            follower.wait(_LOOK_EVERY)
        except KeyboardInterrupt:
            if leave:
                raise
            hold()
            pressed += 1
            try:
                follower.run.stop(now=pressed > 1)
            except UserError:
                continue  # it has just ended; the next check finds out how
            if pressed == 1:
                echo(f"\nstopping: {on_stop(follower.run.require_plan().spec)}; press Ctrl-C again "
                     "to end the run now", err=True)


class _Progress:
    """The lines about a run while it goes on, on standard error."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._shown, self._step = 0.0, None
        self._reason: str | None = None
        self._warned: set[str] = set()

    def show(self, *, live: bool) -> None:
        """Print what is new: why it can't be followed, warnings, and now and then its step."""
        state, p = self._follower.state, self._follower.progress()
        if state.live and state.reason not in (None, self._reason):
            self._reason = state.reason  # a host that can't be reached
            echo(clean(state.reason or ""), err=True)
        for warning in state.warnings if live else ():  # at the end all come with their cures
            if warning.code not in self._warned:
                self._warned.add(warning.code)
                echo(clean(f"warning: {warning.message}"), err=True)
        now = time.monotonic()
        if p.step in (None, self._step) or (live and now - self._shown < _LINE_EVERY):
            return
        self._shown, self._step = now, p.step
        total = f"/{p.total_steps:,}" if p.total_steps else ""
        line = f"step {units.count(p.step)}{total}  loss {units.loss(p.loss)}  " \
               f"{units.pace(p.samples_per_s, p.steps_per_s)}"
        if live and (left := state.left(p.seconds_left, time.time())) is not None:
            line += f"  {units.clock(left)} left"
        echo(line, err=True)


_noted = False
"""Whether Ctrl-C was pressed while a run was being started or asked to stop: it takes effect a
moment later. Otherwise it would end this command and leave the run going on."""


def hold() -> None:
    """From now on Ctrl-C is only noted."""
    signal.signal(signal.SIGINT, _note)


def release() -> None:
    """Ctrl-C is KeyboardInterrupt again. Raises it, if it was noted meanwhile."""
    global _noted
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if _noted:
        _noted = False
        raise KeyboardInterrupt


def _note(number: int, frame: FrameType | None) -> None:
    global _noted
    _noted = True


def _report_end(follower: Follower) -> None:
    """Print how the run ended: one line, then the cause if it failed."""
    follower.poll(budget=2.0)
    state, p = follower.state, follower.progress()
    evaluations = next((v.evaluations for v in follower.ranks.values() if v.evaluations), {})
    took = (state.ended - state.started) if state.ended and state.started else None
    line = f"{state.id} {state.state}"
    if p.step is not None:
        line += f" after {units.counted(p.step, 'step')}"
    if p.trainings > 1:
        line += f" of {p.trainings} trainings"
    if took is not None:
        line += f" in {units.clock(took)}"
    if p.loss is not None:
        line += f", loss {units.loss(p.loss)}"
    for name, value in evaluations.items():
        line += f", eval {name} {units.loss(value)}"
    echo(line)
    explain(state)
    ranks.print_notices(state, err=True)


def explain(state: State) -> None:
    """Print why the run is as it is: the error of the rank that failed first, with its traceback.
    """
    if state.cause is not None:
        who = f"{state.cause.who} failed first: " if state.cause.who is not None else ""
        what = with_type(state.cause.type, state.cause.message)
        echo(clean(f"{who}{what}"), err=True)
        for text in (state.cause.traceback or "").splitlines():
            echo("  " + clean(text), err=True)
    elif why := state.why(time.time()):
        echo(clean(why), err=True)
