"""gpu-engine logs: the output of the ranks, made harmless for a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpu_engine.cli.output import echo, unchanged
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import MOST, file_inside
from gpu_engine.events.paths import inside

if TYPE_CHECKING:
    from gpu_engine.runs.folder import Run


@click.command()
@click.argument("run", default="last")
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
    from gpu_engine.common.clean import clean_bytes
    from gpu_engine.launching.lookup import ask_slurm, find
    from gpu_engine.launching.reattach import StillOn

    found = find(run)
    goes_on = StillOn(found)
    files = _files(found, rank) if not supervisor else \
        {"supervisor": found.path / "supervisor.log"}
    many = len(files) > 1
    readers = {name: _lines(path, count) for name, path in files.items()}
    while True:
        if follow:
            ask_slurm(found)
        # Before reading, so that the last lines are printed.
        live = follow and goes_on(found.state())
        all_read = True
        for name, reader in readers.items():
            lines, at_end = next(reader)
            all_read = all_read and at_end
            for line in lines:
                if raw:
                    unchanged(line)
                else:
                    echo((f"{name}| " if many else "") + clean_bytes(line))
        if not live and all_read:
            return
        sys.stdout.flush()
        if all_read:
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


class Output:
    """Prints what a run's ranks print, while it runs."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._readers: dict[Path, Generator[tuple[list[bytes], bool], bool, None]] = {}

    def show(self, last: bool) -> None:
        """Print what is new; `last`: also a line that has no end."""
        files = _files(self._run, None)
        for name, path in files.items():
            if path not in self._readers:
                self._readers[path] = _lines(path, None)
                self._print(name, next(self._readers[path])[0], len(files) > 1)
            at_end = False
            while not at_end:
                lines, at_end = self._readers[path].send(last)
                self._print(name, lines, len(files) > 1)

    @staticmethod
    def _print(name: str, lines: Sequence[bytes], many: bool) -> None:
        from gpu_engine.common.clean import clean_bytes

        for line in lines:
            echo((f"{name}| " if many else "") + clean_bytes(line, len(line)))


def _lines(path: Path, count: int | None) -> Generator[tuple[list[bytes], bool], bool, None]:
    """Each `next` returns the new lines, and whether these were all of them. The first call returns
    all lines so far, or the last `count`. Who sends True also gets a line that has no end yet."""
    offset, rest, first, last = 0, b"", True, False
    if count is None:
        for lines in _older(path):
            yield lines, False
    while True:
        try:
            with file_inside(*inside(path)) as file:
                size = file.seek(0, 2)
                if count is not None:
                    offset, count = _last_lines(file, count), None
                if size < offset:  # it was cut, as it had grown too large
                    offset, rest = 0, b""
                file.seek(offset)
                data = file.read(1 << 20)
        except OSError:
            data = b""
        offset += len(data)
        at_end = len(data) < 1 << 20
        lines, rest = _split(rest + data)
        if (first or last) and at_end and rest:  # a finished file may lack its last newline
            lines.append(rest)
            rest = b""
        last = yield lines, at_end
        first = first and not at_end


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
