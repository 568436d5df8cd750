"""`python -m tests.matrix`: every combination that can be had here, and the table that says so."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from pathlib import Path

from . import combinations, environments, panel, ranks, table
from .environments import NotToBeHad

ROOT = Path(__file__).parents[2]


def main(argv: list[str]) -> int:
    """Run what was asked for. Returns 1 if anything that could be tried has failed."""
    args = _arguments(argv)
    given = dict(one.split("=", 1) for one in args.python)
    results: table.Results = {}
    failed = False
    if args.what in ("panel", "all"):
        for version in combinations.PANEL:
            if not args.only or version in args.only:
                failed |= _note(results, "panel", version, "",
                                lambda v=version: _panel(v, given, args))
    if args.what in ("ranks", "all"):
        for version, torch in combinations.RANKS:
            if not args.only or f"{version}x{torch}" in args.only or version in args.only:
                failed |= _note(results, "ranks", version, torch,
                                lambda v=version, t=torch: _ranks(v, t, given, args))
    found = table.read() | results  # another one may have written meanwhile
    if args.write:
        table.write(found)
    sys.stdout.write("\n" + table.rendered(found))
    return int(failed)


def _note(results: table.Results, side: str, python: str, torch: str, run) -> bool:
    began = time.monotonic()
    sys.stdout.write(f"{side} on Python {python}{' with torch ' + torch if torch else ''}\n")
    sys.stdout.flush()
    try:
        row = run()
    except NotToBeHad as why:
        sys.stdout.write(f"  not tried: {why}\n")
        return False
    row.seconds = round(time.monotonic() - began)
    results[table.key(side, python, torch)] = row
    return bool(row.failed)


def _panel(version: str, given: dict[str, str], args: argparse.Namespace) -> table.Row:
    python = environments.interpreter(version, given)
    return panel.run(ROOT, python, args.folder / f"panel-py{version}", whole=args.whole,
                     constraints=args.constraints)


def _ranks(version: str, torch: str, given: dict[str, str], args: argparse.Namespace
           ) -> table.Row:
    folder = args.folder / f"py{version}-torch{torch}"
    python = str(folder / "bin" / "python")
    if not (folder / ".ready").exists():
        python = environments.environment(folder, environments.interpreter(version, given),
                                          *combinations.requirements(torch))
    row = table.Row.today(environments.version_of(python), environments.torch_of(python) or "?")
    before = table.read().get(table.key("ranks", version, torch))
    if args.case and before is not None and (before.python, before.torch) == (row.python,
                                                                               row.torch):
        row.passed = [name for name in before.passed if name not in args.case]
        row.failed = {k: v for k, v in before.failed.items() if k not in args.case}
    with tempfile.TemporaryDirectory() as home:
        here = ranks.Launches(python, row.torch, Path(home))
        for case in ranks.CASES:
            name = case.__name__
            if args.case and name not in args.case:
                continue
            began = time.monotonic()
            try:
                case(here)
            except Exception as err:  # noqa: BLE001 - whatever it is, the table is to say so
                row.failed[name] = f"{type(err).__name__}: {err}".splitlines()[0][:200]
                sys.stdout.write(f"  {name} FAILED, {time.monotonic() - began:.0f} s\n"
                                 f"{traceback.format_exc()}\n")
            else:
                row.passed.append(name)
                sys.stdout.write(f"  {name} ok, {time.monotonic() - began:.0f} s\n")
            sys.stdout.flush()
    return row


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("all", "panel", "ranks"), default="all")
    parser.add_argument("--python", action="append", default=[], metavar="3.9=PATH",
                        help="an interpreter; else it is looked for on the PATH and of pyenv, or "
                             "fetched by uv")
    parser.add_argument("--only", action="append", metavar="3.9x2.2|3.9",
                        help="a combination, or all of a Python")
    parser.add_argument("--case", action="append", help="one of the ranks' cases, once more")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "matrix",
                        help="where environments are made; those that are there are used again")
    parser.add_argument("--constraints", type=Path, default=ROOT / "constraints.txt")
    parser.add_argument("--whole", action="store_true",
                        help="the panel's side: the whole suite instead of the selection")
    parser.add_argument("--write", action="store_true",
                        help="write what came out to docs/compatibility.md")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
