"""The GPU of a Mac with a processor of Apple's: one device, which torch calls "mps".

macOS tells a program without root neither who uses it nor how much, and it works in the machine's
memory. So its name is all that is read, by `sysctl`.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpu_engine.common.ask_program import answer
from gpu_engine.devices.backends.protocol import Backend, Reader
from gpu_engine.devices.records import Device, Inventory, Sample

SYSCTL = "/usr/sbin/sysctl"


class Apple(Backend):
    """The backend for Apple's GPU."""

    name = "apple"
    asks_driver = True
    missing = "this is no Mac with a processor of Apple's"
    gone = "the GPU is gone"

    def present(self) -> bool:
        return sys.platform == "darwin" and platform.machine() == "arm64"

    def discover(self, environ: Mapping[str, str], patience: float) -> Inventory:
        """Find the GPU. Nothing in `environ` can hide it."""
        memory = _asked("hw.memsize")
        device = Device(
            "0", "gpu", _asked("machdep.cpu.brand_string") or "Apple GPU", index=0, uuid="apple-0",
            memory_total=int(memory) if memory and memory.isdecimal() else None, with_host=True)
        return replace(self.nothing(environ), devices=(device,))

    def open(self, devices: Sequence[Device]) -> Sequence[Reader]:
        return [_AppleReader(devices)]


class _AppleReader(Reader):
    def read(self) -> tuple[Sample, ...]:
        return tuple(Sample(d, memory_is_hosts=True, taken=time.time()) for d in self.devices)


def _asked(name: str) -> str | None:
    """What `sysctl` says of a name; None if it says nothing."""
    said = (answer([SYSCTL, "-n", name]) or "").strip()
    return said if said.isprintable() and said else None
