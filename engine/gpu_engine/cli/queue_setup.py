"""gpu-engine queue --set-up-shared: the folder through which users see each other's runs."""

from __future__ import annotations

from pathlib import Path

from gpu_engine.cli.output import echo


def set_up(given: str) -> None:
    """Make the folder `given`, or the usual one if that is empty, and say what it is for. Raises
    UserError."""
    from gpu_engine.devices.leases import shared

    box = shared.set_up(Path(given) if given else None)
    echo(f"{box.path} is set up: runs of all users of this machine now see who holds which "
               "device")
    if box.path not in (shared.DEFAULT, shared.where()):
        echo(f"it is used where the environment has {shared.VARIABLE}={box.path}, for all "
                   "users by a line in /etc/environment")
