"""Other machines by ssh. Each host has its part of a run, with a supervisor of its own; here a
process holds them together and mirrors what they record (`remote/run`).

That process may end, and the hosts go on: the next command, or the panel, starts it again. The
run's lock keeps two from doing so: the one that gets it hands it to the new process.
"""

from __future__ import annotations

import os
import shlex
import socket
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from gpu_engine.common import procs, units
from gpu_engine.common.errors import UserError, telling
from gpu_engine.common.files import locked, open_inside, take_lock
from gpu_engine.devices.records import Inventory
from gpu_engine.diagnose import traces as asking
from gpu_engine.events.notices import NOT_FETCHED
from gpu_engine.launching import launcher, logind, notifier
from gpu_engine.launching.launcher import Prepared
from gpu_engine.plan.check import chooses_host
from gpu_engine.remote.reach.call import ASK, Refused, Unreachable, ask, at_once, reason
from gpu_engine.remote.reach.protocol import Asked
from gpu_engine.remote.run import freest, link, parts, removal, rest
from gpu_engine.remote.run import prepare as preparing
from gpu_engine.remote.run.parts import Part
from gpu_engine.runs import trust, waiting
from gpu_engine.runs.create import lock_of
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import FINAL, State
from gpu_engine.spec.host_names import SLURM
from gpu_engine.spec.schema import RunSpec

_AGAIN = 60.0
"""Seconds between two tries to fetch the rest of a run that nobody asks for."""
_ENDING = 15.0
"""Seconds in which the process that held a run together is gone once that has ended."""


def devices(spec: RunSpec) -> Inventory:
    """Where one of several machines is meant, those of the one that may have most."""
    if not chooses_host(spec):
        return launcher.devices(spec)
    spec, asked = freest.asked_of(spec)
    return freest.expected(freest.look(asked), spec.devices.pick or 1)


def prepare(spec: RunSpec, *, base: tuple[str, RunSpec] | None = None, cwd: Path | None = None,
            only_plan: bool = False, in_sweep: bool = False, **_: object) -> Prepared:
    """`verbs.prepare`. With run.sync each host is sent the code that it lacks, as its checks run in
    that folder; with `only_plan` it is sent nothing, and checks all but the task."""
    def there(spec: RunSpec) -> Prepared:
        return Prepared(*preparing.prepare(spec, base=base, cwd=cwd, send=not only_plan,
                                           in_sweep=in_sweep))

    chosen = wants = None
    if chooses_host(spec):
        prepared, chosen, wants = freest.resolve(spec, there, only_plan=only_plan)
    else:
        prepared = there(spec)
    # It is no job: `verbs.meant_by` has said so.
    named_so = any(host.partition(":")[0] == SLURM for host in spec.devices.hosts or ())
    return replace(prepared, wants=wants, plan=launcher.warned(
        replace(prepared.plan, chosen=chosen),
        "slurm is a host of yours, and means it; Slurm itself is devices.hosts=slurm:PARTITION"
        if named_so else None, notifier.doubt()))


def start(prepared: Prepared, *, tell: bool = True, tags: Sequence[str] = ()) -> Run:
    """`verbs.start`."""
    def keep(run: Run) -> None:
        parts.write_instead(run.path, prepared.parts)
        if prepared.wants is not None:
            waiting.write(run.path, waiting.Entry(
                **asdict(prepared.wants), submitted=time.time(), number=0,
                host=socket.gethostname(), folder=run.cwd(), at_once=True))

    return launcher.start(prepared, tell=tell, tags=tags, keep=keep)


def again(run: Run, spec: RunSpec, start: str) -> Prepared:
    """`launcher.again`: each part continues where it is."""
    trust.require_started(run.path)
    prepared = Prepared(*preparing.prepare_again(run, spec, start))
    launcher.open_again(run, prepared,
                        keep=lambda: parts.write_instead(run.path, prepared.parts))
    return prepared


