"""A machine with a stand-in driver, for tests without a GPU."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent


def _builder() -> ModuleType:
    """standin/build.py, by path: importlib mode puts no test folder on sys.path."""
    name = "nvml_standin_build"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, HERE / "standin" / "build.py")
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def standin_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles the library once for each set of flags; fails where no compiler is."""
    built: dict[tuple[str, ...], Path] = {}

    def library(*flags: str) -> Path:
        if flags not in built:
            built[flags] = _builder().build(tmp_path_factory.mktemp("nvml"), *flags)
        return built[flags]

    return library


@pytest.fixture
def standin(standin_library: Callable[..., Path], tmp_path: Path) -> Callable[..., Any]:
    """`standin("gpu 0 util 37", …)` is a machine with one such GPU; see standin/build.py.

    Flags go to the compiler: `standin(flags=("-DOLD",))` is an old driver.
    """
    machines = 0

    def machine(*lines: str, flags: tuple[str, ...] = ()) -> Any:
        nonlocal machines
        machines += 1
        folder = tmp_path / f"machine-{machines}"
        folder.mkdir()
        found = _builder().Standin(standin_library(*flags), folder)
        found.set(*lines)
        return found

    return machine


@pytest.fixture
def as_this_machine(
    standin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """Like `standin`, and it is the machine that this process and its children see."""

    def machine(*lines: str, flags: tuple[str, ...] = ()) -> Any:
        found = standin(*lines, flags=flags)
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
            monkeypatch.delenv(name, raising=False)
        for name, value in found.env().items():
            monkeypatch.setenv(name, value)
        forget_probe()
        return found

    yield machine
    forget_probe()


@pytest.fixture
def as_amd(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """`as_amd(root)`: what this process and its children take for the files of AMD's driver."""

    from gpu_engine.devices.backends import registry

    def machine(root: Path) -> None:
        for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AMD_TREE", str(root))
        monkeypatch.setenv("PYTHONPATH", str(HERE / "amdtree"))
        monkeypatch.syspath_prepend(HERE / "amdtree")
        sys.modules.pop("amd_here", None)
        registry.load.cache_clear()
        monkeypatch.setitem(registry.BACKENDS, "amd", "amd_here:AmdHere")
        forget_probe()

    yield machine
    registry.load.cache_clear()
    forget_probe()


def forget_probe() -> None:
    """End the probe that a discovery left behind: it belongs to another machine."""
    from gpu_engine.devices import probe

    with probe._lock:
        spare, probe._spare = probe._spare, None
    if spare is not None:
        spare.close()
