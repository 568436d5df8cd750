"""Makes an environment for a Python and what is to be installed in it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


class NotToBeHad(Exception):
    """There is no such interpreter here, or what it is to have can't be installed in it."""


def interpreter(version: str, given: dict[str, str]) -> str:
    """A Python of that version, "3.9": one that was given, on the PATH, of pyenv, or fetched by uv.
    Raises NotToBeHad."""
    if version in given:
        return given[version]
    candidates = [shutil.which(f"python{version}"), *_of_pyenv(version)]
    for found in filter(None, candidates):
        if _version(found) == version:
            return found
    uv = shutil.which("uv")
    if uv is None:
        raise NotToBeHad(f"no python{version} on the PATH, and no uv that could fetch it")
    if subprocess.run([uv, "python", "install", "--quiet", version], check=False).returncode:
        raise NotToBeHad(f"no python{version} on the PATH, and uv could not fetch it")
    done = subprocess.run([uv, "python", "find", version], capture_output=True, text=True,
                          check=False)
    if done.returncode:
        raise NotToBeHad(f"uv does not find python{version}: {done.stderr.strip()}")
    return done.stdout.strip()


def environment(folder: Path, python: str, *what: str) -> str:
    """The interpreter of an environment in `folder` with `what` installed. One that is there is
    taken as it is. Raises NotToBeHad."""
    made = folder / "bin" / "python"
    if (folder / ".ready").exists():
        return str(made)
    uv = shutil.which("uv")
    if uv is not None:
        steps = [[uv, "venv", "--quiet", "--clear", "--python", python, str(folder)],
                 [uv, "pip", "install", "--quiet", "--python", str(made), *what]]
    else:
        steps = [[python, "-m", "venv", "--clear", str(folder)],
                 [str(made), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                  *what]]
    for step in steps:
        done = subprocess.run(step, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no reason given"]
            raise NotToBeHad(f"{step[0]} {step[1]}: {lines[-1]}")
    (folder / ".ready").touch()
    return str(made)


def torch_of(python: str) -> str | None:
    """The version of the torch in an environment; None: there is none."""
    ask = "import importlib.metadata as m; print(m.version('torch'))"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def version_of(python: str) -> str:
    """The whole version of an interpreter, "3.9.18"."""
    done = subprocess.run([python, "-c", "import platform; print(platform.python_version())"],
                          capture_output=True, text=True, check=False)
    return done.stdout.strip()


def reinstall(python: str, wheel: str) -> None:
    """Install a wheel in place of an older one of the same version, without what it depends on."""
    uv = shutil.which("uv")
    install = [uv, "pip", "install", "--quiet", "--python", python] if uv is not None else \
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "--no-deps", "--reinstall" if uv else "--force-reinstall", wheel],
                   check=True)


def _of_pyenv(version: str) -> list[str]:
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    return sorted(map(str, root.glob(f"{version}.*/bin/python")))


def _version(python: str) -> str | None:
    done = subprocess.run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                          capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
