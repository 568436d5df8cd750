"""Following a run until it ends: in place in a terminal, line by line in a pipe."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from gpu_engine.cli import logs
from gpu_engine.cli.output import coloured, echo
from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError, with_type
from gpu_engine.events.rank_view import RankView
from gpu_engine.events.reader import Tail
from gpu_engine.events.writer import json_safe, to_dict
from gpu_engine.runs.folder import EXIT_CODES, Run, State
from gpu_engine.runs.follow import Follower

if TYPE_CHECKING:
    from rich.table import Table

    from gpu_engine.plan.records import LaunchPlan

GoesOn = Callable[[State], bool]
"""Whether a run in this state goes on; may take it up."""
Each = Callable[[bool], None]
"""Called at each look, the last time with True."""
_PLAIN_EVERY = 2.0
"""Seconds between two lines of progress."""
_LOOK_EVERY = 0.25


def to_the_end(run: Run, plan: LaunchPlan, *, as_json: bool = False, quiet: bool = False) -> int:
    """Follow a run that was just started. Returns the exit code for this program.

    What the ranks print and the result go to standard output, progress to standard error. In a
    terminal a table of the ranks takes the place of what they print. quiet: no progress. as_json:
    nothing but lines of JSON, on standard output.
    """
    follower = Follower(run)
    if as_json:
        told = _Json(follower, plan)
        state = watch(follower, quiet=True, each=told.print_new)
        told.end(state)
        return EXIT_CODES[state.state]
    if not quiet:
        for warning in plan.warnings:
            echo(f"warning: {warning}", err=True)
        echo(f"run {run.id}  {plan.name}  {plan.sentences()[0]}  {run.path}", err=True)
        if plan.chosen is not None:
            echo(plan.chosen, err=True)
    table = not quiet and sys.stdout.isatty() and sys.stderr.isatty()
    state = watch(follower, quiet=quiet, each=_nothing if table else logs.of_ranks(run).show)
    report_end(follower)
    return EXIT_CODES[state.state]


def _nothing(last: bool) -> None:
    pass


class _Json:
    """Tells of a run in lines of JSON: what its ranks record and print, and its state."""

    def __init__(self, follower: Follower, plan: LaunchPlan) -> None:
        self._run = follower.run
        self._tails: dict[int, Tail] = {}
        self._state: str | None = None
        self._print_json("run", {"id": self._run.id, "path": str(self._run.path), "name": plan.name,
                                 "chosen": plan.chosen, "warnings": list(plan.warnings)})

    def print_new(self, last: bool) -> None:
        """Print what is new."""
        state = self._run.state()
        if state.state != self._state and state.live:
            self._state = state.state
            self._print_json("state", {"state": state.state})
        for rank in self._run.ranks():
            tail = self._tails.setdefault(rank, Tail(self._run.events(rank)))
            while events := tail.read():
                for event in events:
                    self._print_json(event.kind, to_dict(event) | {"rank": rank})

    def end(self, state: State) -> None:
        """Print the state in which the run has ended."""
        self._print_json("ended", state.to_dict())

    @staticmethod
    def _print_json(kind: str, told: dict[str, object]) -> None:
        echo(json.dumps(json_safe({"kind": kind} | told), allow_nan=False))
        sys.stdout.flush()


def watch(follower: Follower, *, quiet: bool = False, each: Each = _nothing) -> State:
    """Show progress until the run has ended. Ctrl-C stops it; a second Ctrl-C kills it. `each` is
    called at each look, the last time with True."""
    from gpu_engine.launching.reattach import StillOn
    from gpu_engine.plan.own_command import on_stop

    goes_on, pressed = StillOn(follower.run), 0
    while True:
        try:
            release()
            if quiet:
                return _silent(follower, goes_on, each)
            if sys.stderr.isatty() and not _is_pipe():
                return _in_place(follower, goes_on, each)
            return _plain(follower, goes_on, each)
        except KeyboardInterrupt:
            hold()
            pressed += 1
            try:
                follower.run.stop(now=pressed > 1)
            except UserError:
                continue  # it has just ended; the next check finds out how
            if pressed == 1:
                echo(f"\nstopping: {on_stop(follower.run.require_plan().spec)}; press Ctrl-C again "
                     "to end the run now", err=True)


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


def _is_pipe() -> bool:
    """Whether standard output is a pipe, whose end may write into the same terminal as a table."""
    return stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)


def _silent(follower: Follower, goes_on: GoesOn, each: Each = _nothing) -> State:
    # Only the state is read, and not often: the ranks need the cores.
    while goes_on(follower.run.state()):
        each(False)
        follower.wait(_LOOK_EVERY)
    each(True)
    follower.poll(budget=2.0)
    return follower.state


def _plain(follower: Follower, goes_on: GoesOn, each: Each = _nothing) -> State:
    shown = 0.0
    last: tuple[object, ...] = ()
    reason: str | None = None
    told: set[str] = set()
    while True:
        follower.poll()
        live = goes_on(follower.state)
        if follower.state.live and follower.state.reason not in (None, reason):
            # A host that can't be reached.
            reason = follower.state.reason
            echo(clean(reason or ""), err=True)
        each(not live)
        if not live:
            follower.poll(budget=2.0)
        else:  # at the end all are told once more, with their cures
            for one in follower.state.warnings:
                if one.code not in told:
                    told.add(one.code)
                    echo(clean(f"warning: {one.message}"), err=True)
        now = time.monotonic()
        if now - shown >= _PLAIN_EVERY or not live:
            steps = tuple(view.step for view in follower.ranks.values())
            if steps != last and any(s is not None for s in steps):
                shown, last = now, steps
                left = follower.progress().seconds_left
                more = f"  {units.clock(left)} left" if live and left is not None else ""
                for view in follower.ranks.values():
                    echo(f"rank {view.rank}  {_rank_text(view)}{more}", err=True)
        if not live:
            return follower.state
        follower.wait(_LOOK_EVERY)


def _rank_text(view: RankView) -> str:
    total = f"/{view.total_steps:,}" if view.total_steps else ""
    return (f"step {units.count(view.step)}{total}  loss {units.loss(view.loss)}  "
            f"{units.pace(view.samples_per_s, view.steps_per_s)}")


def _in_place(follower: Follower, goes_on: GoesOn, each: Each = _nothing) -> State:
    from rich.console import Console
    from rich.live import Live

    plain = not coloured(os.environ, terminal=True)
    with Live(_table(follower), console=Console(stderr=True, no_color=plain), refresh_per_second=4,
              transient=False) as live:
        while True:
            follower.poll()
            live.update(_table(follower))
            on = goes_on(follower.state)
            each(not on)
            if not on:
                return follower.state
            follower.wait(0.2)


def _table(follower: Follower) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    p = follower.progress()
    title = f"{follower.run.id}  {follower.state.state}"
    if p.share is not None:
        title += f"  {units.share(p.share)}  {units.clock(p.seconds_left)} left"
    if follower.state.live and follower.state.reason:
        title += f"\n{clean(follower.state.reason)}"
    for one in follower.state.warnings if follower.state.live else ():
        title += f"\nwarning: {clean(one.message)}"
    table = Table(title=Text(title), title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("rank", "doing", "", "step", "loss", "examples/s", "host GiB"):
        table.add_column(name, justify="left" if name in ("rank", "doing", "") else "right",
                         no_wrap=True)
    for view in follower.ranks.values():
        bar = ProgressBar(total=view.total_steps or 1, completed=view.step or 0, width=20)
        step = units.count(view.step) + (f"/{view.total_steps:,}" if view.total_steps else "")
        table.add_row(str(view.rank), Text(clean(view.outcome or view.busy or "waiting")), bar,
                      step, units.loss(view.loss),
                      units.pace_cell(view.samples_per_s, view.steps_per_s),
                      units.gib(view.rss))
    return table


def report_end(follower: Follower) -> None:
    """Print how the run ended: one line, then the cause if it failed."""
    follower.poll(budget=2.0)
    state, p = follower.state, follower.progress()
    evaluations = next((v.evaluations for v in follower.ranks.values() if v.evaluations), {})
    took = (state.ended - state.started) if state.ended and state.started else None
    line = f"{state.id} {state.state}"
    if p.step is not None:
        line += f" after {p.step:,} steps"
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
    print_notices(state, err=True)


def print_notices(state: State, *, err: bool = False) -> None:
    """Print what is told of a run though it goes on or completes, with the lines that mend it."""
    for one in state.warnings:
        for text in (f"warning: {one.message}", *(f"    {line}" for line in one.cure)):
            echo(text, err=err)


def explain(state: State) -> None:
    """Print why the run failed: the error of the rank that failed first, with its traceback."""
    if state.cause is not None:
        who = f"{state.cause.who} failed first: " if state.cause.who is not None else ""
        what = with_type(state.cause.type, state.cause.message)
        echo(clean(f"{who}{what}"), err=True)
        for text in (state.cause.traceback or "").splitlines():
            echo("  " + clean(text), err=True)
    elif state.reason:
        echo(clean(state.reason), err=True)
