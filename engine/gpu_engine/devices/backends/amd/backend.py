"""The backend for AMD GPUs.

AMD's own library (amdsmi) is never imported: beside ROCm's torch it made
`torch.cuda.device_count()` return 0 (pytorch/pytorch#186516). The kernel's files tell as much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from gpu_engine.devices.backends.amd import visible
from gpu_engine.devices.backends.protocol import Backend, DriverLost, Reader
from gpu_engine.devices.backends.sysfs import Tree, names_in
from gpu_engine.devices.records import Device, Inventory

# What finds and reads devices is imported late, as in the backend for NVIDIA.

NOT_LOADED = ("the amdgpu driver is not loaded (try: sudo modprobe amdgpu; a container needs "
              "--device=/dev/kfd --device=/dev/dri)")


class Amd(Backend):
    """GPUs and partitions as the compute part of the amdgpu driver (KFD) shows them."""

    name = "amd"
    asks_driver = True
    variables = (visible.FIRST, *visible.LATER)
    cleared = (*visible.LATER, "GPU_DEVICE_ORDINAL")
    missing = "there is no AMD GPU here any more"
    gone = "GPU is gone: the driver no longer lists it"
    tree: ClassVar[Tree] = Tree()
    """Where the kernel's files are."""

    def present(self) -> bool:
        """Whether the driver is loaded, or has a card that it could be loaded for."""
        if (self.tree.root / "sys/module/amdgpu").is_dir() or self.tree.kfd.is_dir():
            return True
        from gpu_engine.devices.backends.amd import find

        return bool(find.unread(self.tree))

    def discover(self, environ: Mapping[str, str], patience: float) -> Inventory:
        """Find the GPUs that ROCm's variables in `environ` make visible."""
        from gpu_engine.devices.backends.amd import find

        nothing = self.nothing(environ)
        found, hidden = find.find(self.tree)
        if not found and not hidden:
            idle = find.unread(self.tree)
            return replace(nothing, problem=NOT_LOADED if idle else None)
        devices = [f.device for f in found]
        offered = visible.narrow(devices, environ)
        problem = None
        if not found:
            problem = (f"{hidden} AMD GPU{'s are' if hidden > 1 else ' is'} in this machine, and "
                       f"none can be used from here: there is no render node in /dev/dri for "
                       f"{'them' if hidden > 1 else 'it'} (a container needs --device=/dev/kfd "
                       "--device=/dev/dri)")
        elif not offered:
            variable = visible.deciding(environ) or visible.FIRST
            problem = (f'{variable} is "{environ.get(variable)}" here, which makes none of the '
                       f"{len(found)} devices visible")
        return replace(nothing, devices=offered, problem=problem,
                       driver=find.driver_version(self.tree))

    def open(self, devices: Sequence[Device]) -> Sequence[Reader]:
        """A reader for each card; the partitions of one card share a reader. Raises `DriverLost`.
        """
        from gpu_engine.devices.backends.amd import find, read
        from gpu_engine.devices.process_info import Owners

        if not names_in(self.tree.kfd / "topology/nodes"):
            raise DriverLost(NOT_LOADED)
        found = {f.device.uuid: f for f in find.find(self.tree)[0]}
        groups: dict[str, list[Device]] = {}
        for device in devices:
            known = found.get(device.uuid)
            groups.setdefault(known.card if known else device.id, []).append(device)
        owners = Owners(device_files="/dev/kfd")
        return [read.CardReader(self.tree, group, owners) for group in groups.values()]

    def environment(self, devices: Sequence[Device]) -> dict[str, str]:
        """ROCR_VISIBLE_DEVICES for these devices: by UUID, as indices change when a card falls off
        the bus; by index where ROCm knows no UUID.

        ROCm reads it before all other variables of this kind, and they count in its new numbers:
        those that a process may inherit are taken away (`cleared`).
        """
        names = [str(d.uuid if _is_rocms(d) else d.index) for d in devices]
        return {visible.FIRST: ",".join(dict.fromkeys(names))}

    def hides_all(self, environ: Mapping[str, str]) -> bool:
        return visible.hides_all(environ)

    def nothing(self, environ: Mapping[str, str], problem: str | None = None) -> Inventory:
        """As `Backend.nothing`; any of several variables may be the one that is set."""
        variable = visible.deciding(environ)
        return Inventory((), self.name, problem=problem, visible_variable=variable,
                         inherited_visible=environ[variable] if variable else None,
                         hidden=self.hides_all(environ))


def _is_rocms(device: Device) -> bool:
    """Whether ROCm knows the device by its UUID. Partitions that share their card's are told apart
    by a number of ours, and a card without one is named by its place."""
    uuid = device.uuid or ""
    return uuid.startswith("GPU-") and "/" not in uuid
