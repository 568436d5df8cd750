"""How this program will be set up on another machine: decided from what was found there. Pure."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_engine.common import units
from gpu_engine.common.errors import UserError
from gpu_engine.remote.reach import ssh
from gpu_engine.remote.reach.records import Host
from gpu_engine.remote.reach.setup.packages import Package
from gpu_engine.remote.reach.setup.probe import Found, Python

OLDEST = (3, 11)
OLDEST_TORCH = (2, 10)
_ROOM = 200 << 20
_ROOM_TORCH = 8 << 30


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done on `host`."""

    host: Host
    base: Python | None
    """The interpreter that ours is made from; None: uv brings one."""
    uv: str | None
    torch: str
    """"linked": the one that `base` has is used; "download": it is brought from the package
    index; "none": there is none."""
    index: bool
    """Whether packages come from the package index there, as those of here don't fit."""
    name: str
    """The new folder's."""
    carried: tuple[Package, ...]
    drops_python: bool
    """Whether `python` in hosts.toml is to be taken out, as ours takes its place."""

    def sentences(self) -> list[str]:
        """For the person, before anything is done."""
        base = self.base
        size = units.size(sum(len(data) for p in self.carried for data in p.files.values()))
        what = f"gpu-panel and {len(self.carried) - 1} packages that it needs ({size}) are sent" \
            if not self.index else \
            f"gpu-panel ({size}) is sent; the packages that it needs come from the package index"
        said = [f"into ~/{ssh.SETUP} on {self.host.name}, a folder of its own; nothing else there "
                "is changed",
                what,
                f"with {base.path} (Python {'.'.join(map(str, base.version))})" if base is not None
                else "with a Python that uv downloads there"]
        if self.torch == "linked" and base is not None:
            said.append(f"torch {base.torch} in {base.site} is used, with the packages beside it")
        elif self.torch == "download":
            said.append("torch is downloaded there from the package index: some GiB "
                        "(--no-torch leaves it out)")
        else:
            said.append("without torch: its devices are seen, and no run can start there")
        if self.drops_python:
            said.append(f"python = \"{self.host.python}\" is taken out of hosts.toml, as the new "
                        "interpreter takes its place")
        return said


def decide(host: Host, found: Found, packages: Sequence[Package], digest: str, version: str, *,
           python: str | None = None, torch: bool = True) -> Plan:
    """Raises UserError where it can't be done. `python`: the interpreter that was asked for;
    `torch`: whether it may be downloaded."""
    able = [p for p in found.pythons if p.version[:2] >= OLDEST and (p.venv or found.uv)]
    wanted = python or host.python
    if wanted is not None:
        named = [p for p in able if _same(p.path, wanted)]
        if python is not None and not named:
            there = next((p for p in found.pythons if _same(p.path, python)), None)
            raise UserError(f"{host.name}: {python} " + (
                "was not found there" if there is None else
                f"is Python {'.'.join(map(str, there.version))}; 3.11 or newer is needed"))
        able = named or able
    # Torch is gigabytes, and packages that fit need no index.
    base = min(able, key=lambda p: (not _new_enough(p.torch), not _all_fit(packages, p)),
               default=None)
    if base is None and found.uv is None:
        seen = ", ".join(f"{p.path} ({'.'.join(map(str, p.version))})" for p in found.pythons)
        raise UserError(f"{host.name}: no Python 3.11 or newer, and no uv that could bring one; "
                        f"found {seen or 'no Python'}. Name another with --python")
    linked = base is not None and _new_enough(base.torch)
    needed = _ROOM + (_ROOM_TORCH if torch and not linked else 0)
    if found.free is not None and found.free < needed:
        raise UserError(f"{host.name}: {units.size(found.free)} left in the home there; "
                        f"{units.size(needed)} are needed" + (
                            "" if linked or not torch else ", most of it for torch (--no-torch)"))
    index = base is None or not _all_fit(packages, base)
    way = "linked" if linked else "download" if torch else "none"
    made_for = "uv" if base is None else f"{base.path} {base.version} {base.torch}"
    short = hashlib.sha256(made_for.encode()).hexdigest()[:6]
    return Plan(host, base, found.uv, way, index, f"host-{version}-{digest}-{short}",
                tuple(packages[:1] if index else packages), host.python is not None)


def _same(path: str, wanted: str) -> bool:
    return path == wanted or (wanted.startswith("~/") and path.endswith(wanted[1:]))


def _new_enough(torch: str | None) -> bool:
    try:
        major, minor = (torch or "").split(".")[:2]
        return (int(major), int(minor)) >= OLDEST_TORCH
    except ValueError:
        return False


def _all_fit(packages: Sequence[Package], python: Python) -> bool:
    """Whether the packages from here can be used by that interpreter."""
    same = python.platform == sysconfig.get_platform()
    return all(p.fits(python.version, same) for p in packages)