def look(run: Run, wait: float = 0.0) -> bool:
    """If the run has not ended and has no process here, start one; returns whether that had to be
    done. If it has ended, and a host was away then, what that has of it is fetched, for which
    `wait` seconds are waited. Raises UserError."""
    if run.supervised() or not trust.started_here(run.path):
        return False
    if _left(run) is None:
        _fetch(run, wait)
        return False
    _follow(run)
    return True


def stacks(run: Run, ranks: Sequence[int]) -> dict[int, str]:
    """`verbs.ask_for_stacks`. What they print comes here by itself."""
    told = _answers(run, ranks, "stacks", "--wait", "0")
    return {rank: str(answer) for part, answer in told if isinstance(answer, UserError)
            for rank in part.ranks if rank in ranks}


def traces(run: Run, steps: int, ranks: Collection[int], wait: float
           ) -> dict[int, tuple[str | None, str | None]]:
    """`verbs.ask_for_traces`. A file is where the rank is: "gpu1:/…"."""
    asked, out = asking.able(run, steps, ranks), dict[int, tuple[str | None, str | None]]()
    for part, answer in _answers(run, asked, "trace", "--steps", str(steps), "--wait", str(wait),
                                 seconds=wait + ASK):
        why = str(answer) if isinstance(answer, UserError) else "no answer"
        known = {} if isinstance(answer, UserError) else {one.rank: one for one in answer}
        for rank in {*part.ranks} & {*asked}:
            one = known.get(rank)
            out[rank] = (one.path and f"{part.host}:{one.path}", one.problem) if one \
                else (None, why)
    return dict(sorted(out.items()))


def _answers(run: Run, ranks: Collection[int], command: str, *words: str, seconds: float = ASK
             ) -> list[tuple[Part, list[Asked] | UserError]]:
    """What the hosts that have these ranks say to `gpu-engine COMMAND RUN WORDS` about them."""
    def one(part: Part) -> list[Asked]:
        if part.run is None:
            raise Refused(part.host, "it has not begun there")
        return ask(parts.host_of(run.path, part), list[Asked], command, part.run, *words, *(
            word for rank in part.ranks if rank in ranks for word in ("--rank", str(rank))),
            seconds=seconds)

    return at_once(one, [part for part in parts.read(run.path) if {*ranks} & {*part.ranks}])


def checkpoint_here(run: Run, which: str, best: str | None) -> str:
    """`verbs.checkpoint_here`: it has been copied from the host of rank 0."""
    part, name = preparing.checkpoint_of(run, which, best)
    place = run.checkpoints / name
    if not place.is_dir():
        host = parts.host_of(run.path, part)
        run.checkpoints.mkdir(mode=0o700, exist_ok=True)
        line = shlex.join(("scp", "-r", f"{host.destination}:{part.path}/checkpoints/{name}",
                           str(place)))
        raise UserError(f"{name} is on {part.host}; it has to be here before its weights can be "
                        f"exported. Where ssh reaches that host:\n{line}")
    return name


def stop(run: Run, *, now: bool) -> None:
    """`verbs.stop`. Hosts that were away when it was stopped are asked again."""
    look(run)
    if run.state().live or not _stop_left(run, now=now):
        run.stop(now=now)


def goes_on(run: Run) -> bool:
    """`verbs.goes_on`."""
    return any(p.to_stop or (p.behind and p.state not in FINAL) for p in parts.read(run.path))


def _stop_left(run: Run, *, now: bool) -> bool:
    """Ask the hosts that could not be reached when the run was stopped. Returns whether there were
    any. Raises UserError where one can't be reached now either."""
    # Nor is one done with that was told: what it was told may not have been enough.
    left = [p for p in parts.read(run.path) if p.behind and p.state not in FINAL]
    if not left:
        return False

    def tell(part: Part) -> None:
        parts.write(run.path, replace(part, to_stop=True))
        host = parts.host_of(run.path, part)
        with suppress(Refused):  # it has no such run (any more)
            link.stop(host, part.run or link.begun(host, run.path, part, only_ask=True).id,
                      "--now" if now else "--again")
        parts.write(run.path, replace(part, to_stop=False, problem=None, since=None))

    lock = lock_of(run.path)
    try:
        # Another attempt, which would have the lock, must not be what is stopped. The supervisor of
        # this one holds it for a moment after it has written that the run is stopped.
        end = time.monotonic() + _ENDING
        while not take_lock(lock):
            if run.state().live or time.monotonic() > end:
                return False
            time.sleep(0.05)
        failed = [answer for _, answer in at_once(tell, left) if answer is not None]
        state = run.state()
        if state.state == "stopped":
            still = [p.host for p in parts.read(run.path) if p.to_stop]
            run.write_state(replace(
                state, reason=link.to_stop_text(run, still) if still else None))
    finally:
        os.close(lock)
    if failed:
        raise UserError("; ".join(map(str, failed)))
    return True


