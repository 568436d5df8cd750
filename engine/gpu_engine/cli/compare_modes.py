"""gpu-engine compare-modes: one global batch under each mode of this machine."""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import asdict
from typing import Any

import click

from gpu_engine.cli.output import echo, in_json, table
from gpu_engine.cli.spec_options import SpecChoice, spec_options
from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.events.reader import Tail
from gpu_engine.events.schema import Memory, Step
from gpu_engine.plan import mode_trials
from gpu_engine.plan.mode_trials import Result, Trial, efficiency, furthest_apart, rate
from gpu_engine.runs.folder import Run


@click.command()
@click.option("--steps", type=click.IntRange(5), default=50, show_default=True,
              help="Steps in each mode; the first fifth is not measured.")
@click.option("--keep", is_flag=True, help="Keep the runs, to look at them or compare them.")
@click.option("--json", "as_json", is_flag=True, help="For scripts: seconds, bytes, per second.")
@spec_options
def command(choice: SpecChoice, steps: int, keep: bool, as_json: bool) -> None:
    """Train PRESET for a few steps in each mode, one after the other, with the same global batch:
    on its first device alone, and on all of its devices under DataParallel and under DDP. Tells
    how fast each is, what memory it takes, and whether they train the same."""
    from gpu_engine.launching import launcher

    spec = choice.spec
    inventory = launcher.discover_for(spec)
    spec = launcher.pick(spec, inventory)
    trials, left_out = mode_trials.trials(spec, inventory, steps)
    # All of them before one runs: what does not fit is said at once.
    prepared = [launcher.prepare(t.spec, inventory=inventory) for t in trials]
    if not as_json:
        echo(f"{trials[0].spec.batch.size:,} examples a step, {steps} steps in each mode, "
             f"of {clean(spec.name)}", err=True)
    results: list[Result] = []
    for trial, one in zip(trials, prepared, strict=True):
        if not as_json:
            echo(f"{trial.mode} …", err=True)
        results.append(_tried(trial, one, keep))
    said, good = mode_trials.verdicts(results, spec.amp.dtype != "off")
    if as_json:
        echo(in_json({
            "global_batch": trials[0].spec.batch.size, "steps": steps, "left_out": left_out,
            "same": good, "modes": [asdict(r) | {
                "efficiency": efficiency(results[0], r),
                "apart": furthest_apart(results[0].losses, r.losses)}
                for r in results]}))
    else:
        for line in _table(results):
            echo(line)
        for text in (*said, *left_out.values()):
            echo(text)
    sys.exit(0 if good else 1)


def _tried(trial: Trial, prepared: Any, keep: bool) -> Result:
    """Run one trial to its end, and delete its folder unless it is to be kept or has failed."""
    from gpu_engine.cli import watch
    from gpu_engine.launching import launcher
    from gpu_engine.remote.run.removal import Removal

    run = launcher.start(prepared, tell=False)
    state = watch.watch(watch.Follower(run), quiet=True)
    devices = len(trial.spec.devices.ids or ())
    if state.state == "stopped":  # by Ctrl-C: nobody waits for the other modes
        raise click.Abort
    if state.state != "completed":
        why = state.cause.message if state.cause is not None else state.reason or state.state
        return Result(trial.mode, devices, None, None, None, {}, f"run {run.id}: {why}")
    out = _measured(run, trial, devices)
    if not keep:
        with Removal(for_good=True) as removal:
            removal.remove(run)
    return out


def _measured(run: Run, trial: Trial, devices: int) -> Result:
    steps = trial.spec.train.steps or 0
    times: list[tuple[float, int]] = []
    losses: defaultdict[int, list[float]] = defaultdict(list)
    gpus: list[int] = []
    hosts: list[int] = []
    for rank in run.ranks():
        for event in Tail(run.events(rank)).read(1 << 30):  # a trial is short
            if isinstance(event, Step):
                if rank == 0:
                    times.append((event.t, event.step))
                for at, loss in enumerate(event.losses, event.step - len(event.losses) + 1):
                    losses[at].append(loss)
            elif isinstance(event, Memory):
                gpus += [p for p in event.gpu_peak or () if p is not None]
                hosts += [event.rss] if event.rss is not None else []
    each = rate(times, steps)
    return Result(trial.mode, devices, each, trial.spec.batch.size / each if each else None,
                  max(gpus, default=None) or max(hosts, default=None),
                  {step: sum(of) / len(of) for step, of in sorted(losses.items())})


def _table(results: list[Result]) -> list[str]:
    heads = ("mode", "devices", "samples/s", "efficiency", "ms a step", "memory", "last loss",
             "losses apart")
    rows: list[tuple[str, ...]] = [heads]
    for r in results:
        share, apart = efficiency(results[0], r), furthest_apart(results[0].losses, r.losses)
        rows.append((
            r.mode, str(r.devices),
            "–" if r.samples_per_s is None else f"{r.samples_per_s:,.4g}",
            "–" if share is None else f"{share:.0%}",
            "–" if r.seconds_a_step is None else f"{r.seconds_a_step * 1e3:,.4g}",
            "–" if r.memory is None else units.size(r.memory),
            units.loss(list(r.losses.values())[-1] if r.losses else None),
            "–" if apart is None or r is results[0] else f"{apart:.1g}"))
    return [*table(rows, right=True),
            *(clean(f"{r.mode} failed: {r.problem}") for r in results if r.problem)]
