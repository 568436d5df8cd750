"""How a device is drawn: as a card of three or more lines, or on one line. Pure.

A card has its name, who uses it and its figures on the left, and on the right a filled curve of its
utilisation with bars of its memory below. On one line both are bars, or with many devices shades.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpu_engine.common.clean import clean
from gpu_engine.devices.records import Sample
from gpu_panel.common import load, units
from gpu_panel.common.rows import Line, Part, cells, fit, wrap
from gpu_panel.launch.devices import graphs
from gpu_panel.launch.devices.graphs import Values
from gpu_panel.launch.devices.history import History, Span, span

CARD_UP_TO, BARS_UP_TO = 4, 8
"""The most devices that have a card each, and the most that have bars; more have shades."""
CARD, TALLEST = 3, 6
"""Lines that a card asks for, and that it takes where nobody else wants them."""
CARD_FROM = 56
"""Cells from which on there is room for text and curve of a card beside each other."""
_TIGHT, _WIDE = (10, 6, 10), (16, 8, 16)
"""Least cells of the graphs of utilisation and memory, and of who uses the device."""


@dataclass(frozen=True, slots=True)
class Facts:
    key: str
    box: Part
    number: str
    name: str
    sample: Sample
    history: History | None
    mine: str
    """Its rank in the next run, "rank 1", and whether it is waited for."""
    mine_short: str
    use: Part
    use_short: Part
    hue: int = 0

    @property
    def total(self) -> int | None:
        """Bytes of memory."""
        return self.sample.memory_total or self.sample.device.memory_total

    @property
    def memory(self) -> tuple[str, str]:
        """Used and all memory, "34/80G", and the style for it."""
        used, total = self.sample.memory_used, self.total
        style = load.of_memory(used / total if used is not None and total else None)
        return _of_total(used, total), "" if style == "accent" else style

    def utilizations(self, over: Span, dots: int = 1) -> Values:
        return self.history.utilization(self.sample.device.id, over, dots) if self.history \
            else [None] * over.cells * dots

    def memories(self, over: Span) -> Values:
        return self.history.memory(self.sample.device.id, over) if self.history \
            else [None] * over.cells


@dataclass(frozen=True, slots=True)
class Drawn:
    header: Line
    device: Callable[[Facts], tuple[Line, ...]]
    room: int
    """Cells for its rank and who uses it, where its name stands too; else 0."""


# --- a card ----------------------------------------------------------------------------------


def cards(devices: Sequence[Facts], width: int, each: int) -> Drawn:
    """Cards of `each` lines."""
    ids = max(len(f.number) for f in devices)
    figures = _figures(devices) + 1
    left = min(max(width * 2 // 5, 30), 56)
    over = span(width - left - figures - 1, 2)
    left = width - over.cells - figures - 1  # what is left over goes to the words
    header = (("  " + fit("#", ids) + "  " + fit("name", left - ids - 4), ""),
              (f"{'util':>{figures}} ", ""), (graphs.axis(over), ""))
    low = 1 if each < 5 else 2

    def draw(f: Facts) -> tuple[Line, ...]:
        words = _card_words(f, ids, left, each)
        high = each - low
        curve = graphs.area(f.utilizations(over, 2), high, f.hue)
        memory = graphs.tall_bars(f.memories(over), low, f.hue)
        right: list[tuple[Part, Line]] = [(("", ""), line) for line in (*curve, *memory)]
        right[0] = (percent(f.sample.utilization), ""), right[0][1]
        right[high] = f.memory, right[high][1]
        return tuple((*_padded(text, left), (f"{said:>{figures}} ", style), *line)
                     for text, ((said, style), line) in zip(words, right, strict=True))

    return Drawn(header, draw, left - 5)


def _card_words(f: Facts, ids: int, left: int, each: int) -> list[Line]:
    """The left part of a card: name, use, figures. A problem is told on all lines but the first."""
    room = left - 5
    words: list[Line] = [(*_head(f, ids), (fit(f.name, max(0, left - ids - 5)), ""))]
    text, style = f.use
    if f.sample.problem:
        told = wrap(text, room - cells(f.mine))
        told[each - 2:] = [fit(" ".join(told[each - 2:]), room).rstrip()]
        words += [(("    " if i else "  └ ", "dim"), ("" if i else f.mine, "accent"), (line, style))
                  for i, line in enumerate(told)]
    else:
        words.append(_use(f, room))
        words.append((("    ", ""), *_measured(f.sample)))
    return [*words, *[()] * (each - len(words))]


def _use(f: Facts, room: int) -> Line:
    """Its rank, who uses it, and why its clocks are held down."""
    text, style = f.use
    held = [t for t in f.sample.throttle or () if t not in text]
    said = text + clean(f" · {', '.join(held)}" if held else "")
    room -= cells(f.mine)
    said = fit(_shorter(said, f.sample, cells(said) - room), room).rstrip()
    return ("  └ ", "dim"), (f.mine, "accent"), (said, style)


def _measured(s: Sample) -> list[Part]:
    parts: list[Part] = []
    if s.temperature is not None:
        parts.append((f"{s.temperature:.0f}°C", load.of_heat(s.temperature) or "dim"))
    if s.power is not None:
        limit = "" if s.power_limit is None else f"/{s.power_limit:.0f}"
        parts.append(("  " if parts else "", ""))
        parts.append((f"{s.power:.0f}{limit}W", load.of_power(s.power, s.power_limit) or "dim"))
    return parts


# --- on one line -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Columns:
    """The width of each column in cells; 0 for a column that is not shown."""

    ids: int
    name: int
    util: int
    figures: int
    memory: int
    temp: int
    power: int
    use: int


def on_one_line(devices: Sequence[Facts], width: int) -> Drawn:
    """A line for each device; with many devices in shades in place of bars."""
    c = _columns(devices, width)
    graph = graphs.bars if len(devices) <= BARS_UP_TO else graphs.heat
    over, beside = span(c.util), span(c.memory)
    titles = (fit("#", c.ids), fit("name", c.name), f"{'util':>5}", graphs.axis(over),
              f"{'mem':>{c.figures}}", graphs.axis(beside), "temp" if c.temp else "",
              "power" if c.power else "", "used by" if c.use else "")
    header = "  " + " ".join(title for title in titles if title)

    def draw(f: Facts) -> tuple[Line, ...]:
        head: list[Part] = [*_head(f, c.ids), (fit(f.name, c.name) + " " if c.name else "", "")]
        mine = f.mine_short
        if f.sample.problem:
            left = width - c.ids - 3 - (c.name + 1 if c.name else 0) - cells(mine)
            return ((*head, (mine, "accent"), (fit(f.use[0], max(0, left)).rstrip(), f.use[1])),)
        s = f.sample
        parts: list[Part] = [*head, (f"{percent(s.utilization):>5} ", "")]
        if c.util:
            parts += [*_padded(graph(f.utilizations(over), f.hue), c.util), (" ", "")]
        said, style = f.memory
        parts.append((f"{said:>{c.figures}} ", style))
        if c.memory:
            parts += [*_padded(graph(f.memories(beside), f.hue), c.memory), (" ", "")]
        if c.temp:
            heat = units.UNKNOWN if s.temperature is None else f"{s.temperature:.0f}°C"
            parts.append((f"{heat:>4} ", load.of_heat(s.temperature)))
        if c.power:
            watts = units.UNKNOWN if s.power is None else f"{s.power:.0f}W"
            parts.append((f"{watts:>5} ", load.of_power(s.power, s.power_limit)))
        text, style = f.use_short
        parts += [(mine, "accent"), (fit(text, max(0, c.use - cells(mine))), style)]
        return (tuple(parts),)

    return Drawn(((header, ""),), draw, 0)


def _columns(devices: Sequence[Facts], width: int) -> _Columns:
    ids = max(len(f.number) for f in devices)
    figures = _figures(devices)
    # Keep the columns while a driver fails, so that those beside them don't move.
    failing = any(f.sample.problem for f in devices)
    temp = 5 if failing or any(f.sample.temperature is not None for f in devices) else 0
    power = 6 if failing or any(f.sample.power is not None for f in devices) else 0
    name = min(26, max(cells(f.name) for f in devices)) + 1
    room = width - (2 + ids + 1) - 6 - (figures + 1)
    for least, shown, t, p in ((_WIDE, name, temp, power), (_WIDE, 0, temp, power),
                               (_TIGHT, 0, temp, power), (_TIGHT, 0, temp, 0), (_TIGHT, 0, 0, 0),
                               ((8, 0, 8), 0, 0, 0), ((0, 0, 4), 0, 0, 0)):
        util, memory, use = least
        spare = room - shown - t - p - util - memory - use - bool(util) - bool(memory)
        if spare >= 0:
            break
    else:
        return _Columns(ids, 0, 0, figures, 0, 0, 0, max(0, room))
    util, memory = util + spare // 2 if util else 0, memory + spare // 4 if memory else 0
    util, memory = span(util).cells, span(memory).cells
    use = room - shown - t - p - util - memory - bool(util) - bool(memory)
    return _Columns(ids, max(0, shown - 1), util, figures, memory, t, p, use)


# --- parts -----------------------------------------------------------------------------------


def _figures(devices: Sequence[Facts]) -> int:
    """Cells for used and all memory, however much is used."""
    return max(cells(_of_total(size, f.total)) for f in devices for size in (5 << 30, f.total or 0))


def _head(f: Facts, ids: int) -> tuple[Part, ...]:
    return f.box, (" " + fit(f.number, ids) + " ", "strong" if f.box[1] == "accent" else "")


def _padded(line: Line, width: int) -> Line:
    return (*line, (" " * max(0, width - sum(cells(text) for text, _ in line)), ""))


def _shorter(text: str, sample: Sample, over: int) -> str:
    """`text` with the command of a process in it cut by `over` cells, so that memory and age,
    which stand behind it, can be read."""
    first = max(sample.processes or (), key=lambda p: p.memory or 0, default=None)
    command = clean(first.command or "") if first is not None else ""
    while over > 0 and command and command not in text:
        command = command[:-1]  # the text may have only its beginning
    if over <= 0 or len(command) < _LEAST_COMMAND:
        return text
    short = fit(command, max(_LEAST_COMMAND, cells(command) - over - 1))
    return text.replace(command + "…", command, 1).replace(command, short, 1)


_LEAST_COMMAND = 4
"""Cells that a command keeps when its line is cut."""


def percent(share: float | None) -> str:
    """0.74 → "74%"."""
    return units.UNKNOWN if share is None else f"{share * 100:.0f}%"


def _of_total(used: int | None, total: int | None) -> str:
    """"34/80G", with a decimal below ten: "4.1/8.0G"."""
    if total is None:
        return units.UNKNOWN if used is None else f"{_size(used)}G"
    return f"{units.UNKNOWN if used is None else _size(used)}/{_size(total)}G"


def _size(count: int) -> str:
    value = count / (1 << 30)
    return f"{value:.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}"