def parts_of(run: Run) -> list[Part]:
    """All that hosts have of it."""
    return [*parts.read(run.path), *parts.former(run.path)]


def remove(run: Run, away: dict[str, Unreachable]) -> tuple[list[str], list[str]]:
    """Have all that hosts have of the run removed there. Returns a sentence for each on which it
    was, and for each that still has something of it. `away`: those that can't be reached, which are
    not asked again, and are added to."""
    def there(part: Part) -> tuple[bool, str]:
        name = part.host
        try:
            if name in away:
                raise away[name]
            answer = removal.there(parts.host_of(run.path, part), part)
        except UserError as err:
            if isinstance(err, Unreachable):
                away[name] = err
            return False, f"{stays(part)}: {reason(err)}"
        with suppress(OSError):  # in case that the run stays, as another host has something of it
            parts.forget(run.path, part)
        if not answer.path:
            return True, f"{name}: nothing of it was there"
        code = "" if answer.code is None else f"; its code too, {answer.code}"
        kept = "" if answer.kept is None else f"; {answer.kept}"
        return True, f"{name}: {answer.path} removed, {units.size(answer.freed)} freed{code}{kept}"

    said = [one for _, one in at_once(there, parts_of(run)) if not isinstance(one, UserError)]
    return [text for gone, text in said if gone], [text for gone, text in said if not gone]


def stays(part: Part) -> str:
    """What is said of a host that still has something of a run."""
    what = "what may have begun of it" if part.path is None else \
        part.path + (", with the checkpoints," if part.node == 0 else "")
    return f"{part.host}: {what} stays there"


def _follow(run: Run) -> None:
    """Start the process that follows the run, unless somebody else does. Raises UserError."""
    with telling(f"run {run.id} can't be reattached"):
        lock = lock_of(run.path)
        recorded = _left(run) if take_lock(lock) else None
        if recorded is None or not parts.read(run.path):
            os.close(lock)
            return
        try:
            # Whoever wants to stop it waits for the new process's id.
            run.write_state(replace(recorded, pid=None, ticks=None, boot=procs.boot_id()))
        except OSError:
            os.close(lock)
            raise
    launcher.supervise(run, lock)


def _fetch(run: Run, wait: float) -> None:
    """Where nobody waits for it, once a minute."""
    path = run.path / rest.LOCK
    if all(one.code != NOT_FETCHED for one in run.state().warnings):
        return
    with suppress(OSError):
        if wait == 0 and time.time() - path.stat().st_mtime < _AGAIN:
            return
    with telling(f"what the hosts of run {run.id} have can't be fetched"):
        lock = lock_of(run.path, rest.LOCK)
        try:
            if take_lock(lock):  # else somebody else does it
                os.utime(lock)
                log = open_inside(run.path, "supervisor.log", os.O_WRONLY | os.O_APPEND)
                logind.start(log, "gpu_engine.remote.run", str(run.path), str(lock), "rest",
                             pass_fds=(lock,))
        finally:
            os.close(lock)
    end = time.monotonic() + wait
    while time.monotonic() < end and locked(path):
        time.sleep(0.05)


def _left(run: Run) -> State | None:
    """The recorded state of a run that has not ended, else None."""
    recorded = run.recorded()
    return recorded if recorded is not None and recorded.live else None
