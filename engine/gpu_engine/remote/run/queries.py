"""What a command asks of a run's hosts by itself, beside the process that holds it together."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from gpu_engine.common import files
from gpu_engine.common.errors import UserError
from gpu_engine.diagnose import traces as asking
from gpu_engine.remote.reach import call, protocol
from gpu_engine.remote.reach.call import Refused, at_once
from gpu_engine.remote.run import link, parts
from gpu_engine.remote.run.parts import Part
from gpu_engine.runs import checkpoints
from gpu_engine.runs.create import lock_of
from gpu_engine.runs.folder import Run

_ENDING = 15.0


def stacks(run: Run, ranks: list[int]) -> dict[int, str]:
    """Have the ranks print where they are, into their logs, which come here by themselves. Returns
    why a rank could not be asked, where its host can't be."""
    found = [p for p in parts.read(run.path) if p.run is not None and set(ranks) & set(p.ranks)]

    def ask(part: Part) -> None:
        assert part.run is not None
        call.ask(parts.host_of(run.path, part), list[protocol.Asked], "stacks", part.run,
                 "--wait", "0", *_ranks(part, ranks))

    answers = at_once(ask, found)
    return {rank: str(answer) for part, answer in zip(found, answers, strict=True)
            if isinstance(answer, UserError) for rank in part.ranks if rank in ranks}


def traces(run: Run, *, steps: int = 3, ranks: Collection[int] = (), wait: float = 120.0
           ) -> dict[int, tuple[str | None, str | None]]:
    """Have `ranks` (none: all), wherever they are, trace their next steps. Returns of each its file
    ("gpu1:/…": there), or why there is none. Raises UserError and OSError."""
    if not parts.spans(run.path):
        found = asking.trace(run, steps=steps, ranks=ranks, wait=wait).items()
        told = [(rank, *asking.describe(run, answer)) for rank, answer in found]
        return {rank: (path and str(path), problem) for rank, path, problem in told}
    asked = asking.able(run, steps, ranks)
    there = [p for p in parts.read(run.path) if set(asked) & set(p.ranks)]

    def ask(part: Part) -> list[protocol.Asked]:
        if part.run is None:
            raise Refused(part.host, "it has not begun there")
        return call.ask(parts.host_of(run.path, part), list[protocol.Asked], "trace", part.run,
                        "--steps", str(steps), "--wait", str(wait), *_ranks(part, asked),
                        seconds=wait + call.ASK)

    out = dict[int, tuple[str | None, str | None]]()
    for part, answer in zip(there, at_once(ask, there), strict=True):
        known = {one.rank: one for one in answer} if isinstance(answer, list) else {}
        for rank in part.ranks:
            one = known.get(rank)
            if rank in asked:
                out[rank] = (one.path and f"{part.host}:{one.path}", one.problem) if one else \
                    (None, str(answer) if isinstance(answer, UserError) else "no answer")
    return dict(sorted(out.items()))


def _ranks(part: Part, ranks: Collection[int]) -> list[str]:
    return [word for rank in part.ranks if rank in ranks for word in ("--rank", str(rank))]


def to_stop_text(run: Run, hosts: Sequence[str]) -> str:
    """What a stopped run says of hosts that could not be asked to stop."""
    return (f"{', '.join(hosts)} can't be reached: what runs there goes on until "
            f"gpu-engine stop {run.id} reaches it")


def stop_left(run: Run, *, now: bool = False) -> bool:
    """Ask the hosts that could not be reached when the run was stopped. Returns whether there were
    any. Raises UserError where one can't be reached now either."""
    left = [p for p in parts.read(run.path) if p.to_stop]
    if not left:
        return False

    def ask(part: Part) -> None:
        host = parts.host_of(run.path, part)
        with contextlib.suppress(Refused):  # it has no such run (any more)
            name = part.run or link.begun(host, run.path, part, only_ask=True).id
            link.stop(host, name, now=now)
        parts.write(run.path, replace(part, to_stop=False, problem=None, since=None))

    lock = lock_of(run.path)
    try:
        # Another attempt, which would have the lock, must not be what is stopped. The supervisor of
        # this one holds it for a moment after it has written that the run is stopped.
        end = time.monotonic() + _ENDING
        while not files.take_lock(lock):
            if run.state().live or time.monotonic() > end:
                return False
            time.sleep(0.05)
        failed = [answer for answer in at_once(ask, left) if isinstance(answer, UserError)]
        state = run.state()
        if state.state == "stopped":
            still = [p.host for p in parts.read(run.path) if p.to_stop]
            run.write_state(replace(state, reason=to_stop_text(run, still) if still else None))
    finally:
        os.close(lock)
    if failed:
        raise UserError("; ".join(map(str, failed)))
    return True


def choose(run: Run, which: str, best: str | None) -> str:
    """The name of the checkpoint on the host of rank 0 that `which` means, by the rules of
    `gpu-engine export`. Raises UserError."""
    part = _first(run)
    assert part.run is not None
    host = parts.host_of(run.path, part)
    name = call.ask(host, protocol.Chosen, "export", part.run, "--from", which,
                    *(["--best", best] if best else [])).checkpoint
    if re.fullmatch(r"step-[0-9]{8}", name) is None:
        raise Refused(host.name, f"{name[:40]!r} is no name of a checkpoint")
    return name


def meant(run: Run, which: str, best: str | None = None) -> str:
    """`choose`, wherever the run is. Raises UserError."""
    best = best or run.require_plan().spec.train.best
    if parts.spans(run.path):
        return choose(run, which, best)
    there = [path.name for path in checkpoints.listed(run.checkpoints)]
    if not there:
        raise UserError(f"run {run.id} has no checkpoint yet")
    return checkpoints.choose(run.checkpoints, which, best) or there[-1]


def brought(run: Run, which: str, best: str | None) -> str | None:
    """The name of the checkpoint that `which` means, which is here; None: the newest that loads.
    Raises UserError, where it has to be copied with what copies it."""
    if not parts.spans(run.path):
        return checkpoints.choose(run.checkpoints, which, best)
    name = choose(run, which, best)
    place = run.checkpoints / name
    if not place.is_dir():
        part = _first(run)
        host = parts.host_of(run.path, part)
        source = f"{part.path}/checkpoints/{name}"
        run.checkpoints.mkdir(mode=0o700, exist_ok=True)
        line = shlex.join(("scp", "-r", f"{host.destination}:{source}", str(place)))
        raise UserError(f"{name} is on {part.host}; it has to be here before its weights can be "
                        f"exported. Where ssh reaches that host:\n{line}")
    return name


def _first(run: Run) -> Part:
    """The part that has rank 0. Raises UserError."""
    first = next((p for p in parts.read(run.path) if p.node == 0), None)
    if first is None or first.run is None:
        raise UserError(f"run {run.id} has begun on no host, so there is no checkpoint")
    return first
