"""The backend for NVIDIA GPUs and MIG slices."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from gpu_engine.devices.backends.nvidia import codes
from gpu_engine.devices.backends.protocol import Backend, DriverLost, Reader, hides_all
from gpu_engine.devices.probe.early import NVML, in_search_path
from gpu_engine.devices.records import Device, Inventory

# What finds and reads devices is imported late: every launch asks each backend for its variables,
# and most launches ask it for nothing else.


class Nvidia(Backend):
    """GPUs and MIG slices as NVML shows them."""

    name = "nvml"
    asks_driver = True
    variables = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    missing = "the NVIDIA driver library is no longer installed here"
    gone = codes.error(codes.GONE)

    def present(self) -> bool:
        """Whether the driver's library is installed. It is opened, but nothing in it is called.

        LD_LIBRARY_PATH is searched too: the probe will use its present value, while the loader of
        this process still uses the value at its start.
        """
        import ctypes

        if in_search_path(NVML, os.environ):
            return True
        try:
            ctypes.CDLL(NVML)
        except OSError:
            return False
        return True

    def discover(self, environ: Mapping[str, str], patience: float) -> Inventory:
        """Find the GPUs and MIG slices that CUDA_VISIBLE_DEVICES in `environ` makes visible."""
        from gpu_engine.devices.backends.nvidia import find

        driver, problem = find.start()
        nothing = self.nothing(environ, problem)
        if driver is None:
            return nothing
        return find.discover(driver, nothing, environ.get("CUDA_DEVICE_ORDER"), patience)

    def open(self, devices: Sequence[Device]) -> Sequence[Reader]:
        """A reader for each GPU; the slices of one GPU share a reader. Raises `DriverLost`."""
        from gpu_engine.devices.backends.nvidia import find, read
        from gpu_engine.devices.process_info import Owners

        driver, problem = find.start()
        if driver is None:
            raise DriverLost(problem or codes.error(codes.NOT_LOADED))
        owners = Owners(device_files="/dev/nvidia")
        return [
            read.GpuReader(driver, [d for d in devices if d.index == index], owners)
            for index in dict.fromkeys(d.index for d in devices)
        ]

    def environment(self, devices: Sequence[Device]) -> dict[str, str]:
        """CUDA_VISIBLE_DEVICES for these devices, and CUDA_DEVICE_ORDER=PCI_BUS_ID.

        Without the order CUDA numbers the fastest card first, while NVML, and so our ids, follow
        PCI order: on a machine with different cards the list would mean the wrong ones. The list
        holds indices, as much training code calls int() on it; a MIG slice has only its UUID.
        """
        if not devices:
            return {"CUDA_VISIBLE_DEVICES": ""}
        names = [str(d.uuid if d.is_slice else d.index) for d in devices]
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(names))}

    def hides_all(self, environ: Mapping[str, str]) -> bool:
        return hides_all(environ.get("CUDA_VISIBLE_DEVICES"))
