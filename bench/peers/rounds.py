"""Rounds in which programs take turns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

Program = Callable[[], Mapping[str, float]]
"""Measures a program once: measure → value."""


class NotMeasured(Exception):
    """A program can't be measured here; the text says why."""


Found = dict[tuple[str, str], list[float]]
"""(measure, program) → a value for each round."""


def interleaved(case: str, programs: Mapping[str, Program], rounds: int,
                after: Callable[[Found, dict[str, str]], None] = lambda found, missing: None
                ) -> tuple[Found, dict[str, str]]:
    """(what was found, {program: why it was not measured}). `after` is called with both after each
    round, so that an interrupted series leaves something.

    In every round each program runs once; who begins changes from round to round. A program that
    fails once is left out of all rounds, so that what is compared ran side by side.
    """
    found: Found = {}
    missing: dict[str, str] = {}
    names = list(programs)
    for turn in range(rounds):
        first = turn % len(names)
        for name in (*names[first:], *names[:first]):
            if name in missing:
                continue
            try:
                got = programs[name]()
            except NotMeasured as err:
                missing[name] = str(err)
                continue
            shown = "  ".join(f"{measure} {value:.6g}" for measure, value in got.items())
            sys.stdout.write(f"{case}  round {turn + 1}  {name}: {shown}\n")
            sys.stdout.flush()
            for measure, value in got.items():
                found.setdefault((measure, name), []).append(value)
        after({key: list(v) for key, v in found.items() if key[1] not in missing}, missing)
    for name, why in missing.items():
        sys.stdout.write(f"{case}  {name} is not measured: {why}\n")
    return {key: values for key, values in found.items() if key[1] not in missing}, missing
