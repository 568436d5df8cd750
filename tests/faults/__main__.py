"""`python -m tests.faults [-k …]`: run every case with all rounds, and print the table."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest


class Table:
    """Collects the result of each case."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, float, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        about = dict(report.user_properties)
        if "case" not in about or (report.when != "call" and report.outcome == "passed"):
            return
        why = ""
        if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
            why = report.longrepr[2].removeprefix("Skipped: ")
        elif report.outcome == "failed":
            why = str(report.longrepr).strip().splitlines()[-1]
        self.rows.append((about["case"], report.outcome, about.get("seconds", 0.0),
                          why or f"{about.get('runs', 0)} runs"))

    def show(self) -> None:
        from .kit import CASES

        does = {c.name: c.does for c in CASES}
        out = sys.stdout
        out.write("\n")
        for name, outcome, seconds, why in self.rows:
            mark = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}[outcome]
            out.write(f"{name:<42} {mark:<8} {seconds:6.1f} s  {why:<10}  {does[name]}\n")
        by = {o: sum(r[1] == o for r in self.rows) for o in ("passed", "failed", "skipped")}
        out.write(f"\n{len(self.rows)} cases: {by['passed']} ok, {by['failed']} failed, "
                  f"{by['skipped']} skipped, {sum(r[2] for r in self.rows):.0f} s\n")


def main() -> int:
    os.environ["GPU_PANEL_FAULTS"] = "all"
    table = Table()
    code = pytest.main([str(Path(__file__).parent), "-q", "--no-header", "-p", "no:cacheprovider",
                        *sys.argv[1:]], plugins=[table])
    table.show()
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
