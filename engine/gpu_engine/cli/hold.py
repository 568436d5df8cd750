"""Devices without a run: gpu-engine hold and release.

A hold is a lease like a run's. The process that has it ends when the time is up by the machine's
own clock since boot, which no change of the date moves, or when the lease's file is gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from gpu_engine.cli.output import echo, said_once
from gpu_engine.common import paths
from gpu_engine.common.clean import clean, shown_words
from gpu_engine.common.errors import UserError

if TYPE_CHECKING:
    from gpu_engine.devices.leases import Leases
    from gpu_engine.devices.records import Device, Inventory
    from gpu_engine.spec.host_names import HostDevices

_LOOK = 1.0
"""Seconds between two looks at the lease's file."""
_BRIEF = 0.05
"""Seconds between two looks at the command."""
_PATIENCE = 10.0
"""Seconds between SIGTERM and SIGKILL for a command whose time is up."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "count", type=click.IntRange(1), help="So many of the freest devices (1).")
@click.option("--devices", "ids", metavar="IDS", help="These devices: 0,1; of a host gpu1:0,1, or "
              "gpu1 for any.")
@click.option("--for", "span", metavar="TIME", help="For so long: 90m, 4h, 2d.")
@click.option("--why", default="", help="What for: others see it beside the device.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def hold(count: int | None, ids: str | None, span: str | None, why: str, command: tuple[str, ...]
         ) -> None:
    """Hold devices without a run, so that no run of gpu-panel takes them: for a time, or while
    COMMAND runs, which sees these devices only. `gpu-engine release` ends it, and so does a reboot.

    \b
    gpu-engine hold -n 1 --for 4h --why "reading about attention"
    gpu-engine hold --devices 0 -- jupyter lab
    gpu-engine hold --devices gpu1:0 --for 2h
    """
    from gpu_engine.common import values
    from gpu_engine.devices import leases, use_log
    from gpu_engine.devices.backends import registry

    there = _elsewhere(ids)  # Slurm is refused first: no option would do
    seconds = values.seconds(span) if span is not None else None
    if span is not None and not 0 < (seconds or 0) <= values.YEAR:
        raise UserError(f"--for {span}: no length of time within a year; give 90m, 4h or 2d")
    if command and command[0].startswith("-"):
        raise UserError(f"{command[0]}: hold has no such option. Devices of another machine: "
                        "--devices gpu1:0; on Slurm: salloc --gpus=1 --time=04:00:00")
    if seconds is None and not command:
        raise UserError("say for how long (--for 4h), or give the command that needs the devices")
    if there is not None:
        if command:
            raise UserError(f"{there.host}: a command is started where its devices are: ssh -t "
                            f"{there.host} gpu-engine hold …")
        named = ["--devices", ",".join(there.ids)] if there.ids else []
        many = ["-n", str(count)] if count else []
        _typed(there, "hold", *named, *many, "--for", span or "", "--why", why,
               until=" held until ")
        return
    inventory, devices = _chosen(count, ids)
    hold = leases.Hold(leases.new_name(), why or clean(" ".join(shown_words(command)), 60),
                       time.time() + seconds if seconds else None)
    lease = leases.acquire(paths.leases_folder(), devices, None, hold=hold, waits=said_once())
    if ids is not None:
        with lease.pop_all() as kept:  # let go again where a device is refused
            _look(inventory, devices)
            lease = kept.pop_all()
    use_log.hold_began(hold, devices)
    lease.callback(use_log.hold_ended, hold.name)
    names = ", ".join(d.label for d in devices)
    end = _now() + seconds if seconds else None
    file = paths.leases_folder() / hold.name
    if command:
        echo(f"{names} held while this runs", err=True)
        with lease:
            status = _guarded()
            if status is None:
                status = _run(command, registry.environment(inventory.source, devices), end)
            sys.exit(status)
    _tell_of_logout()
    echo(f"{names} held until {time.strftime('%Y-%m-%d %H:%M', time.localtime(hold.until))}; "
         f"gpu-engine release ends it")
    sys.stdout.flush()
    if os.fork() == 0:
        _keep(lease, file, end)
    os._exit(0)  # the child has the lease now: nothing is to be let go here


@click.command()
@click.argument("devices", nargs=-1)
def release(devices: tuple[str, ...]) -> None:
    """End your hold of these DEVICES (as in "GPU 0", or 0; of a host gpu1:0, or gpu1); without any,
    the only one there is. A command that was started with it goes on."""
    from gpu_engine.devices import leases, use_log

    elsewhere = {name: there for name in devices if (there := _elsewhere(name)) is not None}
    for there in elsewhere.values():
        _typed(there, "release", *there.ids, until=" released")
    devices = tuple(name for name in devices if name not in elsewhere)
    if elsewhere and not devices:
        return
    folder = paths.leases_folder()
    holds = leases.holds(folder)
    wanted = {name.rpartition(" ")[2].rpartition(":")[2] for name in devices}
    found = [(file, labels) for file, labels in holds
             if wanted & {label.rpartition(" ")[2] for label in labels}] if wanted else holds
    if not found or (not wanted and len(found) > 1):
        there = "; ".join(", ".join(labels) for _, labels in holds) or "nothing"
        raise UserError(f"you hold {there}" + (": say which device" if not wanted and holds else
                                               ""))
    for file, labels in found:
        leases.let_go(folder, file.path.name)
        use_log.hold_ended(file.path.name)
        echo(f"{', '.join(map(clean, labels))} released")


def _elsewhere(ids: str | None) -> HostDevices | None:
    """The host and its devices, if that is what was typed. Raises UserError for Slurm,
    and where there is another host."""
    from gpu_engine.spec.host_names import DEVICE, LOCAL, SLURM, BadName, HostDevices

    with suppress(BadName):
        there = HostDevices.parse(ids or LOCAL)
        if there.host == SLURM:
            raise UserError("Slurm holds devices by its own rules: salloc --gpus=1 "
                            "--time=04:00:00")
        if there.host != LOCAL and not DEVICE.fullmatch((ids or "").partition(",")[0]):
            if other := next((i for i in there.ids if not DEVICE.fullmatch(i)), None):
                raise UserError(f"{other}: devices of one machine are held at a time; hold {other} "
                                "by a command of its own")
            return there
    return None


def _typed(there: HostDevices, *words: str, until: str) -> None:
    """Have that typed on the host, and print what it says. Raises UserError."""
    from gpu_engine.remote.reach import call, hosts

    with call.typed(hosts.find(there.host), words, until) as said:
        line = next(line for line in said.splitlines() if until in line)
        echo(f"{there.host}: {clean(line).partition(';')[0]}")


def _chosen(count: int | None, ids: str | None) -> tuple[Inventory, list[Device]]:
    """The devices that are asked for. Raises UserError."""
    from gpu_engine.devices.discover import discover
    from gpu_engine.launching.launcher import pick
    from gpu_engine.spec.schema import DevicesSpec, RunSpec

    if count is not None and ids is not None:
        raise UserError("-n takes the freest devices, --devices those that it names: give one of "
                        "them")
    inventory = discover()
    names = [name.strip() for name in ids.split(",")] if ids is not None else None
    spec = RunSpec(devices=DevicesSpec(ids=names) if names else DevicesSpec(pick=count or 1))
    if spec.devices.pick and spec.devices.pick > len(inventory.devices):
        raise UserError(f"devices here: {len(inventory.devices)}")
    devices = [(name, inventory.find(name)) for name in pick(spec, inventory).devices.ids or ()]
    if missing := [name for name, device in devices if device is None]:
        there = ", ".join(d.id for d in inventory.devices)
        raise UserError(f"there is no device {', '.join(missing)}; there are {there}")
    return inventory, [device for _, device in devices if device is not None]


def _look(inventory: Inventory, devices: Sequence[Device]) -> None:
    """Refuse devices that can't be used, and say who is on the others: a hold keeps runs away, and
    no program that is there already. Raises UserError."""
    from gpu_engine.devices import availability, sampler

    shot = sampler.take_several(replace(inventory, devices=tuple(devices)), readings=0)[-1]
    for sample in shot.samples:
        label, why = sample.device.label, availability.in_the_way(sample, now=shot.taken)
        if sample.problem:
            raise UserError(f"{label} can't be used: {why}. Hold another; -n 1 takes the freest")
        if why:
            echo(f"warning: {label} is in use: {why}. A hold does not end that; -n 1 in place of "
                 "--devices holds a free device", err=True)


def _now() -> float:
    """Seconds since boot, those of a suspended machine included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _guarded() -> int | None:
    """Fork: the new process runs the command, and this one guards it, so that whichever of them is
    killed, the other one ends all of the command before the lease is let go. Returns None in the
    new process, and an exit status here if that was killed."""
    from gpu_engine.supervisor import children

    children.become_subreaper()
    guard = os.getpid()
    if (pid := os.fork()) == 0:
        def alone(*_: object) -> NoReturn:
            children.kill_tree(())
            sys.exit(128 + signal.SIGKILL)

        children.become_subreaper()
        signal.signal(signal.SIGUSR1, alone)
        children.end_with(guard, signal.SIGUSR1)
        return None
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the command's
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: os.kill(pid, received))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code >= 0:
        os._exit(code)  # it has let go
    children.kill_tree(())
    return 128 - code


