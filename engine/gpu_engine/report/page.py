"""Devices, runs, curves and logs as one page for a browser, read from the devices and the run
folders: to look at, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from gpu_engine.common import paths
from gpu_engine.common.clean import clean, clean_lines
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import end_inside
from gpu_engine.devices import availability, leases
from gpu_engine.devices.columns import IN_TABLE
from gpu_engine.devices.records import Snapshot
from gpu_engine.events.paths import inside
from gpu_engine.report import content, listing
from gpu_engine.report.content import Cell, Section, Table, Text
from gpu_engine.runs import folder
from gpu_engine.runs.folder import Run
from gpu_engine.runs.query import parse

_STYLES = {"starting": "accent", "running": "accent", "stopping": "accent", "queued": "dim",
           "completed": "good", "failed": "bad", "lost": "bad"}
"""By the state of a run; it stands there in words, too."""
LISTED = 30
"""Runs in the list."""
_LOGS = 4
"""Logs of a run that are shown."""
_LOG, _LOG_LINES = 1 << 15, 40
"""Bytes of a log's end that are read, and lines of it that are shown."""


def of_all(snapshots: Sequence[Snapshot]) -> list[Section]:
    """Devices and the newest runs; then each run that is live, or the newest. `snapshots`: the last
    ones, newest last."""
    rows, more = listing.found_runs(parse(""), LISTED)
    found: list[Table | Text] = [_runs(rows) if rows else Text(("No runs yet.",))]
    if more:
        found.append(Text((f"and {more:,} older",)))
    sections = [Section("Devices", (_devices(snapshots),)), Section("Runs", tuple(found))]
    runs = folder.all_runs()[:LISTED]
    for run in [run for run in runs if run.state().live] or runs[:1]:
        first, *rest = of_run(run)
        sections += [replace(first, title=f"{run.id} {run.state().name}: {first.title}",
                             name=_quoted(run.id)), *rest]
    return sections


def of_run(run: Run) -> list[Section]:
    """A run as a report tells it, and the last lines of its logs."""
    try:
        sections = content.of_run(content.read(run))
    except UserError as err:
        sections = [Section("How it stands", (Text((run.state().state, str(err))),))]
    at = next((i for i, one in enumerate(sections) if one.title == content.CURVES), 0) + 1
    logs: dict[Path, int] = {}  # one that several ranks share is that of the first of them
    for rank in run.ranks()[:_LOGS]:
        logs.setdefault(run.output(rank), rank)
    told = [Section(f"Log of rank {rank}", (Text(lines, exact=True),))
            for path, rank in logs.items() if any(lines := tuple(clean_lines(
                end_inside(*inside(path), _LOG).decode(errors="replace"))[-_LOG_LINES:]))]
    return [*sections[:at], *told, *sections[at:]]


def _runs(rows: Sequence[listing.Row]) -> Table:
    """The list, its states coloured and the loss drawn, as in the panel."""
    columns = [column for column in listing.COLUMNS if any(map(column.of, rows))]
    drawn = any(row.figures.means for row in rows)
    heads = [head for column in columns for head in (
        [column.title or column.name] + ["curve"] * (drawn and column.name == "loss"))]

    def cells(row: listing.Row) -> Iterator[str | Cell]:
        for column in columns:
            text = column.of(row)
            yield Cell(text, _STYLES.get(row.one.digest.state, "")) \
                if column.name == "state" else text
            if drawn and column.name == "loss":
                yield Cell("", curve=row.figures.means)

    return Table(tuple(heads), tuple(tuple(cells(row)) for row in rows),
                 tuple(f"#{_quoted(row.one.run.id)}" for row in rows))


def _quoted(name: str) -> str:
    """A run's id in an address: that of a folder may be any bytes."""
    return quote(os.fsencode(name), safe="")


def _devices(snapshots: Sequence[Snapshot]) -> Table | Text:
    if not snapshots:
        return Text(("They are being read.",))
    states = availability.judge_all(snapshots, leases.holders(paths.leases_folder()))
    return Table(("device", "name", *(column.title for column in IN_TABLE), "state"), tuple(
        (one.device.id, one.device.name,
         *(Cell(column.of(one), column.style(one), column.bar and column.bar(one))
           for column in IN_TABLE),
         Cell(clean(one.problem or states[one.device.id].reason),
              "good" if states[one.device.id].free else "bad" if one.problem else ""))
        for one in snapshots[-1].samples))
