"""gpu-engine logs: the output of the ranks, made harmless for a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpu_engine.cli import tab
from gpu_engine.cli.output import echo, unchanged
from gpu_engine.common.clean import clean_bytes
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import MOST, file_inside
from gpu_engine.events.paths import inside

if TYPE_CHECKING:
    from gpu_engine.runs.folder import Run


@click.command()
@click.argument("run", default="last", shell_complete=tab.runs)
@click.option("--rank", type=click.IntRange(0), help="Only this rank.")
@click.option("-n", "count", type=click.IntRange(0), help="Only the last N lines of each.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the run has ended.")
@click.option("--raw", is_flag=True, help="Print the output unchanged, control "
              "characters too, into a file or a pipe.")
@click.option("--supervisor", is_flag=True,
              help="Print the supervisor's own log instead; of a Slurm job, its script's.")
def command(run: str, rank: int | None, count: int | None, follow: bool, raw: bool,
            supervisor: bool) -> None:
    """Print the logs of RUN's ranks (an id, the beginning of one, or "last").

    Colours and all else that a terminal obeys are left out; of a progress bar the last state is
    kept. gpu-engine logs --raw | less -R shows the colours.
    """
    from gpu_engine.launching.lookup import ask_slurm, find
    from gpu_engine.launching.reattach import StillOn

    found = find(run)
    if (state := found.state()).state == "unreadable":
        raise UserError(f"run {found.id}: {state.reason}")
    goes_on = StillOn(found)
    files = _files(found, rank) if not supervisor else \
        {"supervisor": found.path / "supervisor.log"}
    output = Output(lambda: files, count,
                    lambda prefix, line: unchanged(line) if raw else
                    echo(prefix + clean_bytes(line, None)))
    while True:
        if follow:
            ask_slurm(found)
        # Before reading, so that the last lines are printed.
        live = follow and goes_on(found.state())
        output.show(last=False)
        if not live:
            return
        sys.stdout.flush()
        time.sleep(0.1)


def _files(run: Run, rank: int | None) -> dict[str, Path]:
    """The logs to print, by the prefix of their lines. Raises UserError."""
    known = run.ranks()
    if rank is not None:
        path = run.output(rank)
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
        shared.setdefault(run.output(one), []).append(str(one))
    files = {("rank " if len(ranks) == 1 else "ranks ") + ",".join(ranks): path
             for path, ranks in shared.items()}
    return files | {p.stem: p for p in sorted(run.path.glob("node*.log"))}


def of_ranks(run: Run) -> Output:
    """All that the ranks of a run print, in whole lines."""
    return Output(lambda: _files(run, None), None,
                  lambda prefix, line: echo(prefix + clean_bytes(line, None)))


class Output:
    """Prints logs as they grow. `files`: which, by the prefix of their lines; `count`: only the
    last lines of what is in each; `say`: prints a line, given its prefix."""

    def __init__(self, files: Callable[[], dict[str, Path]], count: int | None,
                 say: Callable[[str, bytes], None]) -> None:
        self._files, self._count, self._say = files, count, say
        self._logs: dict[Path, _Log] = {}

    def show(self, last: bool) -> None:
        """Print what is new; `last`: also a line that has no end."""
        files = self._files()
        for name, path in files.items():
            log = self._logs.setdefault(path, _Log(path, self._count))
            at_end = False
            while not at_end:
                lines, at_end = log.read(last)
                for line in lines:
                    self._say(f"{name}| " if len(files) > 1 else "", line)


class _Log:
    """One log, all of it so far or its last `count` lines, and what is added."""

    def __init__(self, path: Path, count: int | None) -> None:
        self._path, self._count = path, count
        self._older = _older(path) if count is None else iter(())
        self._offset, self._rest, self._first = 0, b"", True

    def read(self, last: bool) -> tuple[list[bytes], bool]:
        """The next lines, and whether these were all of them. A line that has no end yet is one of
        them at the first time, or if this is the `last`."""
        for lines in self._older:
            return lines, False
        try:
            with file_inside(*inside(self._path)) as file:
                size = file.seek(0, 2)
                if self._count is not None:
                    self._offset, self._count = _last_lines(file, self._count), None
                if size < self._offset:  # it was cut, as it had grown too large
                    self._offset, self._rest = 0, b""
                file.seek(self._offset)
                data = file.read(1 << 20)
        except OSError:
            data = b""
        self._offset += len(data)
        at_end = len(data) < 1 << 20
        lines, self._rest = _split(self._rest + data)
        if (self._first or last) and at_end and self._rest:  # a finished file may lack its newline
            lines.append(self._rest)
            self._rest = b""
        self._first = self._first and not at_end
        return lines, at_end


def _older(path: Path) -> Iterator[list[bytes]]:
    """The lines of the older part, which was moved to its own file when the log grew too large."""
    rest = b""
    try:
        with file_inside(*inside(path.with_name(path.name + ".1"))) as file:
            while data := file.read(1 << 20):
                lines, rest = _split(rest + data)
                yield lines
    except OSError:
        pass
    yield [rest] if rest else []


def _split(data: bytes) -> tuple[list[bytes], bytes]:
    """The lines in it, and the beginning of the next one. One that is larger than any file of ours
    is cut."""
    *lines, rest = data.split(b"\n")
    return ([*lines, rest], b"") if len(rest) > MOST else (lines, rest)


def _last_lines(file, count: int) -> int:
    """The offset at which the last `count` lines begin."""
    end = file.seek(0, 2)
    if count == 0:
        return end
    position, seen = end, 0
    while position > 0:
        step = min(65536, position)
        position -= step
        file.seek(position)
        block = file.read(step)
        at = len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            if position + at == end - 1:
                continue  # the newline that ends the last line
            seen += 1
            if seen == count:
                return position + at + 1
    return 0
