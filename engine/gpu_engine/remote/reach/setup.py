"""Bringing this program to another machine, over the same ssh: `gpu-engine hosts setup`.

What runs here, this program and the packages that it needs but for torch, is sent as files, so that
nothing is downloaded: into an environment of its own, made from an interpreter there of the same
Python as here. The torch beside that interpreter is used.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import re
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
from gpu_engine.remote.reach.records import Host

OURS = "gpu-panel"
_LOOKING, _SECONDS = 60.0, 600.0
_MOST = 1 << 20
_ROOM = 200 << 20
_HERE = "{}.{}".format(*sys.version_info)
_NAMES = (f"python{_HERE}", "python3", "python", f"/usr/bin/python{_HERE}",
          "$HOME/.venv/bin/python", "$HOME/miniconda3/bin/python", "$HOME/anaconda3/bin/python",
          "/opt/conda/bin/python")
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")

# No single quotes in it: it stands between two.
_LOOK = """
import json, os, sys, sysconfig
from importlib.util import find_spec
spec = find_spec("torch")
home = os.statvfs(os.path.expanduser("~"))
print(json.dumps({"path": sys.executable, "version": "%d.%d" % sys.version_info[:2],
    "platform": sysconfig.get_platform(), "venv": find_spec("venv") is not None,
    "torch": os.path.dirname(os.path.dirname(spec.origin)) if spec and spec.origin else None,
    "free": home.f_bavail * home.f_frsize}))
"""

_Text = Annotated[str, Meta(min_length=1, max_length=1024)]


class Python(Struct, frozen=True):
    """An interpreter there, as it tells of itself."""

    path: Annotated[str, Meta(pattern="^/", max_length=1024)]
    version: _Text
    platform: _Text
    """As `sysconfig.get_platform` has it: "linux-x86_64"."""
    venv: bool
    torch: _Text | None
    """The folder that its torch lies in; None: it has none."""
    free: int
    """Bytes free in the home."""


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
        torch = f"torch in {self.base.torch} is used, with the packages beside it" \
            if self.base.torch else \
            "without torch: its devices are seen, and no run can start there"
        said = [f"into ~/{ssh.SETUP} on {self.host.name}, a folder of its own; nothing else there "
                "is changed", f"gpu-panel and the packages that it needs ({size}) are sent",
                f"with {self.base.path} (Python {self.base.version})", torch]
        if self.host.python:
            said.append(f"python = \"{self.host.python}\" is taken out of hosts.toml, as the new "
                        "interpreter takes its place")
        return said


def decide(host: Host, pythons: list[Python], python: str | None, files: dict[str, bytes]) -> Plan:
    """Raises UserError where it can't be done. `python`: the interpreter that was asked for."""
    fitting = [p for p in pythons if p.venv and p.version == _HERE
               and p.platform == sysconfig.get_platform()
               and (python is None or p.path.endswith(python.removeprefix("~")))]
    if not fitting:
        seen = ", ".join(f"{p.path} ({p.version})" for p in pythons) or "no Python"
        raise UserError(f"{host.name}: what runs here needs Python {_HERE} on "
                        f"{sysconfig.get_platform()} there; found {seen}. Name another with "
                        "--python, or install gpu-panel there by uv or pip, and say where it is "
                        "(python in hosts.toml)")
    base = min(fitting, key=lambda p: p.torch is None)
    if base.free < _ROOM:
        raise UserError(f"{host.name}: {units.size(base.free)} left in the home there; "
                        f"{units.size(_ROOM)} are needed")
    return Plan(host, base, files)


def inspect(host: Host, python: str | None = None) -> list[Python]:
    """The interpreters on `host`; `python` names one to be looked at first. Raises Unreachable."""
    names = [ssh.quoted(python)] if python else []
    names += [f'"{name}"' for name in _NAMES]
    ran = call.run(host, (
        f"cd /\nfor p in {' '.join(names)}; do if command -v \"$p\" >/dev/null 2>&1; then "
        f"\"$p\" -c '{_LOOK}' </dev/null 2>/dev/null; fi; done\n").encode(), _LOOKING, most=_MOST)
    return read(ran.out)


