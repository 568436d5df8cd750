"""Values that a script prints, recorded as if it had logged them: `run.metrics`.

The output of rank 0 is searched line by line. A search that takes too long is broken off, and its
pattern is not used any more: one that never comes back would keep the supervisor from all else.

What can't be read for certain is not recorded: a comma may group digits or stand for the point.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from gpu_engine.common import units
from gpu_engine.common.clean import without_sequences
from gpu_engine.common.files import file_inside, size_of
from gpu_engine.events import notices
from gpu_engine.events.paths import inside
from gpu_engine.events.schema import Metric, Warning
from gpu_engine.plan import own_command
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs.folder import Run
from gpu_engine.spec.schema import AUTO, parse_metrics

_LINE = 4096
"""Bytes of a line that are searched."""
_AT_ONCE = 1 << 20
"""Bytes that are read at once, as the supervisor must also react to signals."""
_PATIENCE = 0.1
"""Seconds that a pattern may take for one line."""
_MOST_EVENTS = 200
"""Of more lines of one look about so many are recorded, and those with a value's least, greatest
and last."""
_MOST_NAMES = 64

_POWER = r"(?:[eE][-+]?\d+)?"
_ODD = r"inf(?:inity)?(?!\w)|nan(?!\w)"
_SPACED = r"[ \u00a0\u2009\u202f]\d{3}(?![\d%/])"
"""A group of digits after a blank."""
_SPACE = re.compile(_SPACED)
_NUMBER = re.compile(
    rf"[-+]?(?:(?:\d+|[1-9]\d{{0,2}}(?:(?:,\d{{3}})+|(?:_\d{{3}})+))(?:\.\d*)?|\.\d+){_POWER}"
    rf"|[-+]?(?:{_ODD})", re.IGNORECASE)
_TOKEN = (rf"(?>[-+]?(?:\d{{1,3}}(?:{_SPACED})+(?:[.,]\d+)?"
          rf"|[.\d](?:[.\d]|[,_'’](?=\d))*{_POWER}|{_ODD}))")
"""All that may belong to a number."""
_POINT = re.compile(r"(?<![\w.,:])(?:0\.\d+|\d+\.(?:\d\d?|\d{4,}))(?![\d.,:])")
"""A number whose point does not group: so the line's commas do."""
_PAIR = re.compile(
    r"(?<![\w./@-])((?:(?:train|training|val|valid|validation|test|eval|evaluation|dev|best|avg"
    r"|average|mean|total|sum|max|maximum|min|minimum|median|std|smooth|smoothed|running|moving|ema"
    r"|last|prev|previous|initial|target|lowest|highest|worst) ){0,3})([a-z][\w./@-]{0,63})"
    rf"(?:[\"']?\s{{0,16}}[:=]\s{{0,16}}|(\s{{1,16}})(?=[-+]?(?:\.?\d|inf|nan)))([\"']?)({_TOKEN})"
    r"(?:\s?%(?!\s*\|))?\4(?=[.!?]{0,3}(?:[\s,;|)\]}]|$))", re.IGNORECASE)
"""For "auto": "loss: 0.31", "val/acc=93.1%", "'loss': '0.5'", "best val loss nan"; neither a time
of day nor a path, nor how far a progress bar is."""
_OF_VALUES = r"(?:loss|acc|accuracy|ppl|perplexity)(?:@\d{1,3})?"
"""Ends of names behind which a number needs neither ":" nor "="."""
_WITHOUT_SIGN = re.compile(rf".*{_OF_VALUES}", re.IGNORECASE)
_UNREAD = re.compile(
    r"(?<![\w./@-])([a-z][\w./@-]{0,63})[\"']?\s{0,16}[:=]\s{0,16}((?:tensor|np\.float\d+)\([^()]{1,40}"
    r"|[-+]?[\d.]{1,30}(?:\s?[kmbgt](?![\w/])|[(\N{PLUS-MINUS SIGN}])"
    r"|\N{MINUS SIGN}[\d.]{1,30})", re.IGNORECASE)
