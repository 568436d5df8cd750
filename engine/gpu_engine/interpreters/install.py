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
    """What to type so that this interpreter has torch. uv chooses the build that the driver runs;
    pip takes PyPI's."""
    if ask.ours(python):
        return torch_here()
    if by_uv(python) or shutil.which("uv"):
        return f"uv pip install --python {shlex.quote(python)} torch --torch-backend=auto"
    return _install(python, "torch")


def torch_here() -> str:
    """What to type so that the folder one is in has an environment with torch, which the runs of
    this folder then take."""
    if shutil.which("uv"):
        return "uv venv && uv pip install torch --torch-backend=auto"
    return "python3 -m venv .venv && .venv/bin/python -m pip install torch"


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
