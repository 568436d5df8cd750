"""gpu-engine trace: trace the next steps of a live run, and say what takes the time."""

from __future__ import annotations

import sys

import click

from gpu_engine.cli import tab
from gpu_engine.cli.output import echo, in_json
from gpu_engine.common.clean import clean


@click.command()
@click.argument("run", default="last", shell_complete=tab.runs)
@click.option("--steps", type=click.IntRange(1, 100), default=3, show_default=True,
              help="How many steps.")
@click.option("--rank", "ranks", type=click.IntRange(0), multiple=True,
              help="Only this rank; several times for several.")
@click.option("--wait", type=click.FloatRange(1, 3600), default=120.0, show_default=True,
              help="Seconds to wait for the steps.")
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
def command(run: str, steps: int, ranks: tuple[int, ...], wait: float, as_json: bool) -> None:
    """Trace the next steps of RUN's ranks with torch's profiler, while training goes on.

    A file for each rank, traces/… in the run folder, is for https://ui.perfetto.dev or
    chrome://tracing. Printed is which operators take longest. The exit code is 1 if a rank gave
    none.
    """
    from dataclasses import asdict

    from gpu_engine.diagnose import traces
    from gpu_engine.launching.lookup import find

    found = find(run)
    answers = traces.trace(found, steps=steps, ranks=ranks, wait=wait)
    out = [(rank, *traces.describe(found, answer)) for rank, answer in answers.items()]
    for rank, path, _, text in () if as_json else out:
        echo(f"--- rank {rank} ---")
        for line in [*([str(path)] if path is not None else []), *text]:
            echo(clean(line))
    if as_json:
        echo(in_json([{"rank": rank, "path": None if path is None else str(path),
                       "summary": whole and asdict(whole), "problem": None if whole else text[0]}
                      for rank, path, whole, text in out]))
    if any(whole is None for _, _, whole, _ in out):
        sys.exit(1)
