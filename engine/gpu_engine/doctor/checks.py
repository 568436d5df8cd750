"""All checks, and running them at once: one that hangs or breaks is a finding, and never ends the
others."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpu_engine.common import paths
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.devices import discover
from gpu_engine.devices.backends import registry
from gpu_engine.devices.records import Inventory
from gpu_engine.doctor import machine, user_files
from gpu_engine.doctor.machine import Finding, problem
from gpu_engine.runs import disk_room

_DRIVER = 12.0
"""Seconds that a driver gets to answer."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that is looked at."""

    name: str
    """One word, also in `--json`."""
    look: Callable[[], Sequence[Finding]]
    """Looks and judges. May raise, and may hang."""
    seconds: float = 10.0
    """How long it may take."""


def every() -> list[Check]:
    """All checks, as they are shown."""
    lock = threading.Lock()

    @functools.cache
    def asked() -> list[Inventory]:
        return [discover.discover_of(name, _DRIVER) for name in registry.BACKENDS if name != "cpu"]

    def gpus() -> list[Inventory]:
        with lock:  # three checks ask, and the drivers are asked once
            return asked()

    return [
        Check("installed", machine.installed),
        Check("drivers", lambda: machine.drivers(gpus()), 2 * _DRIVER),
        Check("devices", lambda: machine.devices(gpus(), _DRIVER), 4 * _DRIVER),
        Check("torch", lambda: _torch(gpus()), 4 * _DRIVER),
        Check("programs", machine.programs, 20.0),
        Check("state", lambda: user_files.folder(
            paths.home(), least=disk_room.LEAST, scarce=disk_room.SCARCE)),
        Check("settings", lambda: user_files.folder(paths.settings_folder())),
        Check("shared", user_files.shared),
        Check("files", user_files.files),
        Check("runs", user_files.runs, 20.0),
        Check("terminal", lambda: machine.terminal(os.environ)),
        Check("limits", machine.limits),
        Check("logout", machine.logout),
    ]


def _torch(inventories: Sequence[Inventory]) -> list[Finding]:
    found = next((i for i in inventories if i.devices), None)
    return machine.torch(machine.torches(os.environ), gpus=found.source if found else None,
                         cuda=found.cuda if found else None)


def examine(checks: Sequence[Check]) -> Iterator[tuple[str, Sequence[Finding]]]:
    """Run all checks, each in a thread of its own, and yield their names and what they find in the
    order given, as soon as it is known. Takes no longer than the longest limit. A check that hangs
    keeps its thread, which ends with the program."""
    began = time.monotonic()
    found: dict[str, Sequence[Finding]] = {}

    def run(check: Check) -> None:
        try:
            found[check.name] = check.look()
        except UserError as err:  # it says what to do
            found[check.name] = [problem(clean(str(err)))]
        except Exception as err:  # noqa: BLE001  it must not hide what the others find
            found[check.name] = [problem(
                f"this check itself failed: {type(err).__name__}: {clean(str(err))}",
                "please report it, with the output of gpu-engine doctor --json")]

    threads = [threading.Thread(target=run, args=(check,), daemon=True) for check in checks]
    for thread in threads:
        thread.start()
    for check, thread in zip(checks, threads, strict=True):
        thread.join(max(began + check.seconds - time.monotonic(), 0.0))
        yield check.name, found.get(check.name, [
            problem(f"no answer in {check.seconds:g} s: what it asks hangs")])
