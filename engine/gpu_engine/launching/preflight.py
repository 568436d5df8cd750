"""The checks of a spec that need this machine: does the task exist, is the port free.

They change nothing. `plan.check`, which is pure, checks the values themselves.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import shlex
import socket
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_engine.common import paths, ports
from gpu_engine.common.errors import Problem, UserError, meant
from gpu_engine.common.files import expanded, open_file
from gpu_engine.common.values import amiss, convert
from gpu_engine.devices.records import Device, Inventory, Snapshot
from gpu_engine.launching import torch_build
from gpu_engine.plan import own_command
from gpu_engine.plan.batch import port_of
from gpu_engine.spec import catalog, modes
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.typed_command import ASSIGNMENT

if TYPE_CHECKING:
    from gpu_engine.devices.leases import Holder
    from gpu_engine.interpreters.choose import Chosen

_CURE = "take another, have it wait (--queue, in the panel Q), or set devices.share = true"
_KEPT = 30.0
"""Seconds for which a name server's answer is good."""
_PATIENCE = 1.0
"""Seconds that a process gets to leave a GPU: an earlier run may just be ending."""


def judge(spec: RunSpec, inventory: Inventory, cwd: Path | None, interpreter: Chosen | None,
          *, free: bool, only_plan: bool = False, holder: str | None = None
          ) -> tuple[list[Problem], list[str]]:
    """All problems of a spec that only this machine can show, and what it is warned of. `free`:
    whether its devices are read, to see that they are free. `only_plan`: what passes by waiting is
    no problem but a warning. `holder`: the run itself, if it holds its devices already. The others:
    as for `lasting`."""
    problems = lasting(spec, inventory, cwd, interpreter)
    passing, doubts = _passing(spec, inventory, holder), list[str]()
    if not problems and not passing:
        room = _make_room(spec, inventory) if holder is None else {}
        if free:
            problems, passing, doubts = _occupied(spec, inventory, room)
        doubts += [f"{label} is held by {who}, which makes room first"
                   for label, who in room.items()]
    if only_plan:
        doubts += [f"it can't start now: {p}" for p in passing]
    else:
        problems += passing
    if problems:
        return problems, []
    warnings = (*doubts, interpreter.doubt if interpreter is not None else None,
                torch_build.doubt(spec, inventory, cwd), torchless(spec, cwd))
    return problems, [one for one in warnings if one]


def lasting(spec: RunSpec, inventory: Inventory, cwd: Path | None = None,
            interpreter: Chosen | None = None, *, files: bool = True) -> list[Problem]:
    """The problems of a spec that only this machine can show, and that do not pass by waiting, as
    where somebody else lets go of a device or a port; `plan.check` finds the others.

    cwd: the folder from which a task's relative path starts.
    interpreter: what a task's ranks run in; None: they don't run here, or it is a command.
    files: whether the files that the task's parameters name must be there already.
    """
    found: list[Problem | None]
    if interpreter is None:
        found = [_python(spec, cwd)]
    elif interpreter.problem is None and interpreter.seen is not None:
        found = [torch_build.problem(spec, inventory, interpreter.seen)]
    else:
        found = [interpreter.problem]
    if 0 < (port := _port(spec)) < 1024 and os.geteuid() != 0:
        found.append(Problem("parallel.master_port", port,
                             f"ports below 1024 need root; take {modes.MEETING_PORT}"))
    return [*_task(spec, cwd, interpreter, files), *_command(spec, cwd), *filter(None, found),
            *_meeting(spec)]


def torchless(spec: RunSpec, cwd: Path | None) -> str | None:
    """That a command runs in a Python without torch, where another is meant."""
    from gpu_engine.interpreters import choose

    command = spec.task.command
    python = torch_build.interpreter_of(command, cwd) if command else None
    return choose.without_torch(command, python, paths.folder(cwd)) \
        if command and python else None


def _passing(spec: RunSpec, inventory: Inventory, holder: str | None) -> list[Problem]:
    """The port that something else uses, and GPUs that a run other than `holder` holds. CPU slots
    are shared by everything anyway."""
    port, gpus = _port(spec), _gpus(spec, inventory)
    taken = ports.port_taken(port) if port else None
    out = [Problem("parallel.master_port", port, taken)] if taken else []
    if not gpus or spec.devices.share:
        return out
    from gpu_engine.devices import leases as lease

    held = lease.holders(paths.leases_folder())
    return out + [
        Problem("devices.ids", d.id, f"{d.label} is held by {held[lease.key(d)]}; {_CURE}",
                "--queue")
        for d in gpus if (by := held.get(lease.key(d))) is not None and by.run != holder
        and not by.makes_room]


