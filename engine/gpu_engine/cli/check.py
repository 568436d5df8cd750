"""gpu-engine check: whether the ranks reach each other, and how fast, without training."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from gpu_engine.cli.output import echo
from gpu_engine.cli.spec_options import SpecChoice, WithCommand, spec_options

if TYPE_CHECKING:
    from gpu_engine.runs.folder import Run


@click.command(cls=WithCommand)
@click.option("--json", "as_json", is_flag=True, help="For scripts: bytes, seconds, per second.")
@spec_options
def command(choice: SpecChoice, as_json: bool) -> None:
    """Start the ranks of PRESET with a tiny job instead of training: all ranks sum up tensors, and
    the sum is verified. Prints every rank's device, and the bandwidth for a few sizes. With
    several machines, start it on each of them, as with run."""
    from gpu_engine.cli import watch
    from gpu_engine.common import units
    from gpu_engine.common.clean import clean
    from gpu_engine.launching.launcher import prepare_check, start
    from gpu_engine.remote.run.removal import Removal
    from gpu_engine.runs import folder
    from gpu_engine.runs.follow import Follower

    prepared = prepare_check(choice.spec)
    run = start(prepared, tell=False)
    try:
        state = watch.watch(Follower(run), quiet=True)
        found = [line for rank in run.ranks() for line in _lines(run, rank)]
        devices = [x for x in found if x["check"] == "device"]
        speeds = [x for x in found if x["check"] == "reduce"]
        if as_json:
            echo(folder.dumps({"ok": state.state == "completed", "state": state.to_dict(),
                                   "ranks": devices, "reductions": speeds}))
        else:
            for x in devices:
                echo(clean(f"rank {x['rank']}  {', '.join(x['device'])}  on {x['host']}"))
            for x in speeds:
                echo(f"reduce {units.size(x['bytes']):>9} over {x['ranks']} ranks: "
                           f"{x['seconds'] * 1e3:.3f} ms, {units.size(x['bytes_per_s'])}/s")
            took = ""
            if state.started is not None and state.ended is not None:
                took = f" in {units.clock(state.ended - state.started)}"
            echo(f"{prepared.plan.world_size} of {prepared.plan.world_size} ranks connected, "
                       f"the sum is right{took}" if state.state == "completed"
                       else f"{state.state}{took}", err=state.state != "completed")
            watch.explain(state)
    finally:
        if not run.state().live:
            with Removal(for_good=True) as removal:
                for text in removal.remove(run).stays:
                    echo(clean(f"{run.id} on {text}"), err=True)
    sys.exit(folder.EXIT_CODES[state.state])


def _lines(run: Run, rank: int) -> list[dict[str, Any]]:
    """The results that the job printed: lines of JSON among other output in the rank's log."""
    from gpu_engine.common.files import read_inside

    out = []
    try:
        text = read_inside(run.path, f"ranks/{run.log(rank).name}").decode(errors="replace")
    except OSError:
        return out
    for line in text.splitlines():
        if line.startswith('{"check":'):
            try:
                out.append(json.loads(line))
            except ValueError:
                continue
    return out
