"""GPUs of several vendors in one machine: their backends as one."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpu_engine.devices.backends.protocol import Backend, Reader
from gpu_engine.devices.records import Device, Inventory


class Several(Backend):
    """The devices of several backends, in their order.

    The first vendor's devices keep their ids. The others' have the name of their backend before
    them ("amd:0"), and every device names its backend (`Device.source`). A run uses devices of one
    backend, whose name is in its plan, so nobody asks this one for an environment.
    """

    asks_driver = True

    def __init__(self, parts: Sequence[Backend]) -> None:
        self._parts = tuple(parts)
        self.name = "+".join(p.name for p in parts)
        self.variables = tuple(dict.fromkeys(v for p in parts for v in p.variables))
        self.missing = parts[0].missing
        self.gone = parts[0].gone

    def present(self) -> bool:
        return any(p.present() for p in self._parts)

    def discover(self, environ: Mapping[str, str], patience: float) -> Inventory:
        """Find the devices of all of them at the same time, as any driver may hang."""
        found: dict[str, Inventory] = {}

        def ask(part: Backend) -> None:
            own = {v: environ[v] for v in part.variables if v in environ}
            try:
                found[part.name] = part.discover(own, patience)
            except Exception as error:  # noqa: BLE001  the others must still be found
                found[part.name] = part.nothing(own, f"asking the driver failed: {error!r}")

        threads = [threading.Thread(target=ask, args=(p,), daemon=True) for p in self._parts]
        for thread in threads:
            thread.start()
        end = time.monotonic() + patience + 1.0
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        late = f"the driver has not answered for {patience:g} s (it may hang: see dmesg)"
        return merged([found.get(p.name) or p.nothing({}, late) for p in self._parts])

    def open(self, devices: Sequence[Device]) -> Sequence[Reader]:
        """The readers of all of them. Raises `DriverLost` if one of the drivers is lost."""
        return [reader for part in self._parts
                if (own := [d for d in devices if d.source == part.name])
                for reader in part.open(own)]


def merged(found: Sequence[Inventory]) -> Inventory:
    """The inventories of several backends as one; the only one that has devices as it is, but with
    what the others say is wrong."""
    problems = "; ".join(i.problem for i in found if i.problem) or None
    there = [i for i in found if i.devices]
    if len(there) < 2:
        one = there[0] if there else found[0]
        hidden = all(i.hidden for i in found) if not there else one.hidden
        return replace(one, problem=problems, hidden=hidden)
    devices = [replace(d, id=f"{i.source}:{d.id}" if number else d.id, source=i.source)
               for number, i in enumerate(there) for d in i.devices]
    narrowed = next((i for i in there if i.visible_variable), there[0])
    return replace(
        there[0], devices=tuple(devices), source="+".join(i.source for i in there),
        problem=problems, inherited_visible=narrowed.inherited_visible,
        visible_variable=narrowed.visible_variable)
