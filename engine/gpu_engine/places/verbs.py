"""What panel, command line and scripts call, wherever a run is or is to be."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_engine.common import paths, units
from gpu_engine.common.errors import Problem, SpecError, UserError
from gpu_engine.runs import checkpoints, job, leftovers, trust
from gpu_engine.runs import folder as runs
from gpu_engine.runs.folder import Run, each_run
from gpu_engine.runs.state import State
from gpu_engine.slurm import watch
from gpu_engine.spec.host_names import SLURM

if TYPE_CHECKING:
    from gpu_engine.devices.records import Inventory
    from gpu_engine.launching.launcher import Prepared
    from gpu_engine.remote.reach.call import Unreachable
    from gpu_engine.remote.run.removal import Outcome
    from gpu_engine.spec.schema import RunSpec

_FETCHED = 5.0
"""Seconds that are waited for what a host has of a run that has ended without it."""
_MOST = 5
"""How often one command takes up the same run."""
# What starts runs is imported where that is done: to look needs none of it.


def meant_by(spec: RunSpec):
    """Where a run of `spec` would be: the module that prepares and starts it. Raises UserError."""
    if spec.devices.hosts is None:
        from gpu_engine.launching import launcher

        return launcher
    if SLURM in str(spec.devices.hosts):
        from gpu_engine.slurm import submit

        if submit.is_meant(spec):  # and no host that is called so
            return _slurm()
    return _hosts()


def _hosts():
    from gpu_engine.places import hosts

    return hosts


def _slurm():
    from gpu_engine.places import slurm

    return slurm


def on_slurm(run: Run) -> bool:
    """Whether it is a job."""
    return os.path.exists(run.path / job.FILE) and job.read(run.path) is not None  # noqa: PTH110


def on_hosts(run: Run) -> bool:
    """Whether it is on other machines by ssh."""
    return os.path.isdir(run.path / leftovers.HOSTS)  # noqa: PTH112


# --- look ----------------------------------------------------------------------------------------

def find(name: str) -> Run:
    """`runs.folder.find`, once the run's folder says how it is where it is. Raises UserError."""
    run = runs.find(name)
    look(run, wait=_FETCHED)
    return run


def find_each(names: Sequence[str]) -> list[Run]:
    """`find` of each of these names. Raises UserError where two mean the same run."""
    found = [find(name) for name in names]
    ids = [run.id for run in found]
    if len(set(ids)) < len(ids):
        raise UserError(f"{', '.join(names)}: these name {', '.join(ids)}; name each run once")
    return found


def look(run: Run, *, wait: float = 0.0) -> bool:
    """Have the folder of `run` say how it is where it is, if it was started from here. For what its
    place has yet to hand over `wait` seconds are waited. Returns whether a process had to be
    started for it. Raises UserError."""
    if on_slurm(run):
        if trust.started_here(run.path):
            watch.refresh()
        return False
    return on_hosts(run) and _hosts().look(run, wait)


def look_at_all(among: Iterable[Run] | None = None) -> None:
    """`look` at these runs, None: at all, for lists. If one can't be, the others are."""
    jobs = False
    for run in each_run() if among is None else among:
        jobs = jobs or on_slurm(run)
        with suppress(UserError):
            if on_hosts(run):
                _hosts().look(run)
    if jobs:
        watch.refresh()  # which asks once for all


class Followed:
    """Keeps what is known of a run coming while somebody follows it, and says whether it goes on.
    Where its process here was killed it is taken up again, but not for ever if that process ends
    each time."""

    def __init__(self, run: Run, every: float = 0.5) -> None:
        """`every`: seconds between two looks."""
        self._run, self._every = run, every
        self._left, self._due = _MOST, 0.0

    def __call__(self, state: State) -> bool:
        """`state`: the run's, as it was read last."""
        if state.live and time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every
            try:
                self._left -= look(self._run)
            except UserError:
                self._left -= 1
        return state.live and self._left >= 0


# --- start ---------------------------------------------------------------------------------------

