"""Devices, and what was last read of them. Pure data.

Two frozen records hold everything that the rest of the program knows about hardware:
`Device` (facts that do not change while the program runs) and `Sample` (one reading of it).
`discover.discover` finds the devices once; a `sampler.Sampler` takes a `Snapshot` of them at an
interval. No record names a vendor: what differs between vendors is in `backends/`.

Unknown is always None: a value that the driver does not give is never 0, "" or "N/A".
Sizes are bytes, rates per second, temperatures degrees Celsius, power watts, shares 0 to 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from gpu_engine.common.records import UnixTime

ProcessKind = Literal["compute", "graphics", "mps"]

TOO_HOT, POWER_BRAKE = "too hot (hardware)", "power brake (power supply)"
HARDWARE_SLOWDOWN = "hardware slowdown"
HARDWARE_REASONS = frozenset({TOO_HOT, POWER_BRAKE, HARDWARE_SLOWDOWN})
"""The reasons in `Sample.throttle` for which a GPU runs at half its speed or less: something is
wrong with its cooling or its power supply."""


@dataclass(frozen=True)
class Device:
    """One thing that a rank can run on; nothing here changes while the program runs."""

    id: str
    """The name that a person types: the GPU's index ("0"), a slice's UUID, a CPU slot ("cpu:0")."""
    kind: str
    """"gpu", "cpu", or what its vendor calls a slice of a GPU ("mig"). See `is_cpu`, `is_slice`."""
    name: str
    """The model's name. A slice's ends with its place, "0:1": slice 1 of GPU 0."""
    index: int | None = None
    """The GPU's number in the driver's order (PCI order); for a slice, that of its GPU; a CPU
    slot's number."""
    uuid: str | None = None
    """The lasting name ("GPU-…", "MIG-…"), which presets keep; None for a CPU slot, or if it is
    not known."""
    memory_total: int | None = None
    cores: tuple[int, ...] = ()
    """Logical CPUs of a CPU slot, as `os.sched_setaffinity` takes them."""
    capability: tuple[int, int] | None = None
    """CUDA compute capability (major, minor)."""
    visible_index: int | None = None
    """The position in CUDA_VISIBLE_DEVICES (or the vendor's variable), if that is set."""

    @property
    def is_cpu(self) -> bool:
        """Whether it is a slot of the processor."""
        return self.kind == "cpu"

    @property
    def is_slice(self) -> bool:
        """Whether it is a part of a GPU, with its own memory and cores. A process can use only
        one slice."""
        return self.kind not in ("gpu", "cpu")

    @property
    def label(self) -> str:
        """Short name for a table: "GPU 0", "MIG 0:1", "CPU 0"."""
        number = self.name.rsplit(" ", 1)[-1] if self.is_slice else self.index
        return f"{self.kind.upper()} {number}"


@dataclass(frozen=True)
class DeviceProcess:
    """A process that holds a GPU, as the driver and the host see it."""

    pid: int
    memory: int | None = None
    """Bytes on this GPU."""
    kind: ProcessKind = "compute"
    visible: bool = True
    """False: the driver names a pid that can't be seen from here, as inside a container."""
    user: str | None = None
    command: str | None = None
    container: str | None = None
    """The container that it runs in, "docker trainer"; None: in none, or that can't be seen."""
    run: str | None = None
    """The run that has started it, as its environment says; None: none, or it can't be read."""
    started: UnixTime | None = None
    """Unix seconds."""
    host_memory: int | None = None
    cpu: float | None = None
    """Share of one core, 1.0 = one core busy."""
    utilization: float | None = None
    """Share of this GPU's time that it used, 0 to 1."""


@dataclass(frozen=True)
class Sample:
    """One reading of one device."""

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
    """Why the clocks are held down, in words; being idle is no reason. Empty: they are not. None:
    not known."""
    processes: tuple[DeviceProcess, ...] | None = None
    """The processes on it. Empty: there are none. None: not known."""
    problem: str | None = None
    """Why this device can't be used or read ("lost: it fell off the bus"), for people; None if all
    is well. Beside a problem, the other values are the last ones that were read (see `taken`)."""
    lost: bool = False
    """True: the driver says that nothing can run on this device (it is lost, gone, must be reset,
    or is not permitted). False beside a problem: the driver may only be slow to answer."""
    taken: UnixTime | None = None
    """When this was read, Unix seconds. Older than the snapshot if the driver does not answer."""
    memory_reserved: int | None = None
    """Bytes that the driver keeps for itself. `memory_used` does not contain them, if known."""
    memory_is_hosts: bool = False
    """Whether the GPU uses the machine's memory and has none of its own to report."""
    memory_utilization: float | None = None
    """Share of time in which device memory was read or written, 0 to 1."""
    health: tuple[str, ...] = ()
    """What is wrong with the hardware, in words ("2 uncorrected memory errors"); empty: nothing."""
    notes: tuple[str, ...] = ()
    """What a person should know but need not mend ("persistence mode is off")."""
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


@dataclass(frozen=True)
class HostSample:
    """One reading of the machine."""

    cpu: float | None = None
    """Share of all cores, 0 to 1."""
    memory_used: int | None = None
    memory_total: int | None = None
    disk_free: int | None = None
    """Bytes free on the disk of the runs folder."""


@dataclass(frozen=True)
class Inventory:
    """The devices that were found on this machine, and how."""

    devices: tuple[Device, ...]
    source: str
    """The backend that found them: a name in `backends.registry.BACKENDS`, "cpu" or "nvml"."""
    driver: str | None = None
    cuda: str | None = None
    """Highest CUDA version the driver supports, "13.0"."""
    problem: str | None = None
    """Why there is no GPU although something was expected (a driver mismatch, say)."""
    inherited_visible: str | None = None
    """The value of `visible_variable` with which this process was started. Only the devices that
    it lists are offered."""
    visible_variable: str | None = None
    """The variable that restricts the devices ("CUDA_VISIBLE_DEVICES"); None if it is not set."""
    hidden: bool = False
    """Whether its value hides every GPU."""

    @property
    def is_cpu(self) -> bool:
        """Whether these are slots of the processor, and not GPUs."""
        return self.source == "cpu"

    def find(self, name: str) -> Device | None:
        """The device with this id or UUID, or with a UUID that begins so and no other does (at
        least 8 characters); None if there is none."""
        for device in self.devices:
            if name in (device.id, device.uuid):
                return device
        starts = [d for d in self.devices if d.uuid and len(name) >= 8 and d.uuid.startswith(name)]
        return starts[0] if len(starts) == 1 else None

    def named(self, *, among: Collection[str] | None = None) -> str:
        """For people: "2 × NVIDIA H200"; slots of the processor are just counted. `among`: the ids
        of those that are meant; None: all."""
        counts = Counter("CPU slot" if d.is_cpu else d.name for d in self.devices
                         if among is None or d.id in among)
        return ", ".join(f"{count} × {name}" for name, count in counts.items())


@dataclass(frozen=True)
class Snapshot:
    """One reading of all devices and the machine."""

    taken: UnixTime
    """When a device was last read, Unix seconds. Gets old while a driver hangs."""
    samples: tuple[Sample, ...]
    host: HostSample = field(default_factory=HostSample)
    """Always current, also while a driver hangs."""
    problem: str | None = None
    """Why the samples are old ("the driver has not answered for 12 s"); None if all is well."""

    def of(self, device_id: str) -> Sample | None:
        """The sample of the device with this id; None if there is none."""
        return next((s for s in self.samples if s.device.id == device_id), None)
