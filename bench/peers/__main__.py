"""python -m bench.peers measure [GROUP …] | write"""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping

from . import growth, logging_steps, monitors, observing, opening, page, results, stopping, training
from .rounds import Found, Program, interleaved
from .surroundings import FOLDER, PYTHON, commit, machine, nvtop, versions

PACKAGES = ("torch", "accelerate", "lightning", "nvitop", "wandb", "trackio", "tensorboard",
            "traceml-ai")
Keep = Callable[[list[results.Figure], dict[str, str]], None]
Programs = Callable[[], Mapping[str, Program]]


def _cases(cases: Mapping[str, Programs], rounds: int, keep: Keep) -> None:
    done: list[results.Figure] = []
    lacking: dict[str, str] = {}

    def measure(case: str, programs: Mapping[str, Program]) -> Found:
        found, missing = interleaved(
            case, programs, rounds, lambda found, missing: keep(
                [*done, *_figures(case, found)], {**lacking, **missing}))
        lacking.update(missing)
        return found

    for case, programs in cases.items():
        done += _figures(case, measure(case, programs()))


def _figures(case: str, found: Found) -> list[results.Figure]:
    return [results.Figure(measure, case, program, values)
            for (measure, program), values in found.items()]


def _monitors(rounds: int, keep: Keep) -> None:
    done: list[results.Figure] = []
    for gpus in (1, 8, 64):
        machine_, found = monitors.Machine(gpus), {}
        try:
            case = f"{gpus} GPU{'s' if gpus > 1 else ''}"
            for turn in range(rounds):
                for (measure, name), value in monitors.measure(machine_).items():
                    sys.stdout.write(f"{case}  round {turn + 1}  {name}: {measure} {value:.4g}\n")
                    found.setdefault((measure, name), []).append(value)
                keep([*done, *_figures(case, found)], monitors.missing())
        finally:
            machine_.close()
        done += _figures(case, found)


def _of(cases: Mapping[str, Programs]) -> Callable[[int, Keep], None]:
    return lambda rounds, keep: _cases(cases, rounds, keep)


GROUPS: dict[str, Callable[[int, Keep], None]] = {
    "train1": _of({"1 process": lambda: training.programs(1)}),
    "train2": _of({"DDP, 2 ranks": lambda: training.programs(2)}),
    "stop": _of({"Ctrl-C": lambda: stopping.programs("Ctrl-C"),
                 "from outside": lambda: stopping.programs("from outside")}),
    "gpus": _monitors,
    "observe": _of({"1 process": observing.programs}),
    "log": _of({"1 process": logging_steps.programs}),
    "open": _of({"1,000,000 points": opening.programs}),
    "points": _of({"8 ranks": growth.points}),
    "runs": _of({"2 ranks each": growth.runs}),
    "ranks": _of({"20 events a second each": growth.ranks}),
}


def _versions() -> dict[str, str]:
    found = versions(*PACKAGES)
    path = nvtop()
    if path is not None:
        said = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
        found["nvtop"] = said.split()[-1]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="measure and keep it in results.json")
    measuring.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    measuring.add_argument("--rounds", type=int, default=5)
    commands.add_parser("write", help="write docs/performance.md and its plots")
    args = parser.parse_args()
    if args.command == "write":
        page.write()
        return
    if not PYTHON.exists():
        sys.exit(f"{PYTHON} is missing: make bench-peers sets it up")
    unknown = [name for name in args.groups if name not in GROUPS]
    if unknown:
        sys.exit(f"no such group: {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    # In the background of a script Ctrl-C is ignored, also by what is started from there.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in args.groups or GROUPS:
        GROUPS[name](args.rounds, _keeper(name))


def _keeper(name: str) -> Keep:
    """What writes this group's figures so far."""
    began = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    measured, where, what = commit(), machine(), _versions()

    def keep(figures: list[results.Figure], missing: dict[str, str]) -> None:
        results.keep(name, results.Group(began, measured, where, what,
                                         round(os.getloadavg()[0], 1), figures, missing))
    return keep


if __name__ == "__main__":
    main()
