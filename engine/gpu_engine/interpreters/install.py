"""The command that brings torch, or what gpu-panel's own extras need, into an environment.

It names only what can be had: gpu-panel itself is on no index, the packages that it needs are."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path

from gpu_engine.interpreters import ask
from gpu_engine.interpreters.candidates import environment_of


def torch_into(python: str) -> str:
    """What to type so that this interpreter has torch."""
    return own_place() if ask.ours(python) else _install(python, "torch")


def own_place() -> str:
    """What to type so that gpu-panel makes an environment with torch: see `own_torch`."""
    there = shutil.which("gpu-engine")
    ours = there is not None and Path(there).resolve().parent == Path(sys.executable).parent
    program = "gpu-engine" if ours else f"{shlex.quote(sys.executable)} -P -m gpu_engine"
    return f"{program} torch --install"


def extra(name: str) -> str:
    """What to type so that gpu-panel has what this extra of it needs."""
    try:
        needed = metadata.requires("gpu-panel") or []
    except metadata.PackageNotFoundError:  # started out of its folder
        needed = []
    what = [r.partition(";")[0].strip() for r in needed
            if re.search(rf"""extra\s*==\s*['"]{re.escape(name)}['"]""", r)] or [name]
    if Path(sys.prefix, "pipx_metadata.json").is_file():
        return f"pipx inject gpu-panel {shlex.join(what)}"
    return _install(sys.executable, *what)


def is_environment(python: str) -> bool:
    """Whether the interpreter is that of a virtual or conda environment."""
    prefix = environment_of(python)
    return (prefix / "pyvenv.cfg").is_file() or (prefix / "conda-meta").is_dir()


def managed(python: str) -> bool:
    """Whether the interpreter is the system's, whose pip refuses to install into it (PEP 668)."""
    return not is_environment(python) and any(
        environment_of(python).glob("lib/python3*/EXTERNALLY-MANAGED"))


def by_uv(python: str) -> bool:
    """Whether uv has made the interpreter's environment."""
    try:
        return "\nuv =" in "\n" + (environment_of(python) / "pyvenv.cfg").read_text()
    except (OSError, ValueError):
        return False


def _install(python: str, *what: str) -> str:
    if by_uv(python):  # it has no pip
        return f"uv pip install --python {shlex.quote(python)} {shlex.join(what)}"
    return f"{shlex.quote(python)} -m pip install {shlex.join(what)}"
