"""What came out: kept in results.json, shown in docs/compatibility.md."""

from __future__ import annotations

import dataclasses
import datetime
import json
from pathlib import Path

from . import combinations

RESULTS = Path(__file__).with_name("results.json")
DOC = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- matrix -->\n", "<!-- end of matrix -->\n"


@dataclasses.dataclass
class Row:
    """One combination."""

    date: str
    python: str
    """Its whole version, 3.9.18."""
    torch: str
    """Its whole version, 2.2.2+cu121."""
    passed: list[str] = dataclasses.field(default_factory=list)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    """Case → why."""
    seconds: int = 0

    @classmethod
    def today(cls, python: str, torch: str) -> Row:
        """A row without results yet."""
        return cls(datetime.datetime.now(datetime.UTC).date().isoformat(), python, torch)


Results = dict[str, Row]


def key(side: str, python: str, torch: str) -> str:
    """What a row is kept under: "ranks 3.9 2.2"."""
    return f"{side} {python} {torch}".strip()


def read() -> Results:
    """The results so far."""
    if not RESULTS.exists():
        return {}
    return {name: Row(**row) for name, row in json.loads(RESULTS.read_text()).items()}


def write(results: Results) -> None:
    """Keep the results, and put the table into the page."""
    kept = {name: dataclasses.asdict(results[name]) for name in sorted(results)}
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    text = DOC.read_text()
    before, _, rest = text.partition(BEGIN)
    DOC.write_text(before + BEGIN + rendered(results) + END + rest.partition(END)[2])


def rendered(results: Results) -> str:
    """The two tables as Markdown."""
    out = ["\n| panel, engine, agent | torch beside it | result | date |\n|---|---|---|---|\n"]
    for version in combinations.PANEL:
        row = results.get(key("panel", version, ""))
        out.append(f"| Python {_python(version, row)} | {_torch('', row)} | {_result(row)} "
                   f"| {_date(row)} |\n")
    out.append("\n| ranks | torch | result | date |\n|---|---|---|---|\n")
    for version, torch in combinations.RANKS:
        row = results.get(key("ranks", version, torch))
        out.append(f"| Python {_python(version, row)} | {_torch(torch, row)} | {_result(row)} "
                   f"| {_date(row)} |\n")
    out.append("\n")
    return "".join(out)


def _python(version: str, row: Row | None) -> str:
    return row.python if row is not None else version


def _torch(torch: str, row: Row | None) -> str:
    return row.torch if row is not None else torch


def _date(row: Row | None) -> str:
    return row.date if row is not None else ""


def _result(row: Row | None) -> str:
    if row is None:
        return "not tried"
    parts = {"passed": row.passed, "failed": [f"`{name}`" for name in row.failed]}
    return "; ".join(f"{how}: {', '.join(what)}" for how, what in parts.items() if what)
