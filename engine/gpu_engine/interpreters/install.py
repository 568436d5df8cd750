"""The command that brings torch, or gpu-panel's own extras, into an environment."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from gpu_engine.interpreters import ask
from gpu_engine.interpreters.near import environment_of


def torch_into(python: str) -> str:
    """What to type so that this interpreter has torch."""
    if ask.ours(python):
        return extra("torch")
    return _install(python, "torch")


def extra(name: str) -> str:
    """What to type so that gpu-panel has this extra."""
    what = f"gpu-panel[{name}]"
    if Path(sys.prefix, "uv-receipt.toml").is_file():
        return f"uv tool install {shlex.quote(what)}"
    if Path(sys.prefix, "pipx_metadata.json").is_file():
        return f"pipx install --force {shlex.quote(what)}"
    return _install(sys.executable, what)


def is_environment(python: str) -> bool:
    """Whether the interpreter is that of a virtual or conda environment."""
    prefix = environment_of(python)
    return (prefix / "pyvenv.cfg").is_file() or (prefix / "conda-meta").is_dir()


def managed(python: str) -> bool:
    """Whether the interpreter is the system's, whose pip refuses to install into it (PEP 668)."""
    return not is_environment(python) and any(
        environment_of(python).glob("lib/python3*/EXTERNALLY-MANAGED"))


def _install(python: str, what: str) -> str:
    try:
        by_uv = "\nuv =" in "\n" + (environment_of(python) / "pyvenv.cfg").read_text()
    except (OSError, ValueError):
        by_uv = False
    if by_uv:  # it has no pip
        return f"uv pip install --python {shlex.quote(python)} {shlex.quote(what)}"
    return f"{shlex.quote(python)} -m pip install {shlex.quote(what)}"