def _run(command: Sequence[str], environment: Mapping[str, str], end: float | None) -> int:
    """Run the person's command in the foreground, with its terminal, until `end` at most. Returns
    its exit code, or 128 and the number of the signal that ended it. Raises UserError."""
    from gpu_engine.supervisor.children import Child, end_with, reap

    parent = os.getpid()
    try:
        popen = subprocess.Popen(command, env=os.environ | environment,
                                 preexec_fn=lambda: end_with(parent))
    except OSError as err:
        raise UserError(f"{command[0]}: {err.strerror}") from None
    child = Child((), "command", popen.pid, None, popen)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: child.signal(signal.Signals(received)))
    ask = signal.SIGTERM
    while True:
        reap([child])  # and the command's orphans, which are ours
        if child.status is not None:
            return child.status if child.status >= 0 else 128 - child.status
        if end is not None and _now() >= end:
            child.signal(ask)
            if ask == signal.SIGTERM:
                echo("the time is up: the command is asked to end", err=True)
            ask, end = signal.SIGKILL, _now() + _PATIENCE
        time.sleep(_BRIEF)


def _keep(lease: Leases, file: Path, end: float | None) -> NoReturn:
    """Keep the lease in this process, which has no terminal, until `end` or until its file is
    gone."""
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        os.chdir("/")
        while (end is None or _now() < end) and file.exists():
            time.sleep(_LOOK)
        lease.close()
    finally:
        os._exit(0)


def _tell_of_logout() -> None:
    from gpu_engine.launching import logind

    if warning := logind.here():
        echo(f"note: {warning}", err=True)
