"""What a person and their runs have left in the folders: presets, settings, runs; and hosts."""

from __future__ import annotations

import os

from gpu_engine.common.errors import UserError
from gpu_engine.doctor.records import Finding, note, ok, problem

_MOST = 5
"""Lines about runs of one kind."""
_MOST_LOST = 20
"""Lost runs that are searched for processes: each takes a look at all processes."""


def files() -> list[Finding]:
    """Whether presets, hosts.toml, settings.toml and notify.toml can be read."""
    from gpu_engine.notify import config as notify
    from gpu_engine.remote.reach import file as hosts
    from gpu_engine.settings import file as settings
    from gpu_engine.spec import presets

    every = list(presets.all_presets())
    out = [problem(p[1], f"$EDITOR {p[0]}") for p in every if isinstance(p, tuple)]
    good = [f"{len(every) - len(out)} presets"]
    for path, read in ((hosts.path(), lambda: f"{len(hosts.read())} hosts in hosts.toml"),
                       (settings.path(), lambda: settings.read() and "settings.toml"),
                       (notify.path(), lambda: f"{len(notify.read())} entries in notify.toml")):
        if os.path.lexists(path):
            try:
                good.append(read())
            except UserError as err:
                out.append(problem(str(err)))
    return [*out, ok(f"can be read: {', '.join(good)}")]


def runs() -> list[Finding]:
    """The runs folder and the queue."""
    from gpu_engine.queue import serve
    from gpu_engine.runs import folder, leftovers

    states = [(run, run.state()) for run in folder.all_runs()]
    if not states:
        return [ok("no runs yet")]
    waits = sum(s.state == "queued" for _, s in states)
    live = sum(s.live for _, s in states) - waits
    out = [ok(f"{len(states):,} runs, {live:,} live, {waits:,} waiting")]
    lost = [run for run, state in states if state.state == "lost"]
    left = [run for run in lost[:_MOST_LOST] if leftovers.processes(run.path)]
    out += [problem(f"run {run.id} is lost: its supervisor died, and processes of it still run",
                    f"gpu-engine stop {run.id}") for run in left]
    gone = [run for run in lost if run not in left]
    out += [note(f"run {run.id} is lost: its supervisor died", f"gpu-engine resume {run.id}")
            for run in gone[:_MOST]]
    if len(gone) > _MOST:
        out.append(note(f"and {len(gone) - _MOST} more are lost",
                        "gpu-engine runs --filter state:lost"))
    unreadable = [(run, s.reason) for run, s in states if s.state == "unreadable"]
    out += [note(f"run {run.id} can't be read: {why or ''}") for run, why in unreadable[:_MOST]]
    if waits and (alone := serve.alone()):
        out.append(problem(f"{len(alone)} waiting run{'s have' * (len(alone) > 1) or ' has'} no "
                           "supervisor, as after a reboot", "gpu-engine queue"))
    return out


def hosts() -> list[Finding]:
    """Each host of hosts.toml, and what keeps it from being used."""
    from gpu_engine.remote.reach import checkup, file

    found = checkup.check(file.known().values())
    if not found:
        return [note("no hosts in hosts.toml", "gpu-engine hosts add NAME --ssh user@host")]
    return [ok(f"{one.host.name} can be used") if not one.problems else
            problem(f"{one.host.name}: {'; '.join(one.problems)}",
                    f"gpu-engine hosts check {one.host.name}") for one in found]
