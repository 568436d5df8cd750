"""Environments as `python -m venv` makes them, without the second that it takes."""

from __future__ import annotations

import sys
from pathlib import Path

VERSION = """from typing import Optional
__version__ = '{version}'
cuda: Optional[str] = {cuda!r}
hip: Optional[str] = {hip!r}
"""


def environment(prefix: Path, *, system: bool = False) -> Path:
    """A virtual environment in `prefix`; returns its site-packages. `system`: whether it sees the
    packages of the system and of the user."""
    base = Path(sys._base_executable)  # pyright: ignore[reportAttributeAccessIssue]
    site = prefix / "lib" / "python{}.{}".format(*sys.version_info[:2]) / "site-packages"
    site.mkdir(parents=True)
    (prefix / "bin").mkdir()
    (prefix / "bin" / "python").symlink_to(base)
    (prefix / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = {str(system).lower()}\n")
    return site


def torch_in(site: Path, version: str = "2.13.0+cu130", cuda: str | None = "13.0",
             hip: str | None = None) -> Path:
    """A torch of two files, which fails if it is imported; returns its folder."""
    folder = site / "torch"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").write_text("raise SystemExit('torch was imported')")
    (folder / "version.py").write_text(VERSION.format(version=version, cuda=cuda, hip=hip))
    return folder
