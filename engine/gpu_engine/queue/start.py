"""`python -m gpu_engine.queue.start RUN_FOLDER DEVICE…`: start a run whose turn has come.

A process of its own, in the environment and with the umask that the run was submitted in, so that a
start that hangs or fails holds up no other run.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from gpu_engine.code import submitted
from gpu_engine.common import procs
from gpu_engine.common.errors import SpecError, UserError, telling
from gpu_engine.common.files import json_inside, take_lock, write_inside, write_json_inside
from gpu_engine.launching import environment, notifier
from gpu_engine.launching.launcher import Prepared, prepare, supervise
from gpu_engine.runs import attempts, disk_room, waiting
from gpu_engine.runs.create import lock_of
from gpu_engine.runs.folder import EXIT_CODES, Cause, Run, State
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.write import to_toml

NOT_YET = 75
"""The exit status if the run has to wait on; its output says what for. As EX_TEMPFAIL in
sysexits.h."""
_PASSING = ("devices.", "parallel.master_port")
"""Keys whose problems may pass: somebody else has the device, or the port."""


def main(argv: list[str]) -> int:
    """Start the run in `argv[1]` on the devices that follow. Returns 0, also if the run waits no
    longer, or NOT_YET."""
    run, devices = Run(Path(argv[1])), argv[2:]
    lock = lock_of(run.path)
    if not take_lock(lock):  # a person is just stopping it
        os.close(lock)
        return 0
    recorded, entry = State.from_dict(json_inside(run.path, "state.json")), waiting.read(run.path)
    if recorded is None or entry is None or waiting.judge(recorded, run.path, held=False) is None:
        os.close(lock)
        return 0
    try:
        ready = _ready(run, entry, devices)
    except (UserError, _NotYet) as err:
        not_yet = isinstance(err, _NotYet) or (isinstance(err, SpecError) and all(
            p.key.startswith(_PASSING) for p in err.problems))
        if not_yet:
            sys.stdout.write(f"as it could not start: {err}" if isinstance(err, SpecError)
                             else str(err))
        else:
            _end(run, recorded, str(err))
        os.close(lock)
        return NOT_YET if not_yet else 0
    try:
        _write(run, recorded, ready)
    except OSError as err:
        os.close(lock)
        sys.stdout.write(f"as {run.path} can't be written: {err.strerror}")
        return NOT_YET
    supervise(run, lock)
    environment.note(run, ready.plan, ready.inventory)
    return 0


class _NotYet(Exception):
    """The run has to wait on; says what for."""


def _ready(run: Run, entry: waiting.Entry, devices: list[str]) -> Prepared:
    """Check and plan the run for these devices, in the folder of its code. Raises UserError,
    SpecError, _NotYet."""
    try:
        disk_room.require(run.path)
    except UserError as err:
        raise _NotYet(f"for room on the disk: {err}") from None
    spec = from_dict(attempts.read_spec(run))
    spec = replace(spec, devices=replace(spec.devices, ids=devices, pick=None, free_gib=None))
    folder, spec = submitted.place_of(run, spec, entry)
    with telling(f"{folder}: can't be entered"):
        os.chdir(folder)
    prepared = prepare(spec, cwd=folder, in_turn=True, near=Path(entry.folder or folder))
    before = run.plan()
    return replace(prepared, plan=replace(
        prepared.plan, id=run.id, cwd=str(folder),
        origin=before.origin if before is not None else None))


def _write(run: Run, recorded: State, ready: Prepared) -> None:
    """Raises OSError."""
    write_inside(run.path, "spec.toml", to_toml(ready.spec))
    write_json_inside(run.path, "plan.json", ready.plan.to_dict())
    run.write_state(replace(recorded, boot=procs.boot_id()))


def _end(run: Run, recorded: State, why: str) -> None:
    """Its spec does not fit any more: trying again would not help. Whoever is told of runs is told
    of that. Raises OSError."""
    first = why.splitlines()[0] if why else "it could not be started"
    run.write_state(replace(recorded, state="failed", ended=time.time(),
                            exit_code=EXIT_CODES["failed"],
                            reason=f"it could not start when its turn came: {first}",
                            cause=Cause(why)))
    waiting.leave(run.path)
    notifier.start(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