def _make_room(spec: RunSpec, inventory: Inventory) -> dict[str, Holder]:
    """The labels of the named GPUs whose runs make room for this one, and those runs."""
    from gpu_engine.devices import leases as lease

    held = {} if spec.devices.share else lease.holders(paths.leases_folder())
    return {d.label: held[lease.key(d)] for d in _gpus(spec, inventory)
            if lease.key(d) in held and held[lease.key(d)].makes_room}


def _occupied(spec: RunSpec, inventory: Inventory, but: Collection[str]
              ) -> tuple[list[Problem], list[Problem], list[str]]:
    """The problems of the named GPUs that can't be used, those of GPUs that others compute on, and
    the doubts about the rest. `but`: labels of those that are not looked at. With devices.share
    only a lost GPU is a problem. They are read until nothing is in the way, `_PATIENCE` seconds at
    most."""
    gpus, share = [d for d in _gpus(spec, inventory) if d.label not in but], spec.devices.share
    if not gpus:
        return [], [], []
    from gpu_engine.devices import sampler

    end = time.monotonic() + _PATIENCE
    while True:
        found = _judged(gpus, sampler.take_several(replace(inventory, devices=tuple(gpus)),
                                                   readings=0)[-1], share)
        if not (found[0] or found[1]) or time.monotonic() >= end:
            return found
        time.sleep(0.2)


def _judged(gpus: Sequence[Device], shot: Snapshot, share: bool
            ) -> tuple[list[Problem], list[Problem], list[str]]:
    from gpu_engine.devices import availability as free

    problems, busy, doubts = [], [], []
    for device in gpus:
        sample = shot.of(device.id)
        if sample is None or (share and not sample.lost):
            continue
        why = free.in_the_way(sample, now=shot.taken)
        if sample.problem:
            problems.append(Problem("devices.ids", device.id,
                                    f"{device.label} can't be used: {sample.problem}"))
        elif why:
            busy.append(Problem("devices.ids", device.id,
                                f"{device.label} is not free: {why}; {_CURE}", "--queue"))
        doubts += [f"{device.label}: {doubt}" for doubt in free.doubts(sample)]
    return problems, busy, doubts


def unusable(spec: RunSpec, inventory: Inventory, shot: Snapshot) -> list[Problem]:
    """The problems of the named GPUs that don't work at the moment, held by a run or not."""
    return _judged(_gpus(spec, inventory), shot, share=False)[0]


def _gpus(spec: RunSpec, inventory: Inventory) -> list[Device]:
    """The GPUs and slices that are named, each once. CPU slots are shared by everything."""
    found = [inventory.find(name) for name in spec.devices.ids or ()]
    return [d for d in dict.fromkeys(found) if d is not None and not d.is_cpu]


def _task(spec: RunSpec, cwd: Path | None, interpreter: Chosen | None, files: bool
          ) -> list[Problem]:
    use = spec.task.use
    if use is None:
        return []
    try:
        info = catalog.describe(use, cwd=cwd)
    except UserError as err:
        from gpu_engine.interpreters import inspection

        elsewhere = spec.run.python if interpreter is None else \
            interpreter.python is not None and not inspection.ours(interpreter.python)
        if elsewhere and not use.partition(":")[0].endswith(".py"):
            return []  # another environment may well have that module
        return [Problem("task.use", use, str(err))]
    out = []
    names = [f.name for f in info.fields]
    for name, value in spec.task.params.items():
        if name not in names and info.whole:
            out.append(Problem(f"task.params.{name}", value, f"{info.name} has no such parameter; "
                               + meant(name, names, "it has")))
        field = info.field(name)
        if field is not None:
            try:
                convert(value, field.kind)
            except ValueError as err:
                out.append(Problem(f"task.params.{name}", value, str(err)))
    out += [Problem(f"task.params.{f.name}", None, f"{info.name} needs it"
                    + (f": {f.help}" if f.help else ""))
            for f in info.fields if f.required and f.name not in spec.task.params]
    if not out:
        given = {f.name: spec.task.params.get(f.name, f.default) for f in info.fields}
        wrong = amiss(given, {f.name: f.kind for f in info.fields},
                      cwd or Path.cwd() if files else None)
        out = [Problem(f"task.params.{name}", given[name], why) for name, why in wrong.items()]
    return out