def read(out: str) -> list[Python]:
    """What a shell there has answered. What can't be understood is passed over."""
    pythons: dict[str, Python] = {}
    for line in out.splitlines()[:100]:
        try:
            python = msgspec.json.decode(line[:65536], type=Python)
        except (ValueError, RecursionError):
            continue
        texts = (python.path, python.version, python.platform, python.torch or "")
        if all(clean(text) == text for text in texts):
            pythons.setdefault(python.path, python)
    return list(pythons.values())


def bring(plan: Plan) -> None:
    """Set it up. What was there before stays in use until the new one has been tried. Raises
    Unreachable, UserError with what the host said."""
    word = secrets.token_hex(8)
    ran = call.run(plan.host, script(plan, word), _SECONDS, most=_MOST)
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
        archive.writestr("install_there.py",
                         Path(__file__).with_name("install_there.py").read_bytes())
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


# --- what is sent --------------------------------------------------------------------------------

def files() -> dict[str, bytes]:
    """This program and all that it needs but for torch, which is gigabytes and depends on the
    other machine's driver. Raises UserError where they can't be read."""
    try:
        ours = metadata.distribution(OURS)
        needed = _needed(ours)
    except metadata.PackageNotFoundError as err:
        raise UserError(f"{err.name or OURS} is not installed here, so that it can't be brought "
                        "elsewhere; install gpu-panel with pip or uv") from None
    engine = Path(gpu_engine.__file__).parent
    found = dict(_folder(engine, "gpu_engine"))
    panel = importlib.util.find_spec("gpu_panel")
    if panel is not None and panel.origin:
        found |= _folder(Path(panel.origin).parent, "gpu_panel")
    if not (engine / "shipped_presets").is_dir():  # a checkout keeps them at its root
        found |= _folder(engine.parents[1] / "presets", "gpu_engine/shipped_presets")
    found[f"gpu_panel-{ours.version}.dist-info/METADATA"] = (
        ours.read_text("METADATA") or "").encode()
    for package in needed:
        listed = package.files
        if listed is None:
            raise UserError(f"{package.metadata['Name']} was not installed from a wheel, so that "
                            "it can't be brought elsewhere; install it anew with pip or uv")
        found |= {file.as_posix(): path.read_bytes() for file in listed
                  if not file.is_absolute() and ".." not in file.parts and file.suffix != ".pyc"
                  and (path := Path(str(file.locate()))).is_file()}
    return found


def _needed(ours: metadata.Distribution) -> list[metadata.Distribution]:
    """Every package below ours, each once. A requirement that is not installed here is for other
    machines than this one."""
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, tuple[str, ...]]] = set()
    todo: list[tuple[metadata.Distribution, tuple[str, ...]]] = [(ours, ())]
    while todo:
        owner, wanted = todo.pop()
        for text in owner.requires or []:
            match = _REQUIREMENT.match(text)
            if match is None:
                raise UserError(f"{text!r} is no requirement of a package")
            extras = tuple(e.strip() for e in (match[2] or "").split(",") if e.strip())
            name = re.sub(r"[-_.]+", "-", match[1]).lower()
            conditions = _EXTRA.findall(text)
            if name == "torch" or (name, extras) in seen \
                    or (conditions and not set(conditions) & set(wanted)):
                continue
            seen.add((name, extras))
            try:
                found[name] = metadata.distribution(name)
            except metadata.PackageNotFoundError:
                continue
            todo.append((found[name], extras))
    return [found[name] for name in sorted(found)]


def _folder(folder: Path, below: str) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".pyc" and "__pycache__" not in path.parts:
            yield f"{below}/{path.relative_to(folder).as_posix()}", path.read_bytes()
