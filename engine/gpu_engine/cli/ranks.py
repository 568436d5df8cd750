"""What the ranks of a run print, and what they are asked while they run: gpu-engine logs, stacks,
trace and stop."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpu_engine.cli import output, tab
from gpu_engine.cli.output import echo, for_scripts, in_json
from gpu_engine.common import units
from gpu_engine.common.clean import clean, clean_bytes
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import MOST, file_inside
from gpu_engine.events.notices import NOT_FETCHED
from gpu_engine.events.paths import inside

if TYPE_CHECKING:
    from gpu_engine.runs.folder import Run, State

_LATE = 15.0
"""Seconds that a stop waits for the end of what a host was told late."""


@click.command()
@click.argument("run", default="last", shell_complete=tab.runs)
@click.option("--rank", type=click.IntRange(0), help="Only this rank.")
@click.option("-n", "count", type=click.IntRange(0), help="Only the last N lines of each.")
@click.option("--search", metavar="TEXT", help="Only lines with TEXT, whatever its case.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the run has ended.")
@click.option("--supervisor", is_flag=True,
              help="Print the supervisor's own log instead; of a Slurm job, its script's.")
def logs(run: str, rank: int | None, count: int | None, search: str | None, follow: bool,
         supervisor: bool) -> None:
    """Print the logs of RUN's ranks (an id, the beginning of one, or "last").

    Colours and all else that a terminal obeys are left out; of a progress bar the last state is
    kept. The files are ranks/*.log in the run folder, for less -R.
    """
    from gpu_engine.places.verbs import Followed, find

    found = find(run)
    if (state := found.state()).state == "unreadable":
        raise UserError(f"run {found.id}: {state.reason}")
    goes_on = Followed(found)
    files = _files(found, rank) if not supervisor else \
        {"supervisor": found.path / "supervisor.log"}
    print_notices(state, only=NOT_FETCHED, err=True)
    output = Output(lambda: files, count, search)
    while True:
        # Before reading, so that the last lines are printed.
        live = follow and goes_on(found.state())
        output.show(last=not live)
        if not live:
            return
        sys.stdout.flush()
        time.sleep(0.1)


def print_notices(state: State, *, only: str = "", err: bool = False) -> None:
    """Print what is told of a run though it goes on or completes, with the lines that mend it;
    `only`: of this code."""
    for one in state.warnings:
        for text in (f"warning: {one.message}", *(f"    {line}" for line in one.cure)):
            if only in ("", one.code):
                echo(text, err=err)


def _files(run: Run, rank: int | None) -> dict[str, Path]:
    """The logs to print, by the prefix of their lines. Raises UserError."""
    if elsewhere := run.printed_elsewhere():
        raise UserError(elsewhere)
    known, plan = run.ranks(), run.plan()
    if rank is not None:
        path = run.output(rank, plan)
        if rank not in known or not path.exists():
            have = ", ".join(map(str, known))
            raise UserError(f"run {run.id} has no log of rank {rank}; it has ranks "
                            f"{have or 'none'}")
        if path != run.log(rank):
            echo(f"rank {rank} was started by the command itself: its output is mixed with "
                 "that of the command and its other ranks", err=True)
        return {f"rank {rank}": path}
    shared: dict[Path, list[str]] = {}
    for one in known:
        shared.setdefault(run.output(one, plan), []).append(str(one))
    files = {("rank " if len(ranks) == 1 else "ranks ") + ",".join(ranks): path
             for path, ranks in shared.items()}
    return files | {p.stem: p for p in sorted(run.path.glob("node*.log"))}


def of_ranks(run: Run, *, new: bool = False) -> Output:
    """All that the ranks of a run print, in whole lines; `new`: from now on."""
    output = Output(lambda: _files(run, None), 0 if new else None)
    if new:
        with suppress(UserError):  # nothing of its ranks is here
            output.show(last=True)
    return output


class Output:
    """Prints logs as they grow. `files`: which, by the prefix of their lines; `count`: only the
    last lines of what is in each at the beginning. `search`: only lines with this text."""

    def __init__(self, files: Callable[[], dict[str, Path]], count: int | None = None,
                 search: str | None = None) -> None:
        self._files, self._count, self._search = files, count, (search or "").lower()
        self._logs: dict[Path, _Log] = {}

    def show(self, last: bool) -> None:
        """Print what is new; `last`: also a line that has no end."""
        files = self._files()
        for name, path in files.items():
            count = self._count if path not in self._logs else None
            lines = self._logs.setdefault(path, _Log(path)).new(last)
            texts = (text for line in lines
                     if self._search in (text := clean_bytes(line, None)).lower())
            for text in texts if count is None else deque(texts, min(count, sys.maxsize)):
                echo((f"{name}| " if len(files) > 1 else "") + text)


class _Log:
    """One log as it grows, read a MiB at a time."""

    def __init__(self, path: Path) -> None:
        # When a log grows too large, its older part is moved to a file of its own.
        self._parts = [path.with_name(f"{path.name}.1"), path]
        self._offset, self._rest = 0, b""

    def new(self, last: bool) -> Iterator[bytes]:
        """The lines that have come since the last call; `last`: also one that has no end."""
        while True:
            with suppress(OSError), file_inside(*inside(self._parts[0])) as file:
                if file.seek(0, 2) < self._offset:  # it was cut
                    self._offset, self._rest = 0, b""
                file.seek(self._offset)
                while data := file.read(1 << 20):
                    self._offset += len(data)
                    *lines, self._rest = (self._rest + data).split(b"\n")
                    yield from lines
                    if len(self._rest) > MOST:  # no line is longer than any file of ours
                        yield self._rest
                        self._rest = b""
            older = len(self._parts) > 1
            if self._rest and (last or older):
                yield self._rest
                self._rest = b""
            if not older:
                return
            del self._parts[0]
            self._offset = 0


@click.command()
@click.argument("run", default="last", shell_complete=tab.live_runs)
@click.option("--rank", "asked", type=click.IntRange(0), multiple=True,
              help="Only this rank; several times for several.")
@click.option("--wait", type=click.FloatRange(0, 60), default=3.0, show_default=True,
              help="Seconds to wait for a stack to arrive.")
@for_scripts
def stacks(run: str, asked: tuple[int, ...], wait: float, as_json: bool) -> None:
    """Print the current stacks of RUN's ranks and their loaders' workers, while training goes on.

    These are the stacks of all threads. The ranks write them into their logs. The exit code is 1
    if a rank gave none: it has ended, is still starting, or was suspended (SIGSTOP).
    """
    from gpu_engine.common.files import size_of
    from gpu_engine.places import verbs
    from gpu_engine.runs import stacks as requests

    found = verbs.find(run)
    if not found.state().live:
        raise UserError(f"run {found.id} is not running: it is {found.state().state}")
    if absent := [r for r in asked if r not in found.ranks()]:
        raise UserError(f"run {found.id} has no rank {absent[0]}; it has ranks "
                        f"{', '.join(map(str, found.ranks())) or 'none'}")
    ranks = list(asked) or found.ranks()
    before = {r: size_of(found.log(r)) for r in ranks}
    refused = verbs.ask_for_stacks(found, ranks)
    requested = [r for r in ranks if r not in refused]
    texts: dict[int, str] = {}
    elsewhere = found.printed_elsewhere()
    changed = time.monotonic()
    end = changed + (0 if elsewhere else wait)
    while time.monotonic() < end and (len(texts) < len(requested)
                                      or time.monotonic() < changed + requests.WHOLE):
        time.sleep(0.05)
        now = {r: t for r in requested if (t := requests.printed(found.log(r), before[r]))}
        if now != texts:
            texts, changed = now, time.monotonic()
    why = {r: None if r in texts else f"printed there: {elsewhere}" if r in requested and elsewhere
           else f"requested, but nothing came within {wait:g} s: is the process suspended?"
           if r in requested else f"can't be requested: {refused[r]}" if r in refused else
           "can't be requested: the rank has ended, is still starting, or runs on another machine"
           for r in ranks}
    if as_json:
        echo(in_json([{"rank": r, "text": texts.get(r), "problem": why[r]} for r in ranks]))
    for r in () if as_json else ranks:
        echo(f"--- rank {r} ---")
        echo(texts.get(r) or clean(why[r] or ""))
        for pid, text in requests.below(found, r, wait) if r in texts else ():
            echo(f"--- rank {r}, process {pid} below it ---")
            echo(text)
    if len(texts) < len(ranks):
        sys.exit(1)


@click.command()
@click.argument("run", default="last", shell_complete=tab.runs)
@click.option("--steps", type=click.IntRange(1, 100), default=3, show_default=True,
              help="How many steps.")
@click.option("--rank", "ranks", type=click.IntRange(0), multiple=True,
              help="Only this rank; several times for several.")
@click.option("--wait", type=click.FloatRange(1, 3600), default=120.0, show_default=True,
              help="Seconds to wait for the steps.")
@for_scripts
def trace(run: str, steps: int, ranks: tuple[int, ...], wait: float, as_json: bool) -> None:
    """Trace the next steps of RUN's ranks with torch's profiler, while training goes on.

    A file for each rank, traces/… in the run folder, on a host in the folder there, is for
    https://ui.perfetto.dev or chrome://tracing. The exit code is 1 if a rank gave none.
    """
    from gpu_engine.places.verbs import ask_for_traces, find

    found = find(run)
    if found.state().live:
        echo(f"waiting for the next {units.counted(steps, 'step')}, at most {units.span(wait)}",
             err=True)
    answers = ask_for_traces(found, steps=steps, ranks=ranks, wait=wait)
    out = [(rank, *answer) for rank, answer in answers.items()]
    if as_json:
        echo(in_json([{"rank": rank, "path": path, "problem": problem}
                      for rank, path, problem in out]))
    else:
        for rank, path, problem in out:
            echo(clean(f"rank {rank}: {path or problem}"))
    if any(problem for _, _, problem in out):
        sys.exit(1)


@click.command()
@click.argument("run", shell_complete=tab.live_runs)
@click.option("--now", is_flag=True, help="Kill the ranks at once, without a checkpoint.")
@click.option("--again", is_flag=True, hidden=True)
@click.option("--wait/--no-wait", default=True, help="Wait until it has ended (the default).")
@for_scripts
def stop(run: str, now: bool, again: bool, wait: bool, as_json: bool) -> None:
    """Stop RUN (an id, the beginning of one, or "last"). A task's ranks finish their step and save;
    your own command gets SIGINT, as from Ctrl-C, or its run.stop_signal, and if it is stopped again
    SIGTERM. A job that waits in Slurm's queue is cancelled.

    The exit code is 1 if something of it may go on: on a host that can't be reached, or as nobody
    can follow it."""
    from gpu_engine.places import verbs

    found = verbs.find(run)
    if output.word is not None:  # its answer may be lost, and it be said once more
        found.stop(now=now, first=not again)
    else:
        try:
            verbs.stop(found, now=now)
        except UserError as err:
            if not verbs.goes_on(found):
                raise
            echo(str(err), err=True)
    said, goes_on = None, verbs.Followed(found)
    while goes_on(state := found.state()) and wait:
        if state.state == "stopping" and state.reason and state.reason != said:
            said = state.reason
            echo(said, err=True)
        time.sleep(0.1)
    if as_json:
        echo(in_json({"id": found.id, "state": state.state, "reason": state.reason}))
    elif wait:
        echo(f"{found.id} {state.state}" + (f": {state.reason}" if state.reason else ""))
    if wait and not state.live and verbs.goes_on(found):
        with suppress(UserError):
            verbs.look(found, wait=_LATE)  # a host that was told only now may be done soon
    if wait and (state.live or verbs.goes_on(found)):
        if not as_json:
            echo(f"something of it may go on: gpu-engine stop {found.id} asks again", err=True)
        sys.exit(1)
