"""The runs of a sweep as one line of the list. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_engine.common.clean import clean
from gpu_panel.common import units
from gpu_panel.common.rows import Part, Row, fit
from gpu_panel.launch.runs.columns import GAP, Layout
from gpu_panel.launch.runs.lines import MARK, joined

if TYPE_CHECKING:
    from gpu_engine.runs.sweep import Member
    from gpu_panel.launch.runs.line import RunLine

_LONGEST = 22


@dataclass(frozen=True, slots=True)
class SweepLine:
    """A sweep in the list."""

    id: str
    first: Member
    """One of its members' places, for what is the same in all of them."""
    members: tuple[RunLine, ...]
    unfolded: bool

    @property
    def to_stop(self) -> list[RunLine]:
        """Its runs in the order in which they are stopped: first those that wait, the last of the
        line before the others, so that none starts on a device that another has just left."""
        waits = [line for line in self.members if line.state == "queued"]
        return [*reversed(waits), *(line for line in self.members if line.state != "queued")]


def fold(lines: Sequence[RunLine], unfolded: Collection[str]) -> list[RunLine | SweepLine]:
    """The list with each sweep in place of its first run; the runs of those in `unfolded`, ids,
    follow it, in the order of the grid."""
    groups: dict[str, list[RunLine]] = {}
    for line in lines:
        if line.sweep is not None:
            groups.setdefault(line.sweep.sweep, []).append(line)
    out: list[RunLine | SweepLine] = []
    for line in lines:
        place = line.sweep
        if place is None:
            out.append(line)
        elif (found := groups.pop(place.sweep, None)) is not None:
            is_open = place.sweep in unfolded
            out.append(SweepLine(place.sweep, place, tuple(found), is_open))
            if is_open:
                out += sorted(found, key=lambda one: one.sweep.index if one.sweep else 0)
    return out


def row(line: SweepLine, layout: Layout, marked: Collection[str], matching: bool) -> Row:
    """The row of a sweep. `matching`: whether only the runs that match a filter are listed."""
    parts: list[Part] = []
    if layout.marks:
        every = all(one.id in marked for one in line.members)
        parts.append((MARK + " " if every else "  ", "accent"))
    sign = "▾" if line.unfolded else "▸"
    head = f"{sign} sweep"
    if layout.columns and layout.columns[0][0].name == "state":
        head = fit(head, layout.columns[0][1])
    parts += [(head + " " * GAP, "accent"), (line.id + " ", "strong"),
              (clean(line.first.name, _LONGEST) + " " * GAP, "")]
    # How far it is: "12 of 16 done · 1 failed · best 0.412 (lr=3e-4)".
    counts = Counter(one.state for one in line.members)
    bad = counts["failed"] + counts["lost"]
    running = sum(counts[state] for state in ("running", "starting", "stopping"))
    if matching and len(line.members) < line.first.of:
        said: list[Part] = [(f"{len(line.members)} of its {line.first.of} runs match", "")]
    else:
        said = [(f"{counts['completed']} of {line.first.of} done", "")]
    said += [(f"{running} running", "accent")] if running else []
    said += [(f"{counts['queued']} waiting", "dim")] if counts["queued"] else []
    said += [(f"{bad} failed", "bad")] if bad else []
    said += [(f"{counts['stopped']} stopped", "dim")] if counts["stopped"] else []
    done = [one for one in line.members if one.best is not None and one.state == "completed"]
    if done:
        best = min(done, key=lambda one: one.best or 0.0)
        said += [(f"best {units.loss(best.best)}", "good")]
        if best.sweep is not None and best.sweep.values:
            from gpu_engine.sweep.table import short  # only where there are sweeps

            keys = short(list(best.sweep.values))
            values = zip(keys, best.sweep.values.values(), strict=True)
            said += [(" ".join(f"{k}={clean(v, 16)}" for k, v in values), "dim")]
    return Row(line.id, ((*parts, *joined(said)),))
