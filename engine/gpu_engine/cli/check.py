"""gpu-engine check: whether the ranks reach each other, and how fast, without training."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from gpu_engine.cli.output import echo, for_scripts, in_json
from gpu_engine.cli.spec_options import SpecChoice, WithCommand, spec_options
from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.files import read_inside
from gpu_engine.runs.folder import EXIT_CODES, Run, State
from gpu_engine.spec.schema import RunSpec

if TYPE_CHECKING:
    from gpu_engine.cli.outputs import Checked


@click.command(cls=WithCommand)
@for_scripts
@spec_options
def command(choice: SpecChoice, as_json: bool) -> None:
    """Start the ranks of PRESET with a tiny job instead of training: all ranks sum up tensors, and
    the sum is verified. Prints what every device computes, and the bandwidth over all ranks and
    between every two, and names a device or a link far below the others. GPUs that hang are tried
    again without P2P and shared memory. With several machines, start it on each of them, as with
    run."""
    found = _tried(choice.spec, as_json)
    if as_json:
        echo(in_json(found.to_dict()))
    else:
        _print(found)
    sys.exit(EXIT_CODES[found.state.state])


@dataclass(frozen=True)
class _Found:
    """What came of one try."""

    state: State
    lines: list[dict[str, Any]]
    ranks: int
    env: dict[str, str]
    """What was set for it besides the spec's environment."""

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [x for x in self.lines if x["check"] == kind]

    def doubts(self) -> list[str]:
        """What is odd, in sentences."""
        from gpu_engine.diagnose.outliers import slow_devices, slow_links

        out = [f"{x.what}: computes at {x.share:.0%} of what such devices do here: look at its "
               "temperature, its power limit and who else uses it"
               for x in slow_devices(self.of("product"))]
        out += [f"{x.what}: their link carries {x.share:.0%} of what such links do here: look at "
                "its lanes and generation (nvidia-smi -q -d PCIE), or its network"
                for x in slow_links(self.of("pair"))]
        if self.env and self.state.state == "completed":
            sets = " ".join(f"--set run.env.{k}={v}" for k, v in self.env.items())
            out.append(f"it hangs without {' '.join(self.env)}: add {sets}, or see whether the "
                       "IOMMU is in the way (boot with iommu=pt)")
        return out

    def to_dict(self) -> Checked:
        return {"ok": self.state.state == "completed", "state": self.state,
                "ranks": self.of("device"), "reductions": self.of("reduce"),
                "products": self.of("product"), "pairs": self.of("pair"),
                "doubts": self.doubts(), "env": self.env}


_FEW = 6
"""So many pairs are all printed."""
_CURES = ({"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"})
"""What makes NCCL work where GPUs can't reach each other's memory, or /dev/shm is too small:
github.com/NVIDIA/nccl/issues/257, docs.nvidia.com, NCCL, Troubleshooting."""


def _tried(spec: RunSpec, quiet: bool) -> _Found:
    """Try it, and where GPUs hang in their first sum, again without the ways in which they reach
    each other's memory."""
    first = _once(spec, {})
    if not _hangs(first):
        return first
    for env in _CURES:
        if not quiet:
            echo(f"the first sum did not come to an end: again with {' '.join(env)}", err=True)
        again = _once(replace(spec, run=replace(spec.run, env=spec.run.env | env)), env)
        if again.state.state == "completed":
            return again
    return first


def _once(spec: RunSpec, env: dict[str, str]) -> _Found:
    from gpu_engine.cli import watch
    from gpu_engine.places.verbs import prepare_check, remove, start

    prepared = prepare_check(spec)
    run = start(prepared, tell=False)
    try:
        state = watch.watch(watch.Follower(run), quiet=True)
        return _Found(state, [line for rank in run.ranks() for line in _lines(run, rank)],
                      prepared.plan.world_size, env)
    finally:
        if not run.state().live:
            for text in remove(run).stays:
                echo(clean(f"{run.id} on {text}"), err=True)


def _hangs(found: _Found) -> bool:
    """Whether all ranks met, with NCCL, and then failed in their first sum."""
    met = found.of("device")
    return (found.state.state == "failed" and found.ranks > 1 and len(met) == found.ranks
            and not found.of("product") and all(x["backend"] == "nccl" for x in met))


def _print(found: _Found) -> None:
    from gpu_engine.cli import watch

    for x in found.of("device"):
        echo(clean(f"rank {x['rank']}  {', '.join(x['device'])}  on {x['host']}"))
    for x in found.of("product"):
        echo(clean(f"rank {x['rank']}  {x['device']}  multiplies {x['n']}×{x['n']} in {x['dtype']} "
                   f"at {x['flops_per_s'] / 1e12:.3g} TFLOP/s"))
    for x in found.of("reduce"):
        echo(f"reduce {units.size(x['bytes']):>9} over {units.counted(x['ranks'], 'rank')}: "
             f"{x['seconds'] * 1e3:.3f} ms, {units.size(x['bytes_per_s'])}/s")
    pairs = sorted(found.of("pair"), key=lambda x: x["bytes_per_s"])
    for x in pairs if len(pairs) <= _FEW else (pairs[0], pairs[-1]):
        a, b = x["ranks"]
        which = "" if len(pairs) <= _FEW else (
            f"the {'slowest' if x is pairs[0] else 'fastest'} of {len(pairs)} pairs, ")
        echo(f"{which}ranks {a} and {b}: {units.size(x['bytes_per_s'])}/s each way")
    state, took = found.state, ""
    for doubt in found.doubts():
        echo(clean(f"warning: {doubt}"), err=True)
    if state.started is not None and state.ended is not None:
        took = f" in {units.clock(state.ended - state.started)}"
    echo(f"{found.ranks} of {units.counted(found.ranks, 'rank')} connected, the sum is right{took}"
         if state.state == "completed" else f"{state.state}{took}", err=state.state != "completed")
    watch.explain(state)


def _lines(run: Run, rank: int) -> list[dict[str, Any]]:
    """The results that the job printed: lines of JSON among other output in the rank's log."""
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
