"""Bringing this program to another machine, over the same ssh: `gpu-engine hosts setup`.

What answers there, the engine and the packages that it needs but for torch, is sent as files, so
that nothing is downloaded: into an environment of its own, made from an interpreter there of the
same Python as here. The torch beside that interpreter is used.
"""

from __future__ import annotations

import base64
import io
import json
import secrets
import shlex
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

import gpu_engine
from gpu_engine import __version__
from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.remote.reach import call, ssh
from gpu_engine.remote.reach.hosts import Host

PACKAGES = ("click", "msgspec", "nvidia-ml-py", "platformdirs", "psutil", "tomlkit")
"""What the engine needs, none of which needs another. torch is gigabytes, and depends on the other
machine's driver."""
_LOOKING, _SECONDS = 60.0, 600.0
_PYTHON = "{}.{}".format(*sys.version_info)
_KIND = f"Python {_PYTHON} on {sysconfig.get_platform()}"
_NAMES = (f"python{_PYTHON}", "python3", "python", f"/usr/bin/python{_PYTHON}",
          "$HOME/.venv/bin/python", "$HOME/miniconda3/bin/python", "$HOME/anaconda3/bin/python",
          "/opt/conda/bin/python")

# No single quotes in it: it stands between two.
_LOOK = """
import json, os, sys, sysconfig
from importlib.util import find_spec
spec = find_spec("torch")
kind = "Python %d.%d on " % sys.version_info[:2] + sysconfig.get_platform()
print(json.dumps({"path": sys.executable, "kind": kind,
    "torch": os.path.dirname(os.path.dirname(spec.origin)) if spec and spec.origin else None}))
"""

_Text = Annotated[str, Meta(min_length=1, max_length=1024)]


class Python(Struct, frozen=True):
    """An interpreter there, as it tells of itself."""

    path: Annotated[str, Meta(pattern="^/", max_length=1024)]
    kind: _Text
    """Its version and platform: "Python 3.12 on linux-x86_64"."""
    torch: _Text | None
    """The folder that its torch lies in; None: it has none."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done on `host`, with the interpreter `base` there."""

    host: Host
    base: Python
    files: dict[str, bytes]
    """What is sent, by the paths below site-packages."""

    def sentences(self) -> list[str]:
        """For the person, before anything is done."""
        size = units.size(sum(map(len, self.files.values())))
        said = [f"into ~/{ssh.SETUP} on {self.host.name}, a folder of its own; nothing else there "
                "is changed", f"gpu-engine and the packages that it needs ({size}) are sent",
                f"with {self.base.path} ({self.base.kind})",
                f"torch in {self.base.torch} is used, with the packages beside it"
                if self.base.torch else
                "without torch: its devices are seen, and no run can start there"]
        if self.host.python:
            said.append(f"python = \"{self.host.python}\" is taken out of hosts.toml, as the new "
                        "interpreter takes its place")
        return said


def decide(host: Host, pythons: list[Python], python: str | None, files: dict[str, bytes]) -> Plan:
    """Raises UserError where it can't be done. `python`: the interpreter that was asked for."""
    fitting = [p for p in pythons if p.kind == _KIND
               and (python is None or p.path.endswith(python.removeprefix("~")))]
    if not fitting:
        seen = ", ".join(f"{p.path} ({p.kind})" for p in pythons) or "no Python"
        raise UserError(f"{host.name}: what runs here needs {_KIND} there; found {seen}. Name "
                        "another with --python, or install gpu-panel there by uv or pip, and say "
                        "where it is (python in hosts.toml)")
    return Plan(host, min(fitting, key=lambda p: p.torch is None), files)