def prepare(spec: RunSpec, *, base: tuple[str, RunSpec] | None = None, cwd: Path | None = None,
            inventory: Inventory | None = None, only_plan: bool = False) -> Prepared:
    """Resolve everything that a launch would: pick devices, check, plan. Starts nothing.

    inventory: the devices of this machine, if they have been found already; whether those that are
    named are free is then not judged. only_plan: nothing but the plan is used, and that devices are
    in use is only a warning.

    Raises SpecError with all that does not fit, UserError where too few devices are free.
    """
    return meant_by(spec).prepare(spec, base=base, cwd=cwd, inventory=inventory,
                                  only_plan=only_plan)


def prepare_check(spec: RunSpec) -> Prepared:
    """`prepare` for the tiny job that only tries the connection between the ranks, whatever the
    spec would train. Raises as `prepare`."""
    from gpu_engine.launching.launcher import only_trying
    from gpu_engine.spec.catalog import BUILTIN
    from gpu_engine.spec.schema import BatchSpec, TaskSpec

    place = replace(spec.parallel, timeout=min(spec.parallel.timeout, 30.0))
    return only_trying(prepare(replace(
        spec, name=f"check {spec.name}"[:80], task=TaskSpec(use=BUILTIN[0]), parallel=place,
        batch=BatchSpec(size=1, meaning="per_gpu"), run=replace(spec.run, sync="none"))))


def start(prepared: Prepared, *, tell: bool = True, tags: Sequence[str] = ()) -> Run:
    """Make the run folder and have the run begin. `tell`: whether those in notify.toml are told of
    it. `tags`: what it is tagged with from the start. Raises UserError where that can't be, as on a
    disk that is full."""
    return meant_by(prepared.spec).start(prepared, tell=tell, tags=tags)


def launch(spec: RunSpec, *, inventory: Inventory | None = None,
           base: tuple[str, RunSpec] | None = None) -> Run:
    """Start a run, which goes on when this process ends, and return it at once. Raises as
    `prepare`, and UserError where the runs folder can't be written."""
    return start(prepare(spec, inventory=inventory, base=base))


def resume(run: Run, sets: Sequence[str] = (), *, start: str = "newest") -> Prepared:
    """Start another attempt of an ended run, from its newest checkpoint that loads, with the
    settings of the last one and `sets` (`key=value`) changed. Returns at once.

    start: "best" or a step goes on from that checkpoint, and from no other; those behind it are
    set aside in a folder of their own, once it has been verified.

    Raises UserError while it runs, where what is left of it can't be ended or there is no such
    checkpoint, SpecError where the changed spec does not fit, or asks for fewer steps than are
    done.
    """
    from gpu_engine.launching import launcher
    from gpu_engine.runs import attempts
    from gpu_engine.spec.read import apply_sets, from_dict

    trust.require_ours(run.path)
    launcher.make_way(run)
    data = attempts.read_spec(run)
    apply_sets(data, sets)
    spec = from_dict(data)
    place = _slurm() if on_slurm(run) else _hosts() if on_hosts(run) else launcher
    # The script of a job says itself that it is one; its spec need not.
    if meant_by(spec) is not place and (spec.devices.hosts or not on_slurm(run)):
        raise SpecError([Problem("devices.hosts", spec.devices.hosts, "a run goes on where its "
                                 "checkpoints are: leave it, or start another run there")])
    return place.again(run, spec, start)


# --- tell ----------------------------------------------------------------------------------------

def stop(run: Run, *, now: bool = False) -> None:
    """Ask a run to save and end; `now`: kill its ranks. A job does not go back to the queue. Raises
    UserError."""
    if on_slurm(run):
        trust.require_started(run.path)
        watch.stop(run, now=now)
    elif on_hosts(run):
        _hosts().stop(run, now=now)
    else:
        run.stop(now=now)


def goes_on(run: Run) -> bool:
    """Whether it may go on on a host whose end nobody has heard of, though it has ended here."""
    return on_hosts(run) and _hosts().goes_on(run)


