"""Reading the kernel's files about GPUs.

Names and units are those of the kernel's documents: Documentation/gpu/amdgpu (driver-misc, thermal,
ras), Documentation/hwmon/sysfs-interface, and drivers/gpu/drm/amd/amdkfd/kfd_topology.c for what is
below /sys/class/kfd. Reading such a file asks the driver, which may hang, refuse, or have nothing
to tell.
"""

from __future__ import annotations

import os
from pathlib import Path

MOST = 1 << 16
"""Bytes that are read of a file: the kernel gives a page at most."""


class Tree:
    """The folder that holds `sys` and `dev`: of a real machine, "/"."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.kfd = root / "sys/class/kfd/kfd"  # AMD's compute driver
        self.pci = root / "sys/bus/pci/devices"

    def read(self, path: Path) -> bytes:
        """What a file says. Raises OSError."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, MOST)
        finally:
            os.close(fd)

    def usable(self, path: Path) -> bool:
        """Whether this user may read and write a device file. It is not opened, which would wake
        the GPU."""
        return os.access(path, os.R_OK | os.W_OK)

    def node(self, name: str) -> Path:
        """The folder of a node of the KFD's topology."""
        return self.kfd / "topology/nodes" / name


class Look:
    """One look at the files of a folder: what they say, and what went wrong with them."""

    def __init__(self, tree: Tree, folder: Path) -> None:
        self._tree, self.folder = tree, folder
        self.answered = 0
        """How many files could be read."""
        self.errors: set[int] = set()
        """The numbers of the errors of those that could not."""

    def text(self, name: str) -> str | None:
        """What a file says, without blanks around it; None if it can't be read or is empty."""
        try:
            said = self._tree.read(self.folder / name)
        except OSError as error:
            self.errors.add(error.errno or 0)
            return None
        self.answered += 1
        return said.decode(errors="replace").strip() or None

    def number(self, name: str, most: float, least: float = 0) -> int | None:
        """The number in a file; None if there is none, or none that can be true."""
        return whole(self.text(name), most, least)

    def properties(self, name: str = "properties") -> dict[str, int]:
        """The numbers of a file with lines such as "simd_count 304". Others are left out."""
        found = {}
        for line in (self.text(name) or "").splitlines():
            key, _, value = line.partition(" ")
            number = whole(value.strip(), 1 << 64)
            if number is not None:
                found[key] = number
        return found


def whole(text: str | None, most: float, least: float = 0) -> int | None:
    """A decimal number from `least` to `most`; None for anything else."""
    if text is None or not text.removeprefix("-").isdecimal() or not text.isascii():
        return None
    return number if least <= (number := int(text)) <= most else None


def names_in(folder: Path) -> list[str]:
    """The names in a folder, sorted; none if it can't be read."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208  names, not paths
    except OSError:
        return []