def _command(spec: RunSpec, cwd: Path | None) -> list[Problem]:
    """The problems of a person's own command that show before it runs."""
    command = spec.task.command
    if not command:
        return []
    program, here = command[0], paths.folder(cwd)
    if paths.program(program, here) is None:
        return [Problem("task.command", program, _no_program(command, here))]
    if "/" in program and _is_bare_script(here / program):
        return [Problem("task.command", program, "its first line does not begin with #!, which "
                        f"names what runs it: write {_interpreter(program)} {program}")]
    script = own_command.script(command)
    if script is not None and not os.path.exists(here / script):  # noqa: PTH110 - as below
        return [Problem("task.command", script, f"there is no file {here / script}")]
    return []


def _no_program(command: Sequence[str], here: Path) -> str:
    """Why the first word of a command can't be run, and what would do."""
    program = command[0]
    rest = shlex.join(command)
    if ASSIGNMENT.fullmatch(program):
        return f"is a variable and no program: write env {rest}"
    if program.startswith("~"):
        return f"only a shell reads ~ as the home folder: write {expanded(program)}"
    there = os.path.isfile(here / program)  # noqa: PTH113 - Path's raises for a name too long
    if "/" in program and there:
        return f"is not executable: write {_interpreter(program)} {rest}, or chmod +x {program}"
    if "/" in program:
        return f"there is no file {here / program}"
    if there:
        return f"a file of this folder is run as {_interpreter(program)} {rest}"
    if len(program.split()) > 1:
        return "there is no program of this name: write its words without quotes around them, " \
               f"or sh -c {shlex.quote(program)}"
    from gpu_engine.interpreters import choose

    there = choose.instead(command, here)
    return "there is no such program on the PATH" + (f": type {there}" if there else "")


def _interpreter(script: str) -> str:
    return "sh" if script.endswith(".sh") else "python"


def _is_bare_script(path: Path) -> bool:
    """Whether this is a script that does not say what runs it."""
    try:
        with open_file(path) as file:
            return path.suffix in (".py", ".sh") and file.read(2) != b"#!"
    except OSError:
        return False


def _python(spec: RunSpec, cwd: Path | None) -> Problem | None:
    python = spec.run.python
    if python is None or paths.program(python, cwd):
        return None
    there = os.path.exists(paths.folder(cwd) / python)  # noqa: PTH110 - Path's raises for a name that is too long
    what = "can't be executed" if there else "there is no such interpreter"
    return Problem("run.python", python, what)


def _port(spec: RunSpec) -> int:
    """The port of this machine at which the ranks meet; 0: any that is free, or one elsewhere."""
    mode = modes.get(spec.parallel.mode)
    ours = mode.process_a_device and mode.node_rank(spec.parallel.node_rank) == 0
    return port_of(spec) if ours else 0


def _meeting(spec: RunSpec) -> list[Problem]:
    """The problems of a master address that this machine can't resolve, or only to itself."""
    key, host = "parallel.master_addr", spec.parallel.master_addr
    if not modes.get(spec.parallel.mode).several_nodes or host in ("", "localhost"):
        return []
    try:
        ipaddress.ip_address(host.strip("[]"))
        return []
    except ValueError:
        pass
    found = _addresses(host, int(time.monotonic() // _KEPT))  # a form asks at every key press
    if not found:
        return [Problem(key, host, "this machine knows no such host; give node 0's numeric "
                                   "address, for example 10.0.0.1")]
    if not all(map(is_loopback, found)):
        return []
    return [Problem(key, host, f"is {found[0]} to this machine, which means the machine itself "
                               "(see /etc/hosts): the others can't meet there; give node 0's "
                               "numeric address")]


@functools.lru_cache(maxsize=64)
def _addresses(host: str, _: int) -> tuple[str, ...]:
    """The numeric addresses that `host` means to this machine; () where it means none."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # a label of more than 63 characters is the latter
        return ()
    return tuple(dict.fromkeys(str(info[4][0]) for info in infos))


def is_loopback(address: str) -> bool:
    """Whether it is a machine's own address to itself."""
    return address.startswith("127.") or address == "::1"

