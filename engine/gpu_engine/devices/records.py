"""What a device is, and what was last seen of it. Pure data.

Two frozen records hold everything that the rest of the program knows about hardware:
`Device` (facts that do not change while the program runs) and `Sample` (one look at it).
`discover.discover` finds the devices once; a `sampler.Sampler` takes a `Snapshot` of them at an
interval. No record names a vendor: what differs between vendors is in `backends/`.

Unknown is always None: a value that the driver would not give is never 0, "" or "N/A".
Sizes are bytes, rates per second, temperatures degrees Celsius, power watts, shares 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

ProcessKind = Literal["compute", "graphics", "mps"]

TOO_HOT, POWER_BRAKE = "too hot (hardware)", "power brake (power supply)"
HARDWARE_SLOWDOWN = "hardware slowdown"
HARDWARE_REASONS = frozenset({TOO_HOT, POWER_BRAKE, HARDWARE_SLOWDOWN})
"""Those of `Sample.throttle` that slow a GPU to half or less: something is wrong with its cooling
or its power."""


@dataclass(frozen=True, slots=True)
class Device:
    """One thing that a rank can run on; nothing here changes while the program runs."""

    id: str
    """How a person names it: the GPU's index ("0"), a slice's UUID, or a CPU slot ("cpu:0")."""
    kind: str
    """"gpu", "cpu", or what its vendor calls a slice of a GPU ("mig"). See `is_cpu`, `is_slice`."""
    name: str
    """The model's name. A slice's ends with its place, "0:1": slice 1 of GPU 0."""
    index: int | None = None
    """Of a GPU in the driver's order (PCI order), of its GPU for a slice; a CPU slot's number."""
    uuid: str | None = None
    """What names it for good ("GPU-…", "MIG-…"); None for CPU slots and where it is not known.
    Presets keep it, so a card keeps its identity."""
    memory_total: int | None = None
    cores: tuple[int, ...] = ()
    """Logical CPUs of a CPU slot, as `os.sched_setaffinity` takes them."""
    capability: tuple[int, int] | None = None
    """CUDA compute capability (major, minor)."""
    visible_index: int | None = None
    """Position in the variable (CUDA_VISIBLE_DEVICES) that narrows what we see, where it is set."""

    @property
    def is_cpu(self) -> bool:
        """Whether it is a slot of the processor."""
        return self.kind == "cpu"

    @property
    def is_slice(self) -> bool:
        """Whether it is a part of a GPU, with memory and cores of its own. A process can use one
        alone."""
        return self.kind not in ("gpu", "cpu")

    @property
    def label(self) -> str:
        """Short name for a table: "GPU 0", "MIG 0:1", "CPU 0"."""
        number = self.name.rsplit(" ", 1)[-1] if self.is_slice else self.index
        return f"{self.kind.upper()} {number}"


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process that holds a GPU, as the driver and the host see it."""

    pid: int
    memory: int | None = None
    """Bytes on this GPU."""
    kind: ProcessKind = "compute"
    visible: bool = True
    """False: the driver names a pid that this namespace cannot see (a container, say)."""
    user: str | None = None
    command: str | None = None
    started: float | None = None
    """Unix seconds."""
    host_memory: int | None = None
    cpu: float | None = None
    """Share of one core, 1.0 = one core busy."""
    utilization: float | None = None
    """Share of this GPU's time that it used, 0 to 1."""


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
    throttle: tuple[str, ...] | None = None
    """Reasons in words why clocks are held down; idle is not one. None: not known. Empty: known
    to be none."""
    processes: tuple[DeviceProcess, ...] | None = None
    """None: not known. Empty: known to be none."""
    problem: str | None = None
    """Why this device cannot be used or read ("GPU is lost"), for people; None when fine.
    Beside a problem, values are the last ones that were read (see `taken`)."""
    lost: bool = False
    """Of the problem: the driver says that nothing can run on this device (lost, gone, to be
    reset, not permitted), where False may be no more than a driver that keeps us waiting."""
    taken: float | None = None
    """Unix seconds of this look; older than the snapshot's where the driver keeps us waiting."""
    memory_reserved: int | None = None
    """Bytes that the driver keeps for itself; already left out of `memory_used` where known."""
    memory_is_hosts: bool = False
    """The GPU has no memory of its own and uses the machine's: there is no figure of it."""
    memory_utilization: float | None = None
    """Share of time in which device memory was read or written, 0 to 1."""
    health: tuple[str, ...] = ()
    """What is wrong with the hardware, in words ("2 uncorrected memory errors"); empty: clean."""
    notes: tuple[str, ...] = ()
    """What a person should know and can still run with ("persistence mode is off")."""
    clock_sm_max: int | None = None
    """Hz."""
    clock_memory_max: int | None = None
    """Hz."""
    performance_state: int | None = None
    """0 (fastest) to 15."""
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    """Memory errors since the driver was loaded."""
    persistence: bool | None = None
    compute_mode: str | None = None
    """"default", "exclusive process", "prohibited"."""
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_sent: float | None = None
    pcie_received: float | None = None
    """Bytes a second over the bus, as the GPU sees it; read only when asked for (40 ms a look)."""


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
    source: str
    """The backend that found them: a name in `backends.registry.BACKENDS`, "cpu" or "nvml"."""
    driver: str | None = None
    cuda: str | None = None
    """Highest CUDA version the driver supports, "13.0"."""
    problem: str | None = None
    """Why there is no GPU although something was expected (a driver mismatch, say)."""
    inherited_visible: str | None = None
    """The value of `visible_variable` as this process was started with; only what it lets through
    is offered."""
    visible_variable: str | None = None
    """Which variable narrows what we see ("CUDA_VISIBLE_DEVICES"); None where it is not set."""
    hidden: bool = False
    """Whether that was set so as to hide every GPU."""

    @property
    def is_cpu(self) -> bool:
        """Whether these are slots of the processor, and not GPUs."""
        return self.source == "cpu"

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
    """Unix seconds of the newest look at a device. Stays behind while a driver hangs."""
    samples: tuple[Sample, ...]
    host: HostSample = field(default_factory=HostSample)
    """Of now, also while a driver hangs."""
    problem: str | None = None
    """Why nothing newer comes ("the driver has not answered for 12 s"); None when all is well."""

    def of(self, device_id: str) -> Sample | None:
        return next((s for s in self.samples if s.device.id == device_id), None)
