"""NVIDIA's side of the backend protocol."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_engine.devices.backends.nvidia import find, read, visible, words
from gpu_engine.devices.backends.protocol import Backend, DriverLost, Reader
from gpu_engine.devices.owners import Owners
from gpu_engine.devices.records import Device, Inventory

LIBRARY = "libnvidia-ml.so.1"


class Nvidia(Backend):
    """GPUs and MIG slices as NVML shows them."""

    name = "nvml"
    asks_driver = True
    variables = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    missing = "there is no NVIDIA driver library here any more"
    gone = words.error(words.GONE)

    def present(self) -> bool:
        """Whether the driver's library is installed. Opening it runs none of its calls.

        LD_LIBRARY_PATH is looked at too, as the loader of this process does not see what was set
        after it started, and the probe's does.
        """
        folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
        if any((Path(f) / LIBRARY).exists() for f in folders if f):
            return True
        try:
            ctypes.CDLL(LIBRARY)
        except OSError:
            return False
        return True

    def discover(self, environ: Mapping[str, str], patience: float) -> Inventory:
        driver, problem = find.start()
        nothing = self.nothing(environ, problem)
        if driver is None:
            return nothing
        return find.look(driver, nothing, environ.get("CUDA_DEVICE_ORDER"), patience)

    def open(self, devices: Sequence[Device]) -> Sequence[Reader]:
        driver, problem = find.start()
        if driver is None:
            raise DriverLost(problem or words.error(words.NOT_LOADED))
        owners = Owners(device_files="/dev/nvidia")
        return [
            read.GpuReader(driver, [d for d in devices if d.index == index], owners)
            for index in dict.fromkeys(d.index for d in devices)
        ]

    def environment(self, devices: Sequence[Device]) -> dict[str, str]:
        """CUDA numbers the fastest card first unless told to go by PCI order, which is how NVML
        (and so our ids) count: the list alone would name the wrong card on a mixed machine.
        Indices, as much training code calls int() on the variable; a MIG slice has no other name
        than its UUID.
        """
        if not devices:
            return {"CUDA_VISIBLE_DEVICES": ""}
        names = [str(d.uuid if d.is_slice else d.index) for d in devices]
        return {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(names)),
        }

    def hides_all(self, environ: Mapping[str, str]) -> bool:
        return visible.hides_all(environ.get("CUDA_VISIBLE_DEVICES"))
