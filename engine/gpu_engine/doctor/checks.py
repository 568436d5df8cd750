"""All checks, in the order in which they are shown."""

from __future__ import annotations

import os
import threading

from gpu_engine.common import paths
from gpu_engine.devices.records import Inventory
from gpu_engine.doctor import devices, folders, software, surroundings, user_files
from gpu_engine.doctor.records import Check, Finding
from gpu_engine.runs import disk_room

_DRIVER = 12.0
"""Seconds that a driver gets to answer."""
_HOSTS = 75.0


def every(*, hosts: bool) -> list[Check]:
    """All checks. `hosts`: also those of the other machines, which are asked over ssh."""
    gpus = _Gpus()
    found = [
        Check("installed", software.installed),
        Check("drivers", lambda: devices.drivers(gpus.inventories()), 2 * _DRIVER),
        Check("devices", lambda: devices.devices(gpus.inventories(), _DRIVER), 4 * _DRIVER),
        Check("torch", lambda: _torch(gpus), 4 * _DRIVER),
        Check("programs", software.programs, 20.0),
        Check("state", lambda: folders.folder(paths.home(), least=disk_room.LEAST,
                                               scarce=disk_room.SCARCE)),
        Check("settings", lambda: folders.folder(paths.settings_folder())),
        Check("shared", folders.shared),
        Check("files", user_files.files),
        Check("runs", user_files.runs, 20.0),
        Check("terminal", lambda: surroundings.terminal(os.environ)),
        Check("limits", surroundings.limits),
        Check("logout", surroundings.logout),
    ]
    if hosts:
        found.append(Check("hosts", user_files.hosts, _HOSTS))
    return found


def _torch(gpus: _Gpus) -> list[Finding]:
    found = next((i for i in gpus.inventories() if i.devices), None)
    return software.torch(software.torches(os.environ),
                          gpus=found.source if found else None,
                          cuda=found.cuda if found else None)


class _Gpus:
    """What the backends find, which three checks ask for and one thread looks up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: list[Inventory] | None = None

    def inventories(self) -> list[Inventory]:
        with self._lock:
            if self._found is None:
                self._found = devices.inventories(_DRIVER)
            return self._found
