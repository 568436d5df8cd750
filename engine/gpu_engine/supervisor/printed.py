"""Values that a script prints, recorded as if it had logged them: `run.metrics`.

The output of rank 0 is searched line by line. A search that takes too long is broken off, and its
pattern is not used any more: one that never comes back would keep the supervisor from all else.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path

from gpu_engine.common.files import file_inside, size_of
from gpu_engine.events.paths import inside
from gpu_engine.events.schema import Metric
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
"""Of so many lines of one look the values are recorded; of more, the last ones."""
_MOST_NAMES = 64
_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|inf|nan)"
_PAIR = re.compile(rf"(?<![\w./-])([A-Za-z][\w./-]{{0,63}})[\"']?\s{{0,4}}[:=]\s{{0,4}}({_NUMBER})"
                   r"(?=[\s,;|)\]}]|$)", re.IGNORECASE)
"""For "auto": "loss: 0.31", "val/acc=0.9"; neither a time of day nor a path."""
_STEPS = ("step", "iter", "iteration", "global_step")
_STEP = re.compile(rf"(?<![\w./-])(?:{'|'.join(_STEPS)})\"?\s{{0,4}}[:=#]?\s{{0,4}}"
                   r"(\d{1,15})(?![\d.])", re.IGNORECASE)
"""How a line says its own step."""


def in_line(line: str) -> dict[str, float]:
    """The numbers in a line, for "auto": those of a JSON object, or of pairs like `name: 1.5` and
    `name=1.5`."""
    if line.lstrip().startswith("{"):
        try:
            told = json.loads(line, parse_int=float)
        except (ValueError, RecursionError):
            told = None
        if isinstance(told, dict):
            return {name: value for name, value in told.items()
                    if isinstance(value, float) and math.isfinite(value)}
    return {name: float(number) for name, number in _PAIR.findall(line)}


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
        self._offset = size_of(path)
        self._rest = b""
        self._lines = 0
        self._wrong: dict[str, str] = {}
        """Of a pattern, what was wrong with it."""
        self._slow: set[str] = set()
        self._seen: set[str] = set()

    @classmethod
    def of(cls, run: Run, plan: LaunchPlan) -> Printed | None:
        """The reader of a run's rank 0; None where nothing is to be read, or it is not here."""
        metrics = plan.spec.run.metrics
        log = next((p.log or "ranks/00000.log" for p in plan.processes if 0 in p.ranks), None)
        return cls(run.path / log, metrics) if metrics and log is not None else None

    def read(self, step: int | None, *, over: bool = False) -> list[Metric] | None:
        """The values of the lines that were completed since the last call; None: there is nothing
        new. `step`: the last one that the rank has made; a line that names its own comes before
        that. `over`: whether nothing more is written, not even the end of a line."""
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
        *lines, self._rest = re.split(rb"[\r\n]+", self._rest + data + b"\n" * (over and not data))
        self._rest = self._rest[:_LINE]
        events = []
        for line in filter(None, lines):
            self._lines += 1
            text = line[:_LINE].decode(errors="replace")
            if values := self._values(text):
                own = _STEP.search(text)
                events.append(Metric(int(own[1]) if own is not None else step, dict(values)))
        return events[-_MOST_EVENTS:]

    def _values(self, line: str) -> dict[str, float]:
        if self._patterns is None:
            found = in_line(line)
            new = [name for name in found
                   if name not in self._seen and name.lower() not in _STEPS]
            self._seen.update(new[:max(_MOST_NAMES - len(self._seen), 0)])
            return {name: value for name, value in found.items() if name in self._seen}
        values = {}
        for name, pattern in self._patterns.items():
            try:
                if name in self._slow or (match := _search(pattern, line)) is None:
                    continue
            except TimeoutError:
                self._slow.add(name)
                self._wrong[name] = f"its pattern took more than {_PATIENCE:g} s for one line"
                continue
            text = match[1] or ""
            try:
                values[name] = float(text.rstrip(",;"))
            except ValueError:
                self._wrong[name] = f"its pattern matched {text[:40]!r}, which is no number"
                continue
            self._seen.add(name)
        return values

    def missing(self) -> list[str]:
        """What was never seen, a sentence for each, once all is read."""
        lines = f"{self._lines:,} line{'s' * (self._lines != 1)} of rank 0's output"
        if self._patterns is None:
            return [] if self._seen else [f'run.metrics = "{AUTO}": no number with a name was seen '
                                          f"in {lines}"]
        return [f"run.metrics: {name} was not seen in {lines}"
                + (f"; {self._wrong[name]}" if name in self._wrong else "")
                for name in self._patterns if name not in self._seen]
