"""Whether the ranks' torch can use the GPUs that they get.

A build for the processor alone on a machine with GPUs is the commonest mistake there is, and a
rank would say so only after seconds, in torch's words.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_engine.common import paths
from gpu_engine.common.errors import Problem
from gpu_engine.common.files import open_file
from gpu_engine.devices.records import Inventory
from gpu_engine.plan import own_command
from gpu_engine.plan.own_command import is_python
from gpu_engine.spec.schema import RunSpec

if TYPE_CHECKING:
    from gpu_engine.interpreters.inspection import Build, Seen

_INDEX = "https://download.pytorch.org/whl/"
_ROCM = "rocm6.4"
"""PyTorch's wheels for AMD: they bring ROCm along, and need no more than the kernel's driver."""
_CUDA = ((13, "cu130"), (12, "cu126"), (11, "cu118"))
"""The driver's CUDA, major version, and PyTorch's wheels that any such driver runs: CUDA's minor
versions are compatible within a major one."""
_VENDORS = {"nvml": ("an NVIDIA GPU", "cuda"), "amd": ("an AMD GPU", "hip")}
"""By the name of their backend: one of its GPUs, and the field of `Build` that a build for it has.
"""


def problem(spec: RunSpec, inventory: Inventory, python: Seen) -> Problem | None:
    """What is wrong with the torch of `python`, in which a task's ranks run on the GPUs that `spec`
    names; None where nothing is, or where it can't be told."""
    source = _source(spec, inventory)
    why = _why(python, source, inventory) if source is not None else None
    return Problem("run.python", spec.run.python, why) if why else None


def doubt(spec: RunSpec, inventory: Inventory, cwd: Path | None) -> str | None:
    """What `problem` says, for a person's own command in `cwd`: a doubt, as it may train without
    torch."""
    command = spec.task.command
    source = _source(spec, inventory)
    if not command or source is None:
        return None
    from gpu_engine.interpreters import inspection

    python = interpreter_of(command, cwd)
    return _why(inspection.inspect(python), source, inventory) if python else None


def interpreter_of(command: Sequence[str], cwd: Path | None) -> str | None:
    """The Python that a command in `cwd` runs in, also behind `env` and `sh -c`: `python` itself,
    or what a script (train.py, torchrun, accelerate) names in its first line. None where that can't
    be told (`conda run`, `./go.sh`)."""
    command = own_command.behind_plain_wrappers(command)
    if inner := own_command.python_of_text(command):
        command = [inner[1]]
    found = paths.program(command[0], cwd) if command else None
    if found is None:
        return None
    if is_python(command[0]):
        return found
    try:
        with open_file(Path(found)) as file:
            first = file.readline(512)
    except OSError:
        return None
    match = re.fullmatch(rb"#!\s*(?:/usr/bin/env\s+)?(\S+)\s*", first)
    named = os.fsdecode(match[1]) if match else ""
    return shutil.which(named) if named and is_python(named) else None


def _source(spec: RunSpec, inventory: Inventory) -> str | None:
    """The backend of the GPUs that `spec` names; None if they need no certain build of torch."""
    ids = spec.devices.ids
    if any(i.startswith("cpu:") for i in ids or ()) or not (ids or spec.devices.pick):
        return None
    return inventory.source if inventory.source in _VENDORS else None


def _why(python: Seen, source: str, inventory: Inventory) -> str | None:
    found = unfit(python.path, python.build, source, inventory.cuda)
    if found is None:
        return None
    why, install = found
    return (f"{why}. Install one that can: {install}; or name an interpreter that has such a build "
            "in run.python; or train on CPU slots (in the panel: c; --devices cpu:0)")


def unfit(python: str, build: Build | None, source: str, cuda: str | None
          ) -> tuple[str, str] | None:
    """Why the torch of the interpreter `python` can't use the GPUs of the backend `source`, and
    what installs one that can; None where it can. `cuda`: the newest CUDA that the driver takes."""
    gpu, needs = _VENDORS.get(source, ("", ""))
    if not gpu or build is None or getattr(build, needs) is not None:
        return None
    what = f"for AMD's ROCm {build.hip}" if build.hip else \
        f"for NVIDIA's CUDA {build.cuda}" if build.cuda else "for the processor alone"
    driver = f" (its driver takes CUDA {cuda})" if source == "nvml" and cuda else ""
    return (f"torch {build.version} is built {what} and can't use {gpu}{driver}",
            install(python, source, cuda))


def install(python: str, source: str, cuda: str | None) -> str:
    """The command that installs the build of torch that fits the driver."""
    major = (cuda or "").partition(".")[0]
    wanted = _ROCM if source == "amd" else next(
        (wheels for m, wheels in _CUDA if major.isdecimal() and int(major) >= m), "cu126")
    return f"{python} -m pip install --force-reinstall torch --index-url {_INDEX}{wanted}"
