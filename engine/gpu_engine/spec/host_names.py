"""Machines and their devices as `devices.hosts` names them. Pure.

"any" and "@lab" stand for several machines, of which the freest is taken: all of a person's hosts
with this machine, and those of a group.

What a person types of a host ends up in the argument list of `ssh`, in names of files and on the
screen, so it is held to few characters before anything is done with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpu_engine.common.errors import UserError

LOCAL = "local"
"""The name of this machine among the hosts: its agent is a child process, without ssh."""
ANY = "any"
SLURM = "slurm"
"""The scheduler, unless a person has a host of that name."""

NAME_HELP = ("letters, digits and . _ - (after a letter or digit), with user@ before it where the "
             "user is another one")
_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]{0,63}@)?[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._/-]{0,127}")
_GROUP = re.compile(r"@[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
DEVICE = re.compile(r"[0-9]{1,4}|cpu:[0-9]{1,4}|(?:GPU|MIG)-[0-9A-Za-z/-]{4,120}")
"""Looks like a device. One that stands alone between commas belongs to the host before it."""


class BadName(UserError, ValueError):
    """A text that is no host's name or no device's id: says which, and what would do."""


@dataclass(frozen=True)
class HostDevices:
    """An entry of `devices.hosts`: a host, and those of its devices that take part."""

    host: str
    ids: tuple[str, ...] = ()
    """Empty: all that it has."""

    @property
    def several(self) -> bool:
        """Whether it stands for several hosts."""
        return self.host == ANY or self.host.startswith("@")

    @property
    def partition(self) -> str | None:
        """The partition of Slurm that it names: no device is called so."""
        one = self.ids[0] if self.host == SLURM and len(self.ids) == 1 else ""
        return one if one and not DEVICE.fullmatch(one) else None

    def __str__(self) -> str:
        return self.host + (":" + ",".join(self.ids) if self.ids else "")

    @classmethod
    def parse(cls, text: str) -> HostDevices:
        """"gpu1:0,1", "alice@gpu2", "local:cpu:0,cpu:1", "any", "@lab". Raises BadName."""
        host, colon, rest = text.strip().partition(":")
        if not _GROUP.fullmatch(host):
            check_name(host)
        if colon and cls(host).several:
            raise BadName(f"{text!r}: {host} stands for several hosts; devices.pick says how many "
                          "devices of one of them are taken")
        ids = tuple(part.strip() for part in rest.split(",")) if colon else ()
        for one in ids:
            if not _ID.fullmatch(one):
                raise BadName(f"{one!r} is no device: expected a host and its devices, as in "
                              f"{host}:0,1")
        if len(set(ids)) < len(ids):
            raise BadName(f"name each device of {host} once")
        return cls(host, ids)


def check_name(text: str) -> str:
    """`text`, which is a host's name. Raises BadName."""
    if not _NAME.fullmatch(text):
        raise BadName(f"{text[:80]!r} is no name of a host: expected {NAME_HELP}")
    return text


def parse_all(texts: Sequence[str]) -> tuple[HostDevices, ...]:
    """The entries of `devices.hosts`, in their order. Raises BadName, also where a host comes
    twice."""
    found = tuple(map(HostDevices.parse, texts))
    names = [entry.host for entry in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        ids = [i for entry in found if entry.host == twice for i in entry.ids]
        once = HostDevices(twice, tuple(dict.fromkeys(ids)))
        raise BadName(f"{twice} is named twice; name it once with all its devices: {once}")
    return found


def glued(parts: Iterable[str]) -> list[str]:
    """What was typed as a list without brackets, split at its commas, with each device put back
    to its host: ["gpu1:0", "1", "gpu2:3"] → ["gpu1:0,1", "gpu2:3"]."""
    out: list[str] = []
    for part in parts:
        if out and ":" in out[-1] and DEVICE.fullmatch(part.strip()):
            out[-1] += "," + part.strip()
        else:
            out.append(part)
    return out
