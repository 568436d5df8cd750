"""One machine for each backend, with the same few handles on it: what the contract tests pull."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from gpu_engine.devices import sampler
from gpu_engine.devices.records import Inventory, Snapshot

from .amdtree.trees import Tree, instinct

GIB = 1 << 30


def take_once(inventory: Inventory, timeout: float = 20.0) -> Snapshot:
    """One snapshot with rates, which needs two readings a quarter of a second apart."""
    return sampler.take_several(inventory, readings=1, timeout=timeout)[-1]


class Machine(ABC):
    """Three GPUs of 80 GiB that one driver shows."""

    name: str

    @abstractmethod
    def busy(self, index: int, percent: int, used: int) -> None:
        """So much of its time, and so many bytes of its memory, are in use."""

    @abstractmethod
    def hold(self, index: int, pid: int, used: int) -> None:
        """A process computes on it."""

    @abstractmethod
    def lose(self, index: int) -> None:
        """The driver says that nothing can run on it."""

    @abstractmethod
    def hang(self, index: int) -> None:
        """A question about it is not answered."""

    @abstractmethod
    def remove(self, index: int) -> None:
        """The driver lists it no more; `index` is the last one."""

    @abstractmethod
    def unload(self) -> None:
        """The driver is unloaded."""

    @abstractmethod
    def uninstall(self) -> None:
        """The driver is not there any more."""

    @abstractmethod
    def mend(self) -> None:
        """All is as at the beginning."""


class NvidiaMachine(Machine):
    """The stand-in library below the real binding."""

    name = "nvml"

    def __init__(self, standin: Any, monkeypatch: Any) -> None:
        self._standin, self._monkeypatch = standin, monkeypatch
        self.mend()

    def busy(self, index: int, percent: int, used: int) -> None:
        self._standin.add(f"gpu {index} util {percent}", f"gpu {index} mem_used {used}")

    def hold(self, index: int, pid: int, used: int) -> None:
        self._standin.add(f"gpu {index} proc {pid} {used}")

    def lose(self, index: int) -> None:
        self._standin.add(f"gpu {index} lost 1")

    def hang(self, index: int) -> None:
        self._standin.add(f"gpu {index} hang 1")

    def remove(self, index: int) -> None:
        self._standin.add(f"gpu {index} gone 1")

    def unload(self) -> None:
        self._standin.add("gpu * error * 9", "init 9")

    def uninstall(self) -> None:
        from gpu_engine.devices.backends import nvidia

        self._monkeypatch.setattr(nvidia, "NVML", "libnvidia-ml.so.of-no-machine")

    def mend(self) -> None:
        self._standin.set("count 3")


class AmdMachine(Machine):
    """A tree of files below the real backend."""

    name = "amd"

    def __init__(self, root: Path) -> None:
        self.tree = Tree(root, *(instinct(i, memory=80 * GIB) for i in range(3)))

    def busy(self, index: int, percent: int, used: int) -> None:
        self.tree.of(index, "gpu_busy_percent", percent)
        self.tree.of(index, "mem_info_vram_used", used)

    def hold(self, index: int, pid: int, used: int) -> None:
        self.tree.process(pid, {index: used})

    def lose(self, index: int) -> None:
        for name in ("gpu_busy_percent", "mem_info_vram_used"):
            self.tree.of(index, name, "errno ENODEV")

    def hang(self, index: int) -> None:
        self.tree.pipe(index, "gpu_busy_percent")

    def remove(self, index: int) -> None:
        self.tree.remove(index)

    def unload(self) -> None:
        self.tree.unload()

    def uninstall(self) -> None:
        shutil.rmtree(self.tree.root / "sys")

    def mend(self) -> None:
        self.tree.make()
