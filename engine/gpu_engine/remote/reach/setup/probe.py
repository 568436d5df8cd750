"""What another machine has that this program could be set up with: interpreters, torch, uv."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from gpu_engine.common.clean import clean
from gpu_engine.remote.reach import reasons, shell, ssh
from gpu_engine.remote.reach.channel import Unreachable
from gpu_engine.remote.reach.records import Host

_SECONDS = 60.0
_MOST = 256 << 10
_NAMES = ("python3.14", "python3.13", "python3.12", "python3.11", "python3", "python",
          "/usr/bin/python3", "/usr/local/bin/python3", "$HOME/.venv/bin/python",
          "$HOME/miniconda3/bin/python", "$HOME/anaconda3/bin/python", "/opt/conda/bin/python")
_UV = ("$HOME/.local/bin/uv", "$HOME/.cargo/bin/uv", "/usr/local/bin/uv")

# No single quotes in it: it stands between two.
_LOOK = """
import json, os, re, sys, sysconfig
from importlib.util import find_spec
torch, site = None, None
spec = find_spec("torch")
if spec is not None and spec.origin:
    folder = os.path.dirname(spec.origin)
    site = os.path.dirname(folder)
    try:
        with open(os.path.join(folder, "version.py")) as file:
            found = re.search(r"__version__[^=]*= *.([0-9][^ \\x27\\x22]*)", file.read(65536))
        torch = found.group(1) if found else None
    except OSError:
        pass
home = os.statvfs(os.path.expanduser("~"))
print(json.dumps({"path": sys.executable, "version": list(sys.version_info[:3]),
    "platform": sysconfig.get_platform(), "torch": torch, "site": site,
    "venv": find_spec("venv") is not None,
    "free": home.f_bavail * home.f_frsize}))
"""


_Text = Annotated[str, Meta(min_length=1, max_length=1024)]


class Python(Struct, frozen=True):
    """An interpreter there, as it tells of itself."""

    path: Annotated[str, Meta(pattern="^/", max_length=1024)]
    version: tuple[int, int, int]
    platform: _Text
    """As `sysconfig.get_platform` has it: "linux-x86_64"."""
    torch: _Text | None = None
    """The version of the torch that it has."""
    site: _Text | None = None
    """The folder in which that torch lies."""
    venv: bool = False
    free: int | None = None
    """Bytes free in the home."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was found there."""

    pythons: tuple[Python, ...]
    """Each interpreter once, in the order in which they were looked for."""
    uv: str | None
    free: int | None
    """Bytes free in the home."""


def inspect(host: Host, python: str | None = None) -> Found:
    """Look around on `host`; `python` names an interpreter to be looked at first. Raises
    Unreachable."""
    word = secrets.token_hex(8)
    ran = shell.answer(host, word, script(word, python), _SECONDS, most=_MOST)
    if f"{word} end" not in ran.out:
        raise Unreachable(host.name, reasons.why(host, ran.out, ran.code, greeted=True))
    return read(ran.out)


def script(word: str, python: str | None) -> bytes:
    """What a shell there is told."""
    names = [ssh.quoted(python)] if python else []
    names += [f'"{name}"' for name in _NAMES]
    uv = " ".join(f'"{name}"' for name in _UV)
    return (f"printf '%s\\n' {word}\ncd /\n"
            f"for u in uv {uv}; do if command -v \"$u\" >/dev/null 2>&1; then "
            "printf 'uv %s\\n' \"$(command -v \"$u\")\"; break; fi; done\n"
            f"for p in {' '.join(names)}; do if command -v \"$p\" >/dev/null 2>&1; then "
            f"\"$p\" -c '{_LOOK}' </dev/null 2>/dev/null; fi; done\n"
            f"printf '%s end\\n' {word}\n").encode()


def read(out: str) -> Found:
    """What a shell there has answered. What can't be understood is passed over."""
    pythons: dict[str, Python] = {}
    uv, free = None, None
    for line in out.splitlines()[:200]:
        if line.startswith("uv /") and line.isprintable():
            uv = uv or line[3:1024]
        elif line.startswith("{"):
            found = _python(line)
            if found is not None:
                pythons.setdefault(found.path, found)
                free = found.free
    return Found(tuple(pythons.values()), uv, free)


def _python(line: str) -> Python | None:
    try:
        found = msgspec.json.decode(line[:65536], type=Python)
    except (ValueError, RecursionError):
        return None
    texts = (found.path, found.platform, found.torch or "", found.site or "")
    return found if all(clean(text) == text for text in texts) else None
