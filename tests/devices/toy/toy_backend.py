"""A vendor that no other file knows of: its devices are folders, as sysfs shows them.

$TOY_DEVICES/0/{uuid,name,memory,used,busy,pids,state}; a missing `used` is not known, a `state`
other than "ok" is what is wrong. $TOY_DEVICES/driver holds "loaded", or why it is not. What is a
FIFO keeps its reader waiting, as a driver does that hangs. TOY_VISIBLE lists UUIDs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpu_engine.devices.backends.registry import Backend, DriverLost, Reader
from gpu_engine.devices.process_info import Owners
from gpu_engine.devices.records import Device, DeviceProcess, Inventory, Sample


def _tree() -> Path:
    return Path(os.environ.get("TOY_DEVICES", "/nowhere"))


def _trouble() -> str | None:
    try:
        said = (_tree() / "driver").read_text().strip()
    except OSError:
        return "the toy driver is not loaded"
    return None if said == "loaded" else f"the toy driver says: {said}"


class Toy(Backend):
    name = "toy"
    asks_driver = True
    variables = ("TOY_VISIBLE",)
    missing = "there is no toy driver here any more"
    gone = "the toy driver no longer lists this device"

    def present(self) -> bool:
        return _tree().is_dir()

    def discover(self, environ: Mapping[str, str], patience: float) -> Inventory:
        nothing = self.nothing(environ, _trouble())
        if nothing.problem:
            return nothing
        found = {}
        for folder in sorted(f for f in _tree().iterdir() if f.name.isdigit()):
            uuid = (folder / "uuid").read_text().strip()
            found[uuid] = Device(folder.name, "gpu", (folder / "name").read_text().strip(),
                                 index=int(folder.name), uuid=uuid,
                                 memory_total=int((folder / "memory").read_text()))
        offered = tuple(found.values())
        if "TOY_VISIBLE" in environ:
            names = environ["TOY_VISIBLE"].split(",")
            offered = tuple(replace(found[n], visible_index=i) for i, n in enumerate(names)
                            if n in found)
        return replace(nothing, devices=offered, driver="7")

    def open(self, devices: Sequence[Device]) -> Sequence[Reader]:
        if trouble := _trouble():
            raise DriverLost(trouble)
        owners = Owners("/dev/toy")
        return [ToyReader(device, owners) for device in devices]

    def environment(self, devices: Sequence[Device]) -> dict[str, str]:
        return {"TOY_VISIBLE": ",".join(str(d.uuid) for d in devices)}

    def hides_all(self, environ: Mapping[str, str]) -> bool:
        return environ.get("TOY_VISIBLE") == ""


class ToyReader(Reader):
    def __init__(self, device: Device, owners: Owners) -> None:
        super().__init__([device])
        self._owners = owners

    def read(self) -> tuple[Sample, ...]:
        if trouble := _trouble():
            raise DriverLost(trouble)
        (device,) = self.devices
        sample = Sample(device, memory_total=device.memory_total, taken=time.time())
        folder = next((f for f in _tree().iterdir() if f.name.isdigit()
                       and (f / "uuid").read_text().strip() == device.uuid), None)
        if folder is None:
            return (replace(sample, problem=Toy.gone, lost=True),)
        state = (folder / "state").read_text().strip()
        if state != "ok":
            return (replace(sample, problem=f"the toy is {state}", lost=True),)
        processes = []
        for line in (folder / "pids").read_text().splitlines():
            pid, used = map(int, line.split())
            owner = self._owners.find(pid)
            processes.append(DeviceProcess(pid, used, visible=owner is not None,
                                           user=owner and owner.user,
                                           command=owner and owner.command))
        return (replace(sample, utilization=int((folder / "busy").read_text()) / 100,
                        memory_used=int((folder / "used").read_text()),
                        processes=tuple(processes)),)
