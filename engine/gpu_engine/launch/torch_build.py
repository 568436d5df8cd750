"""Which build of torch the ranks will get, without importing it.

A build for the processor alone on a machine with GPUs is the commonest mistake there is, and a
rank would say so only after seconds, in torch's words. torch/version.py holds it as plain
assignments (`cuda: Optional[str] = None`, written by PyTorch's tools/generate_torch_version.py),
so the file is read and nothing is executed.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_engine.common.errors import Problem
from gpu_engine.common.files import open_file
from gpu_engine.devices.records import Inventory
from gpu_engine.plan.own_command import is_python
from gpu_engine.spec.schema import RunSpec

_ASK = ("import sys; sys.path.pop(0); import importlib.util as u; s = u.find_spec('torch'); "
        "print(s.origin if s and s.origin else '')")
"""Finds torch and does not import it. The first entry of the path is this line's own."""
_TIMEOUT = 10.0
_ASK_AGAIN = 10.0
"""Seconds after which an interpreter in which there was no torch is asked again."""
_WHEELS = ((13, "cu130"), (12, "cu126"), (11, "cu118"))
"""The driver's CUDA, major version, and PyTorch's wheels that any such driver runs: CUDA's minor
versions are compatible within a major one."""


@dataclass(frozen=True, slots=True)
class Build:
    """What torch/version.py says."""

    version: str
    cuda: str | None
    """The CUDA that it was built for, "13.0"; None: none."""
    hip: str | None
    """The same of AMD's ROCm."""


@dataclass(slots=True)
class _Found:
    file: Path | None
    at: float


_known: dict[str, _Found] = {}
"""Interpreter → where its torch is: asking takes a process."""


def problem(spec: RunSpec, inventory: Inventory) -> Problem | None:
    """What is wrong with the torch of a task's ranks on the GPUs that `spec` names; None where
    nothing is, or where it can't be told."""
    if spec.task.use is None or not _on_nvidia(spec, inventory):
        return None
    why = _why(spec.run.python or sys.executable, inventory)
    return Problem("run.python", spec.run.python, why) if why else None


def doubt(spec: RunSpec, inventory: Inventory) -> str | None:
    """What `problem` says, for a person's own command: a doubt, as it may train without torch."""
    command = spec.task.command
    if not command or not _on_nvidia(spec, inventory):
        return None
    python = interpreter_of(command)
    return _why(python, inventory) if python else None


def interpreter_of(command: Sequence[str]) -> str | None:
    """The Python that a command runs in: `python` itself, or what a script of pip's (torchrun,
    accelerate) names in its first line. None where that can't be told (`conda run`, `./go.sh`)."""
    found = shutil.which(command[0])
    if found is None:
        return None
    if is_python(command[0]):
        return found
    try:
        with open_file(Path(found)) as file:
            first = file.readline(512)
    except OSError:
        return None
    match = re.fullmatch(rb"#!\s*(\S+)\s*", first)
    named = os.fsdecode(match[1]) if match else ""
    return named if named and is_python(named) and shutil.which(named) else None


def build_of(python: str) -> Build | None:
    """The torch that `python` would import; None if there is none or it can't be read."""
    found = _known.get(python)
    if found is None or (found.file is None and time.monotonic() - found.at > _ASK_AGAIN):
        found = _known[python] = _Found(_where(python), time.monotonic())
    if found.file is None:
        return None
    try:
        with open_file(found.file) as file:
            text = file.read(1 << 16)
    except OSError:  # it was taken away meanwhile
        del _known[python]
        return None
    return read(text)


def read(text: bytes | str) -> Build | None:
    """What a torch/version.py says, by its assignments; None where it says nothing of CUDA."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    said: dict[str, object] = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else \
            [node.target] if isinstance(node, ast.AnnAssign) else []
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant):
            said |= {t.id: value.value for t in targets if isinstance(t, ast.Name)}
    if "cuda" not in said:
        return None
    return Build(str(said.get("__version__", "?")), _text(said["cuda"]), _text(said.get("hip")))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _where(python: str) -> Path | None:
    """torch/version.py of an interpreter."""
    if _same(python, sys.executable):
        try:
            spec = importlib.util.find_spec("torch")  # of a top-level name: imports nothing
        except (ImportError, ValueError):
            return None
        origin = spec.origin if spec is not None else None
    else:
        try:
            done = subprocess.run([python, "-c", _ASK], stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, errors="replace",
                                  timeout=_TIMEOUT, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        origin = done.stdout.strip().rpartition("\n")[2] if done.returncode == 0 else None
    return Path(origin).with_name("version.py") if origin else None


def _same(python: str, other: str) -> bool:
    # Not by what a link points to: a virtual environment's python is a link to the base's.
    return os.path.abspath(shutil.which(python) or python) == os.path.abspath(other)  # noqa: PTH100


def _on_nvidia(spec: RunSpec, inventory: Inventory) -> bool:
    if inventory.source != "nvml":
        return False
    ids = spec.devices.ids
    return bool(ids or spec.devices.pick) and not any(i.startswith("cpu:") for i in ids or ())


def _why(python: str, inventory: Inventory) -> str | None:
    build = build_of(python)
    if build is None or build.cuda is not None:
        return None
    what = f"for AMD's ROCm {build.hip}" if build.hip else "for the processor alone"
    major = (inventory.cuda or "").partition(".")[0]
    wheels = next((w for m, w in _WHEELS if major.isdecimal() and int(major) >= m), "cu126")
    driver = f" (its driver takes CUDA {inventory.cuda})" if inventory.cuda else ""
    return (f"torch {build.version} is built {what} and can't use an NVIDIA GPU{driver}. Install "
            f"one that can: {python} -m pip install --force-reinstall torch --index-url "
            f"https://download.pytorch.org/whl/{wheels}; or name an interpreter that has such a "
            "build in run.python; or train on CPU slots (in the panel: c; --devices cpu:0)")