"""For "auto", what has a name and is a number for people alone: "1.5M", "tensor(0.5, …)"; """
_UNREAD_VALUE = re.compile(
    rf"(?<![\w./@-])((?:[a-z][\w./@-]{{0,50}})??{_OF_VALUES}(?: ?[(\[][^()\[\]]{{1,20}}[)\]])?)"
    r"[\"']?(?:\s{0,16}[:=]\s{0,16}|\s{1,16})(tensor\([^()]{1,40}"
    r"|[-+]?\.?\d[\d.]{0,30}\S?)", re.IGNORECASE)
"""and what nothing else has read, of a name that stands for a value: "2.5/3.0"."""
_STEPS = ("step", "iter", "iteration", "global_step")
_STEP = re.compile(
    rf"(?<![\w./-])(?:{'|'.join(_STEPS)})[\"']?\s{{0,16}}[:=#\[]?"
    rf"\s{{0,16}}[\"']?({_TOKEN})(?![\w%-]|\s?(?:ms|s|secs?|seconds?|min|minutes?|h)\b)",
    re.IGNORECASE)
"""How a line says its own step."""
_NO_STEP = re.compile(r"\b(?:per|each|every|from|since|until|till|to|of|best|last|next|max|warmup)"
                      r"[ =:]{0,4}$", re.IGNORECASE)
_AT_STEP = re.compile(r"\b(?:at|in|on|after|before|for)[ =:]{0,4}$", re.IGNORECASE)
"""Behind a value it says when that was: "saved at step 40". Before all values it is the line's."""
_LARGEST_STEP = 10 ** 15
_ODD_STEP = re.compile(r"[1-9]\d{0,2}(?:\.\d{3})+")
"""A point that may group digits."""
_GOES_ON = re.compile(r"[.'’_]?\d|,\d{3}(?!\d)")
_POWER_OR_UNIT = re.compile(r"e[-+]?\d|[kmbgt](?:i?b)?(?!\w)", re.IGNORECASE)
_SIGN = re.compile(r"(?:^|[\s:=(\[,\"'])[-\N{MINUS SIGN}]$")
"""What of a number a pattern may have left out."""
_UNCERTAIN = "can't be read for certain: print it like 1234.5"


def number(text: str, *, grouped: bool = False) -> float | None:
    """The number that `text` is; None: it is none, or none for certain. `grouped`: whether a comma
    groups digits, though there is but one: 1,234 is 1.234 in half of Europe."""
    text = text[:-1] if text.endswith(".") else text
    one = text.count(",") == 1 and "." not in text
    if _NUMBER.fullmatch(text) is None or (one and not grouped):
        return None
    value = float(text.replace(",", "").replace("_", ""))
    return None if math.isinf(value) and any(map(str.isdigit, text)) else value


def own_step(line: str) -> int | None:
    """The step that a line says it is of; None: none, or none for certain."""
    pairs = [pair for pair in _PAIR.finditer(line) if pair[2].lower() not in _STEPS]
    first = next((pair.start() for pair in pairs if pair[3] is None), len(line))
    several = sum(pair[3] is None or _WITHOUT_SIGN.fullmatch(pair[2]) is not None
                  for pair in pairs) > 1

    def of_a_value(at: int) -> bool:
        return (at > first and _AT_STEP.search(line, 0, at) is not None) \
            or (several and line[:at].endswith("("))

    values = [None if _ODD_STEP.fullmatch(found[1]) else number(found[1], grouped=True)
              for found in _STEP.finditer(line)
              if not (_NO_STEP.search(line, 0, found.start()) or of_a_value(found.start()))]
    steps = {int(v) for v in values if v is not None and 0 <= v <= _LARGEST_STEP and v == int(v)}
    return steps.pop() if len(steps) == 1 else None