def inspect(host: Host, python: str | None = None) -> list[Python]:
    """The interpreters on `host`; `python` names one to be looked at first. What can't be
    understood of what it says is passed over. Raises Unreachable."""
    names = [ssh.quoted(python)] if python else []
    names += [f'"{name}"' for name in _NAMES]
    ran = call.run(host, (
        f"cd /\nfor p in {' '.join(names)}; do if command -v \"$p\" >/dev/null 2>&1; then "
        f"\"$p\" -c '{_LOOK}' </dev/null 2>/dev/null; fi; done\n").encode(), _LOOKING)
    return read(ran.out)


def read(out: str) -> list[Python]:
    """What a shell there has answered."""
    pythons: dict[str, Python] = {}
    for line in out.splitlines()[:100]:
        try:
            python = msgspec.json.decode(line[:65536], type=Python)
        except (ValueError, RecursionError):
            continue
        if all(clean(text) == text for text in (python.path, python.kind, python.torch or "")):
            pythons.setdefault(python.path, python)
    return list(pythons.values())


def bring(plan: Plan) -> None:
    """Set it up. What was there before stays in use until the new one has been tried. Raises
    Unreachable, UserError with what the host said."""
    word = secrets.token_hex(8)
    ran = call.run(plan.host, script(plan, word), _SECONDS)
    if f"{word} done" not in ran.out:
        said = [clean(line, 400) for line in ran.out.splitlines() if line.strip()]
        raise UserError(f"{plan.host.name}: it could not be set up: "
                        f"{said[-1] if said else f'it ended with {ran.code}'}")


def script(plan: Plan, word: str) -> bytes:
    """What the shell there is told: everything is sent in it. `word` says that all went well."""
    place = PurePosixPath(ssh.SETUP)
    sent = io.BytesIO()
    with zipfile.ZipFile(sent, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in plan.files.items():
            archive.writestr(f"site/{name}", data)
        archive.writestr("plan.json", json.dumps({
            "root": f"~/{place.parent}", "place": place.name, "torch": plan.base.torch,
            "name": f"host-{__version__}-{secrets.token_hex(4)}"}))
        archive.write(Path(__file__).with_name("install_there.py"), "install_there.py")
    unpack = ("import base64, io, sys, zipfile; zipfile.ZipFile(io.BytesIO(base64.b64decode("
              "sys.stdin.read()))).extractall(sys.argv[1])")
    return b"\n".join([
        b"set -e", b"umask 077", b"cd /", b"base=" + shlex.quote(plan.base.path).encode(),
        f'mkdir -p "$HOME/{place.parent}"'.encode(),
        f'there=$(mktemp -d "$HOME/{place.parent}/.sent-XXXXXX")'.encode(),
        b"trap 'rm -rf \"$there\"' EXIT",
        f"\"$base\" -c '{unpack}' \"$there\" <<'{word}'".encode(),
        base64.encodebytes(sent.getvalue()).rstrip(), word.encode(),
        b'"$base" "$there/install_there.py" "$there" </dev/null',
        f"printf '%s done\\n' {word}".encode(), b""])


def files() -> dict[str, bytes]:
    """The engine and PACKAGES, as they are here. Raises UserError where they can't be read."""
    engine = Path(gpu_engine.__file__).parent
    found = dict(_folder(engine, "gpu_engine"))
    if not (engine / "shipped_presets").is_dir():  # a checkout keeps them at its root
        found |= _folder(engine.parents[1] / "presets", "gpu_engine/shipped_presets")
    for name in PACKAGES:
        try:
            listed = metadata.files(name) or []
        except metadata.PackageNotFoundError:
            listed = []
        of_package = {file.as_posix(): path.read_bytes() for file in listed
                      if not file.is_absolute() and ".." not in file.parts
                      and file.suffix != ".pyc" and (path := Path(str(file.locate()))).is_file()}
        if not of_package:
            raise UserError(f"{name} was not installed here from a wheel, so that it can't be "
                            "brought elsewhere; install it anew with pip or uv")
        found |= of_package
    return found


def _folder(folder: Path, below: str) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".pyc" and "__pycache__" not in path.parts:
            yield f"{below}/{path.relative_to(folder).as_posix()}", path.read_bytes()
