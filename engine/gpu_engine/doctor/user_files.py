"""What a person and their runs have in folders: the folders themselves, presets, settings, runs."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from gpu_engine.common import units
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import locked, reason
from gpu_engine.common.paths import open_to_others
from gpu_engine.devices import leases
from gpu_engine.doctor.machine import Finding, note, ok, problem
from gpu_engine.runs import disk_room

_ROOM = "gpu-engine runs prune --keep 20"
_OWN = "export GPU_PANEL_HOME=/a/folder/of/your/own"
_MOST = 5
"""Lines about runs of one kind."""
_MOST_LOST = 20
"""Lost runs that are searched for processes: each takes a look at all processes."""


def files() -> list[Finding]:
    """Whether presets, hosts.toml, settings.toml and notify.toml can be read."""
    from gpu_engine.notify import config as notify
    from gpu_engine.remote.reach import hosts
    from gpu_engine.settings import file as settings
    from gpu_engine.spec import presets

    every = list(presets.all_presets())
    out = [problem(p[1], f"$EDITOR {p[0]}") for p in every if isinstance(p, tuple)]
    good = [units.counted(len(every) - len(out), "preset")]
    for path, read in ((hosts.path(), lambda: f"hosts.toml ({len(hosts.read())})"),
                       (settings.path(), lambda: settings.read() and "settings.toml"),
                       (notify.path(), lambda: f"notify.toml ({len(notify.read())})")):
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
    out = [ok(f"{units.counted(len(states), 'run')}, {live:,} live, {waits:,} waiting")]
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


def folder(path: Path, *, least: int = 0, scarce: int = 0) -> list[Finding]:
    """The folder of runs and state, or of settings; of one that is not there, its nearest parent.
    What is tried there is removed again.
    `least`, `scarce`: bytes below which no run starts, and below which it is worth a note."""
    at = path
    while not at.is_dir() and at.parent != at and not os.path.lexists(at):
        at = at.parent
    there = at == path
    out: list[Finding] = []
    try:
        info = at.stat()
        if there:
            out += _tried(path)
        elif not os.access(at, os.W_OK | os.X_OK):
            raise PermissionError(13, f"{at} may not be written")
        free = disk_room.of(at).free
    except OSError as err:
        return [problem(f"{path}: can't be written: {reason(err)}", f"ls -ld {path}; or {_OWN}")]
    if there and info.st_uid not in (os.getuid(), 0):
        out.append(problem(f"{path} belongs to another user", _OWN))
    # What is in a folder that others can't cross is closed to them, whatever its own mode.
    inside = [entry for entry in path.iterdir() if entry.is_dir()] \
        if there and info.st_mode & 0o011 else []
    out += [problem(f"{at} can be written by others, who could change what your runs execute",
                    f"chmod go-w {at}") for at in (path, *inside) if there and open_to_others(at)]
    said = f"{path}" + (f", {units.size(free)} free" if free is not None else "")
    if free is not None and free < least:
        out.append(problem(f"{said}: no run starts with less than {units.size(least)}",
                           _ROOM))
    elif free is not None and free < scarce:
        out.append(note(f"{said}: checkpoints may fill it", _ROOM))
    else:
        out.append(ok(said + ("" if there else "; it will be made")))
    return out


def _tried(path: Path) -> list[Finding]:
    """Whether locks hold in this folder. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=path, prefix=".doctor-", suffix=".tmp") as file:
        holds = _lock_holds(Path(file.name), file.fileno())
        file.write(b"0")
        file.flush()
    return [problem(f"{path}: locks don't work on its file system, so that gpu-panel can't tell "
                    "which runs live, and two runs may take one GPU",
                    "export GPU_PANEL_HOME=/a/folder/on/a/local/disk")] if holds is False else []


def _lock_holds(path: Path, fd: int) -> bool | None:
    """Whether a lock that one holds keeps another out; None: it could not be tried."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return locked(path)


def shared() -> list[Finding]:
    """The folder that the users of one machine share."""
    path, why_not = leases.where(), leases.why_not()
    if path is None:
        return [note("GPU_PANEL_SHARED is empty: runs of other users of this machine are not seen")]
    if why_not is not None:
        return [problem(why_not, leases.set_up(path))]
    if not os.path.lexists(path):
        return [note(f"no {path}: runs of other users of this machine are not seen. If several "
                     "people use it, root sets it up once", leases.set_up(path))]
    return [ok(f"{path}, by which users of this machine see each other's runs")]