def in_line(line: str) -> tuple[dict[str, float], dict[str, str]]:
    """The numbers in a line, for "auto": those of a JSON object, or of pairs like `name: 1.5` and
    `name=1.5`; and of names whose number is not certain, why."""
    values, doubts = dict[str, float](), dict[str, str]()
    for name, text in _pairs(line):
        value = number(text, grouped=_POINT.search(line) is not None)
        if value is None:
            if not re.fullmatch(r"[\d.]*", text):  # else a version, or an address
                doubts[name] = f"{text} {_UNCERTAIN}"
        elif repr(values.setdefault(name, value)) != repr(value):  # NaN is NaN
            doubts[name] = "a line has it twice, with different values"
    for found in _UNREAD.finditer(line):
        doubts.setdefault(found[1], f"{found[2]} {_UNCERTAIN}")
    for found in () if line.lstrip().startswith("{") else _UNREAD_VALUE.finditer(line):
        if not any(name.endswith(found[1]) for name in (*values, *doubts)):
            doubts[found[1]] = f"{found[2]} {_UNCERTAIN}"
    return {name: value for name, value in values.items() if name not in doubts}, doubts


def _pairs(line: str) -> Iterator[tuple[str, str]]:
    """The names in a line, and what may be the number of each."""
    if line.lstrip().startswith("{"):
        try:
            told = json.loads(line, parse_int=str, parse_float=str, parse_constant=str,
                              object_pairs_hook=tuple)
        except (ValueError, RecursionError):
            pass
        else:
            yield from ((name, value) for name, value in told
                        if isinstance(value, str) and re.fullmatch(_TOKEN, value, re.IGNORECASE))
            return
    for pair in _PAIR.finditer(line):
        which, name, blank, _, text = pair.groups()
        if blank is None or _WITHOUT_SIGN.fullmatch(name):
            yield which.replace(" ", "_") + name, text


def _search(pattern: re.Pattern[str], line: str) -> re.Match[str] | None:
    """`pattern.search(line)`. Raises TimeoutError after `_PATIENCE`: Python's matcher looks for
    signals now and then. In the main thread only."""
    def ring(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, _PATIENCE)
    try:
        return pattern.search(line)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


