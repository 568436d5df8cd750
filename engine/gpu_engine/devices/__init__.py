"""What a device is, and what was last seen of it.

Two frozen records hold everything that the rest of the program knows about hardware:
`Device` (facts that do not change while the program runs) and `Sample` (one look at it).
`discover()` finds the devices once; a `Sampler` takes a `Snapshot` of them at an interval.

Unknown is always None: a value that the driver would not give is never 0, "" or "N/A".
Sizes are bytes, rates per second, temperatures degrees Celsius, power watts, shares 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["gpu", "mig", "cpu"]


@dataclass(frozen=True, slots=True)
class Device:
    """One thing that a rank can run on; nothing here changes while the program runs."""

    id: str
    """How a person names it: NVML index ("0"), MIG UUID, or CPU slot ("cpu:0")."""
    kind: Kind
    name: str
    index: int | None = None
    """NVML index (PCI order) of a GPU, of the parent GPU for a MIG slice; slot number on CPU."""
    uuid: str | None = None
    """"GPU-…" or "MIG-…"; None for CPU slots. Presets keep it, so a card keeps its identity."""
    memory_total: int | None = None
    cores: tuple[int, ...] = ()
    """Logical CPUs of a CPU slot, as `os.sched_setaffinity` takes them."""
    capability: tuple[int, int] | None = None
    """CUDA compute capability (major, minor)."""
    visible_index: int | None = None
    """Position in the CUDA_VISIBLE_DEVICES we were started with, where one was set."""

    @property
    def label(self) -> str:
        """Short name for a table: "GPU 0", "MIG 0:1", "CPU 0"."""
        if self.kind == "gpu":
            return f"GPU {self.index}"
        if self.kind == "mig":
            return f"MIG {self.name.rsplit(' ', 1)[-1]}"
        return f"CPU {self.index}"


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process that holds a GPU, as the driver and the host see it."""

    pid: int
    memory: int | None = None
    """Bytes on this GPU."""
    kind: Literal["compute", "graphics", "mps"] = "compute"
    visible: bool = True
    """False: the driver names a pid that this namespace cannot see (a container, say)."""
    user: str | None = None
    command: str | None = None
    started: float | None = None
    """Unix seconds."""
    host_memory: int | None = None
    cpu: float | None = None
    """Share of one core, 1.0 = one core busy."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one look at one device gave."""

    device: Device
    utilization: float | None = None
    """0 to 1."""
    memory_used: int | None = None
    memory_total: int | None = None
    temperature: float | None = None
    power: float | None = None
    power_limit: float | None = None
    clock_sm: int | None = None
    """Hz."""
    clock_memory: int | None = None
    """Hz."""
    fan: float | None = None
    """0 to 1."""
    throttle: tuple[str, ...] = ()
    """Reasons in words why clocks are held down; idle is not one."""
    processes: tuple[DeviceProcess, ...] | None = None
    """None: not known. Empty: known to be none."""
    problem: str | None = None
    """Why this device cannot be used or read ("GPU is lost"), for people; None when fine."""


@dataclass(frozen=True, slots=True)
class HostSample:
    """What one look at the machine gave."""

    cpu: float | None = None
    """Share of all cores, 0 to 1."""
    memory_used: int | None = None
    memory_total: int | None = None
    disk_free: int | None = None
    """Bytes free where the runs are kept."""
    net_sent: float | None = None
    net_received: float | None = None
    """Bytes a second."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The devices found on this machine, and how."""

    devices: tuple[Device, ...]
    source: Literal["nvml", "cpu"]
    driver: str | None = None
    cuda: str | None = None
    """Highest CUDA version the driver supports, "13.0"."""
    problem: str | None = None
    """Why there is no GPU although something was expected (a driver mismatch, say)."""
    inherited_visible: str | None = None
    """CUDA_VISIBLE_DEVICES as this process was started with; only those GPUs are offered."""

    def find(self, name: str) -> Device | None:
        """The device that `name` (id, UUID, or a UUID's unambiguous beginning) means, or None."""
        for device in self.devices:
            if name in (device.id, device.uuid):
                return device
        starts = [d for d in self.devices if d.uuid and len(name) >= 8 and d.uuid.startswith(name)]
        return starts[0] if len(starts) == 1 else None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at everything, complete when it is handed out."""

    taken: float
    """Unix seconds."""
    samples: tuple[Sample, ...]
    host: HostSample = field(default_factory=HostSample)

    def of(self, device_id: str) -> Sample | None:
        return next((s for s in self.samples if s.device.id == device_id), None)


def discover() -> Inventory:
    """Find the devices: NVIDIA GPUs where a driver answers, else CPU slots. Never raises."""
    from gpu_engine.devices import cpu, nvml

    found = nvml.discover()
    if found.devices:
        return found
    return cpu.discover(problem=found.problem)
