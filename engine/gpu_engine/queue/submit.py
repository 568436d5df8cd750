"""Putting a run into the line: what it is checked for, and what is kept of the moment."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import os
import re
import shlex
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_engine.code.submitted import Kept, keep
from gpu_engine.common import paths
from gpu_engine.common.errors import Problem, SpecError, UserError, telling
from gpu_engine.common.values import YEAR, seconds
from gpu_engine.devices.records import Inventory
from gpu_engine.interpreters import choose
from gpu_engine.launching import environment
from gpu_engine.launching.launcher import make_way, planned, supervise
from gpu_engine.launching.preflight import lasting, torchless
from gpu_engine.places import slurm, verbs
from gpu_engine.plan import without_effect
from gpu_engine.plan.build import engine_line
from gpu_engine.plan.check import check, chooses_host, counted, names_none
from gpu_engine.plan.records import RUN_DIR, LaunchPlan
from gpu_engine.queue import serve
from gpu_engine.queue.turns import When
from gpu_engine.remote.reach import hosts
from gpu_engine.remote.reach.hosts import Host
from gpu_engine.remote.reach.watcher import HostSeen
from gpu_engine.remote.run import freest, nodes
from gpu_engine.runs import disk_room, folder, job, notes, waiting
from gpu_engine.runs.create import create_run, discard, reopen_run, working_folder
from gpu_engine.runs.folder import Run
from gpu_engine.runs.sweep import Member
from gpu_engine.runs.sweep import write as write_member
from gpu_engine.runs.waiting import Entry
from gpu_engine.spec import modes
from gpu_engine.spec.host_names import parse_all
from gpu_engine.spec.modes import MEETING_PORT
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import to_toml

_CLOCK = re.compile(r"(\d{1,2}):(\d{2})")
_KEPT = 30.0
"""Seconds for which what was seen of hosts holds."""


def moment(text: str, now: float) -> float:
    """The Unix seconds that `text`, as a person gives it ("22:00", "+90m", "2026-11-23 22:00"),
    means, after `now`: an hour of the day is the next one. In the machine's time zone. Raises
    UserError if it is no time, has passed, or is over a year away."""
    found, words, today = None, text.strip(), dt.datetime.fromtimestamp(now)
    with contextlib.suppress(ValueError, OverflowError, OSError):
        if words[:1] == "+" and (span := seconds(words[1:])) is not None:
            found = now + span
        elif (clock := _CLOCK.fullmatch(words)) is not None:
            then = today.replace(hour=int(clock[1]), minute=int(clock[2]), second=0, microsecond=0)
            found = (then + dt.timedelta(days=then <= today)).timestamp()
        else:
            found = dt.datetime.fromisoformat(words).timestamp()
    why = "no time that is understood; give 22:00, +90m, or 2026-11-23 22:00" if found is None \
        else "that has passed" if found < now - 60 \
        else "that is more than a year away" if found > now + YEAR else None
    if found is None or why is not None:
        raise UserError(f"--begin {text}: {why}")
    return found


@dataclass(frozen=True, slots=True)
class Submission:
    """Runs that are submitted together share what does not change between them: the devices that
    were found, and the code."""

    inventory: Inventory
    kept: Kept
    folder: Path


def prepare(spec: RunSpec, inventory: Inventory | None = None) -> Submission:
    """Look at what `submit` needs, once for all runs like `spec`. Keeps the code. `inventory`: the
    devices, if they have been found already. Raises UserError."""
    here = Path(working_folder())
    if _names_hosts(spec):
        inventory = Inventory((), "nvml")  # `plan` looks at what each has
    elif inventory is None or chooses_host(spec):
        inventory = verbs.meant_by(spec).devices(spec)
    return Submission(inventory, keep(spec, here), here)


def plan(spec: RunSpec, inventory: Inventory, base: tuple[str, RunSpec] | None = None,
         cwd: Path | None = None, *, after: str | None = None, in_sweep: bool = False
         ) -> LaunchPlan:
    """The plan of a run that is to wait, in `cwd` (None: this process's folder): which of several
    devices it gets is not known yet, so only a run that names its devices has ranks in it. `after`:
    the run that it waits for, which may still write the files that it names. `in_sweep`: it is
    compared with the others of its sweep. Raises SpecError with everything that waiting would not
    cure."""
    if verbs.meant_by(spec) is slurm:
        return slurm.prepare(spec, base=base, cwd=cwd, in_sweep=in_sweep).plan
    spec = counted(spec)
    if problems := _not_to_wait(spec):  # what this machine's devices say of it is beside the point
        raise SpecError(problems)
    asked, elsewhere, torch_lacks = spec, chooses_host(spec), None
    if _names_hosts(spec):
        named = [hosts.find(entry.host) for entry in parse_all(spec.devices.hosts or ())]
        seen = freest.machines(spec, _seen(tuple(named), int(time.monotonic() // _KEPT)))
        _, made = nodes.spread(spec, seen, address="127.0.0.1", port=MEETING_PORT, base=base)
    else:
        spec = replace(spec, devices=replace(spec.devices, hosts=None))
        checked = check(spec, inventory)
        taken = None if elsewhere else choose.of_spec(spec, cwd)
        problems = list(checked.problems)
        if not elsewhere:  # each host is asked when it is chosen
            problems += lasting(spec, inventory, cwd, taken, files=after is None)
            torch_lacks = torchless(spec, cwd)  # of a host's Python nothing is known here
        if problems:
            raise SpecError(problems)
        made = planned(checked, taken, base=base, environ={})
    made = replace(made, spec=asked, lines=(engine_line(asked, base),), warnings=(
        *made.warnings, *without_effect.told(asked, in_sweep=in_sweep),
        *filter(None, [torch_lacks])))
    return made if asked.devices.ids else replace(made, ranks=(), processes=())


def submit(spec: RunSpec, when: When, prepared: Submission | None = None, *,
           base: tuple[str, RunSpec] | None = None, member: Member | None = None,
           again: Run | None = None, begin: bool = True, tags: Sequence[str] = ()) -> Run:
    """Put a run into the line and return it at once. `member`: its place in a sweep. `tags`: what
    it is tagged with. `again`: it is
    this run, which has ended, and waits for its next attempt, in which it goes on from its newest
    checkpoint that loads, with the code as it is then. `begin`: start its supervisor; if not, call
    `serve.ensure`. Raises SpecError with everything that does not fit, UserError where the run
    can't be kept or is live."""
    if verbs.meant_by(spec) is slurm:
        return _submit_to_slurm(spec, when, base, member, again, tags,
                                prepared.kept if prepared is not None else None)
    if when.after is not None and (
            never := serve.early(when, paths.runs_folder())) is not None and never[1]:
        raise UserError(f"--after {when.after}: {never[0]}")
    if again is not None:
        make_way(again)
    prepared = prepared or prepare(spec)
    made = plan(spec, prepared.inventory, base, prepared.folder, after=when.after,
                in_sweep=member is not None)
    disk_room.require(paths.runs_folder())
    queue = paths.queue_folder()
    with telling(f"{queue}: can't be written"):
        folder.require_folder(queue)
        entry = entry_of(spec, when, prepared, queue, member.sweep if member is not None else None)
    if again is None:
        run, lock = create_run(spec.name, to_toml(spec), made)
    else:
        run, before = again, again.plan()
        lock = reopen_run(run, to_toml(spec),
                          replace(made, origin=before.origin if before is not None else None))
    try:
        with telling(f"{run.path}: can't be written"):
            if member is not None and again is None:
                write_member(run.path, member)
            notes.tag(run.path, tags)
            waiting.enter(run.path)
            waiting.write(run.path, entry)
        if begin:
            supervise(run, os.dup(lock))
    except BaseException:
        if again is None:
            with contextlib.suppress(OSError):
                waiting.leave(run.path)
            discard(run)
        raise
    finally:
        os.close(lock)
    if begin:
        environment.note(run, made, prepared.inventory, prepared.kept)
    return run


def _submit_to_slurm(spec: RunSpec, when: When, base: tuple[str, RunSpec] | None,
                     member: Member | None, again: Run | None, tags: Sequence[str],
                     kept: Kept | None) -> Run:
    """`submit` for a run whose line is Slurm's. Raises as that."""
    if when.priority:
        raise UserError(f"--priority {when.priority}: Slurm orders its own queue; -o nice=100 and "
                        "-o qos=… are its words for it")
    options = []
    if when.begin is not None:
        begin = dt.datetime.fromtimestamp(when.begin).isoformat(timespec="seconds")
        options.append(f"begin={begin}")
    if when.after is not None:
        first = job.read(Run(paths.runs_folder() / when.after).path)
        if first is None:
            raise UserError(f"--after {when.after}: Slurm waits for jobs of its own only, and that "
                            "run is none; put both on Slurm, or none")
        options.append(f"dependency=afterok:{first.id}")
    if again is None:
        return slurm.start(slurm.prepare(spec, base=base, in_sweep=member is not None),
                           tags=tags, member=member, options=options, kept=kept)
    make_way(again)
    slurm.again(again, spec)
    return again


def _not_to_wait(spec: RunSpec) -> list[Problem]:
    if spec.run.give_way and spec.devices.hosts is not None:
        return without_effect.no_room(spec)
    command = spec.task.command
    if spec.run.give_way and command and not spec.run.give_way_again \
            and not any(RUN_DIR in word for word in command):
        return [Problem("run.give_way", True,
                        f"{shlex.join(command)[:60]} begins anew each time it makes room, unless "
                        f"it goes on from a file of its own: write {RUN_DIR} in the command, or "
                        "say --give-way-again")]
    if names_none(spec):
        return [Problem("devices.pick", None,
                        f"{modes.get(spec.parallel.mode).label} takes all free devices, and "
                        "their number is not known yet: say how many to wait for (-n 2)")]
    whole = [e.host for e in parse_all(spec.devices.hosts or ()) if not e.ids] \
        if _names_hosts(spec) else []
    if whole:
        return [Problem("devices.hosts", spec.devices.hosts,
                        f"say which devices of {whole[0]} to wait for ({whole[0]}:0,1), or how "
                        f"many (-n 2)")]
    if spec.devices.hosts is None and modes.get(spec.parallel.mode).several_nodes:
        return [Problem("parallel.mode", spec.parallel.mode,
                        "the other nodes would wait for this one in vain: name all of them in "
                        "devices.hosts, or start it at once")]
    return []


def _names_hosts(spec: RunSpec) -> bool:
    """Whether it says on which hosts it is to run."""
    return spec.devices.hosts is not None and not chooses_host(spec)


@functools.lru_cache(maxsize=64)
def _seen(named: tuple[Host, ...], _: int) -> tuple[HostSeen, ...]:
    """These hosts as they are now: a thousand members of a sweep may name the same."""
    return freest.look(named)


def entry_of(spec: RunSpec, when: When, prepared: Submission, queue: Path, sweep: str | None
           ) -> Entry:
    """Raises OSError."""
    devices, inventory, cpu = spec.devices, prepared.inventory, None
    if _names_hosts(spec):
        ids = [i for entry in parse_all(devices.hosts or ()) for i in entry.ids]
        cpu = all(i.startswith("cpu:") for i in ids) if ids else None
    elif not freest.unknown(inventory):
        cpu = any(d.is_cpu for d in inventory.devices)
    named = [inventory.find(i) for i in devices.ids or ()]
    some = any(d.visible_index is not None for d in inventory.devices) \
        and inventory.inherited_visible is not None
    return Entry(
        submitted=time.time(), number=waiting.next_number(queue), host=socket.gethostname(),
        priority=when.priority,
        ids=tuple(d.uuid or d.id for d in named if d is not None),
        count=0 if devices.ids or _names_hosts(spec) else devices.pick or 1,
        within=tuple(d.uuid or d.id for d in inventory.devices) if some else (),
        free=None if devices.free_gib is None else int(devices.free_gib * (1 << 30)),
        share=devices.share, cpu=cpu, hosts=tuple(devices.hosts or ()),
        give_way=spec.run.give_way,
        after=when.after, begin=when.begin, sweep=sweep,
        code=prepared.kept.name, root=prepared.kept.root, folder=str(prepared.folder))
