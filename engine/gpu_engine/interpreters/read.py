"""What a virtual environment has, by its files: nothing of it is executed.

Such an environment is found because it lies in the folder that one is in, or above it. It may have
come with somebody's repository, so it is started for a launch and not for a look.

This repeats of `site` what most environments need: .pth files that name folders, and packages of
the system and of the user where the environment sees them. Code in .pth files, as of an editable
installation, only the interpreter itself could execute.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpu_engine.common.files import open_file
from gpu_engine.interpreters import ask
from gpu_engine.interpreters.ask import Seen

_MOST = 1 << 16
"""Bytes of a file that are read."""
_EDITABLE = ("its torch is an editable installation, which only the interpreter itself finds: "
             "activate the environment, or name it in run.python")


def environment(python: str) -> Seen:
    """What the virtual environment with this `bin/python` has. Takes less than a millisecond."""
    path = ask.located(python)
    if path is None:
        return ask.missing(python)
    prefix = Path(path).parent.parent
    said = _settings(prefix / "pyvenv.cfg")
    version = _version(said)
    sites = list(_sites(prefix, said, version))
    folders = [f for f in os.environ.get("PYTHONPATH", "").split(os.pathsep) if f.startswith("/")]
    for folder in (*map(Path, folders), *sites, *(f for site in sites for f in _named(site))):
        file = folder / "torch" / "version.py"
        if file.is_file() and file.with_name("__init__.py").is_file():
            return Seen(path, version, file, ask.build_of(file))
    editable = any(any(site.glob("torch-*.dist-info")) for site in sites)
    return Seen(path, version, problem=_EDITABLE if editable else None)


def _settings(file: Path) -> dict[str, str]:
    """The lines `key = value` of a pyvenv.cfg."""
    pairs = (line.partition("=") for line in _text(file).splitlines())
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def _version(said: Mapping[str, str]) -> tuple[int, int, int] | None:
    """The Python's, as `venv` and `virtualenv` write it."""
    text = said.get("version") or said.get("version_info") or ""
    found = re.match(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})", text, re.ASCII)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def _sites(prefix: Path, said: Mapping[str, str], version: tuple[int, int, int] | None
           ) -> Iterator[Path]:
    """The folders with its packages, in the interpreter's order."""
    yield from _packages(prefix, version)
    if said.get("include-system-site-packages", "").lower() != "true":
        return
    if not os.environ.get("PYTHONNOUSERSITE"):
        user = os.environ.get("PYTHONUSERBASE") or os.path.expanduser("~/.local")  # noqa: PTH111
        yield from _packages(Path(user), version)
    for root in ("/usr/local", Path(said.get("home") or "/usr/bin").parent):
        yield from _packages(Path(root), version)


def _packages(root: Path, version: tuple[int, int, int] | None) -> Iterator[Path]:
    names = f"python{version[0]}.{version[1]}" if version else "python3.*"
    for pattern in (f"lib/{names}/site-packages", f"lib64/{names}/site-packages",
                    f"lib/{names}/dist-packages", "lib/python3/dist-packages"):  # Debian's
        yield from sorted(root.glob(pattern))


def _named(site: Path) -> Iterator[Path]:
    """The folders that .pth files there name."""
    for file in sorted(site.glob("*.pth")):
        for line in _text(file).splitlines():
            if line.strip() and not line.startswith(("#", "import ", "import\t")):
                yield site / line.strip()


def _text(file: Path) -> str:
    try:
        with open_file(file) as opened:
            return opened.read(_MOST).decode("utf-8", "replace").replace("\0", "")
    except OSError:
        return ""