class Printed:
    """Reads the new lines of a log. `path`: inside the run folder; what is in it is skipped."""

    def __init__(self, path: Path, metrics: Mapping[str, str] | str) -> None:
        self.path = path
        self._patterns = None if metrics == AUTO else parse_metrics(metrics)
        self.elsewhere = ""
        """Where else the output may be, for people."""
        self._offset = size_of(path)
        self._rest = b""
        self._lines = 0
        self._wrong: dict[str, str] = {}
        """Of a name, why a value was not recorded."""
        self._slow: set[str] = set()
        self._seen: dict[str, int] = {}
        """Name → the last step that its line said, -1 if none."""
        self._anew = False
        """Whether the lines' own steps have gone back, so that they are not the run's."""

    @classmethod
    def of(cls, run: Run, plan: LaunchPlan) -> Printed | None:
        """The reader of a run's rank 0; None where nothing is to be read, or it is not here."""
        metrics = plan.spec.run.metrics
        log = next((p.log or "ranks/00000.log" for p in plan.processes if 0 in p.ranks), None)
        if not metrics or log is None:
            return None
        reader, words = cls(run.path / log, metrics), plan.spec.task.command or ()
        if own_command.launches_itself(words) and any(
                word == "-r" or word.partition("=")[0] == "--redirects" for word in words):
            reader.elsewhere = ", which --redirects has written to files of its own"
        return reader

    def read(self, step: int | None, *, over: bool = False) -> list[Metric | Warning] | None:
        """The values of the lines that were completed since the last call, and what of them is not
        recorded; None: there is nothing new. `step`: the last one that the rank has made; a line
        that names its own comes before that. `over`: whether nothing more is written, not even the
        end of a line."""
        try:
            with file_inside(*inside(self.path)) as file:
                if os.fstat(file.fileno()).st_size < self._offset:  # cut, as by run.log_mb
                    self._offset, self._rest = 0, b""
                file.seek(self._offset)
                data = file.read(_AT_ONCE)
        except OSError:
            return None
        if not data and not (over and self._rest):
            return None
        self._offset += len(data)
        data = self._rest + data + b"\n" * (over and not data)
        *lines, self._rest = re.split(rb"[\r\n\b]+", data)
        self._rest = self._rest[:_LINE]
        known, events = len(self._wrong), list[Metric]()
        for line in filter(None, lines):
            self._lines += 1
            text = without_sequences(line[:_LINE].decode(errors="replace"))
            if values := self._values(text):
                own = self._own_step(text, values)
                events.append(Metric(step if own is None else own, {**values}))
        wrong = [f"{name}: {why}" for name, why in list(self._wrong.items())[known:]]
        return [*_fewer(events), *([notices.not_read(wrong)] if wrong else [])]

    def _own_step(self, line: str, names: Iterable[str]) -> int | None:
        """The step that the line says, unless the lines' steps begin anew, as in each epoch."""
        step = own_step(line)
        if step is None or self._anew:
            return None
        for name in names:
            if step < self._seen[name]:
                self._anew = True
                self._wrong["step"] = (f"the lines' own go back, from {self._seen[name]:,} to "
                                       f"{step:,}; values are recorded in their order")
                return None
            self._seen[name] = step
        return step

    def _values(self, line: str) -> dict[str, float]:
        if self._patterns is None:
            values, doubts = in_line(line)
            for name in [*values, *doubts]:
                if len(self._seen) < _MOST_NAMES and name.lower() not in _STEPS:
                    self._seen.setdefault(name, -1)
            self._wrong = {n: why for n, why in doubts.items() if n in self._seen} | self._wrong
            return {name: value for name, value in values.items() if name in self._seen}
        values = {}
        for name, pattern in self._patterns.items():
            try:
                if name in self._slow or (match := _search(pattern, line)) is None:
                    continue
            except TimeoutError:
                self._slow.add(name)
                self._wrong[name] = f"its pattern took more than {_PATIENCE:g} s for one line"
                continue
            value = self._matched(name, match, line)
            if value is not None:
                values[name] = value
                self._seen.setdefault(name, -1)
        return values

    def _matched(self, name: str, match: re.Match[str], line: str) -> float | None:
        """The number that a pattern has found."""
        text, (begin, end) = match[1] or "", match.span(1)
        bare = text.strip(" \t\"'").rstrip(" \t\"',;%)]}")
        value, why = number(bare, grouped=_POINT.search(line) is not None), None
        if value is None:
            odd = re.fullmatch(_TOKEN, bare, re.IGNORECASE) and not re.fullmatch(r"[\d.]*", bare)
            why = _UNCERTAIN if odd else "is no number"
        elif (line[begin - 1:begin].isdigit() and not text[0].isspace()) \
                or _GOES_ON.match(line, end) or _SIGN.search(line, 0, begin) \
                or (match.end() == end and (re.match(r",\d", line[end:])
                                            or _POWER_OR_UNIT.match(line, end))) \
                or (bare.isdigit() and len(bare) < 4 and _SPACE.match(line, end)):
            why = "is a part of a longer number"
        if why is not None:
            self._wrong.setdefault(name, f"its pattern matched {text[:40]!r}, which {why}")
        return value if why is None else None

    def missing(self) -> list[str]:
        """What was never seen, a sentence for each, once all is read."""
        lines = f"{units.counted(self._lines, 'line')} of rank 0's output{self.elsewhere}"
        if self._patterns is None:
            return [] if self._seen else [f'run.metrics = "{AUTO}": no number with a name was seen '
                                          f"in {lines}"]
        return [f"run.metrics: {name} was not seen in {lines}"
                + (f"; {self._wrong[name]}" if name in self._wrong else "")
                for name in self._patterns if name not in self._seen]


def _fewer(events: list[Metric]) -> list[Metric]:
    """Some of a look's events, if they are many: an endless print must not fill the disk. Each
    value's least, greatest and last are among them."""
    if len(events) <= _MOST_EVENTS:
        return events
    kept = set(range(0, len(events), len(events) // _MOST_EVENTS))
    for name in {name for event in events for name in event.values}:
        told = [(event.values[name] or 0.0, at) for at, event in enumerate(events)
                if name in event.values]
        finite = [pair for pair in told if math.isfinite(pair[0])] or told
        kept |= {told[-1][1], min(finite)[1], max(finite)[1]}
    return [events[at] for at in sorted(kept)]