def ask_for_stacks(run: Run, ranks: Sequence[int]) -> dict[int, str]:
    """Have the ranks print where they are, into their logs. Returns why one was not asked."""
    if on_hosts(run):
        return _hosts().stacks(run, ranks)
    from gpu_engine.runs import stacks

    of = job.read(run.path)

    def why(rank: int) -> str:
        if of is not None:
            return (f"it is asked on its node: srun --jobid={of.id} --overlap gpu-engine stacks "
                    f"{run.id}")
        if (there := stacks.process(run, rank)) is None:
            return "the rank has ended, is still starting, or runs on another machine"
        return (f"process {there[0]} gives none: only Python with torch has them printed; of any "
                f"Python, py-spy dump --pid {there[0]}")

    return {rank: why(rank) for rank in ranks if not stacks.request(run, rank)}


def ask_for_traces(run: Run, *, steps: int = 3, ranks: Collection[int] = (), wait: float = 120.0
                   ) -> dict[int, tuple[str | None, str | None]]:
    """Have `ranks` (none: all) trace their next steps. Returns of each its file, or why there is
    none. Raises UserError and OSError."""
    if on_hosts(run):
        return _hosts().traces(run, steps, ranks, wait)
    from gpu_engine.diagnose import traces

    found = {rank: traces.describe(run, answer) for rank, answer in traces.trace(
        run, steps=steps, ranks=ranks, wait=wait).items()}
    return {rank: (path and str(path), problem) for rank, (path, problem) in found.items()}


# --- checkpoints ---------------------------------------------------------------------------------

def checkpoint(run: Run, which: str, best: str | None = None) -> str:
    """The name of the checkpoint that `which` means, by the rules of `gpu-engine export`, wherever
    it is. Raises UserError."""
    best = best or run.require_plan().spec.train.best
    if on_hosts(run):
        from gpu_engine.remote.run.prepare import checkpoint_of

        return checkpoint_of(run, which, best)[1]
    there = checkpoints.listed(run.checkpoints)
    if not there:
        raise UserError(f"run {run.id} has no checkpoint yet")
    return checkpoints.choose(run.checkpoints, which, best) or there[-1].name


def checkpoint_here(run: Run, which: str, best: str | None) -> str | None:
    """The name of the checkpoint that `which` means, which is here; None: the newest that loads.
    Raises UserError, where it has to be copied with what copies it."""
    return (_hosts().checkpoint_here(run, which, best) if on_hosts(run)
            else checkpoints.choose(run.checkpoints, which, best))


# --- remove --------------------------------------------------------------------------------------

def what_goes(runs: Sequence[Run], *, only_here: bool = False) -> str:
    """What a person is told before these runs are removed: "2 runs with their checkpoints, 3.1 GiB
    here; their parts on a, b go too. Nothing brings them back."."""
    size = units.size(sum(run.size() for run in runs))
    hosts = sorted({part.host for run in runs if on_hosts(run) and trust.started_here(run.path)
                    for part in _hosts().parts_of(run)})
    what, its, it = (f"{len(runs)} runs", "their", "them") if len(runs) > 1 \
        else ("1 run", "its", "it")
    there = f"; {its} parts on {', '.join(hosts)} {'stay' if only_here else 'go too'}"
    return f"{what} with {its} checkpoints, {size} here{there if hosts else ''}. " \
           f"Nothing brings {it} back."


def remove(run: Run, away: dict[str, Unreachable] | None = None, *, only_here: bool = False
           ) -> Outcome:
    """Remove `run`: what is here of it last, and only if no host has anything of it left, as nobody
    would know of that any more. Hosts are asked only about a run that was started from here.
    `away`: those that can't be reached, which are not asked again, and are added to. `only_here`:
    leave what hosts have. Raises UserError as `Run.remove`."""
    from gpu_engine.code import store
    from gpu_engine.remote.run.removal import Gone, Outcome

    run.require_removable()
    gone, stays = list[str](), list[str]()
    if on_hosts(run) and not only_here and trust.started_here(run.path):
        gone, stays = _hosts().remove(run, {} if away is None else away)
        if stays:
            return Outcome(None, tuple(gone), tuple(stays))
    elif on_hosts(run):
        stays = list(map(_hosts().stays, _hosts().parts_of(run)))
    size, folder = run.size(), run.cwd()
    run.remove()
    # Of runs of one's own it is kept for a day, or longer.
    code = store.remove_unused(folder) if paths.serving else ()
    return Outcome(Gone(str(run.path), size, *code), tuple(gone), tuple(stays))
