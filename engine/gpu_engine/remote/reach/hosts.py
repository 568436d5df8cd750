"""A person's hosts, and how each is reached: `hosts.toml`, a table a machine.

```toml
[hosts.gpu1]
ssh = "alice@10.0.0.7"                # what `ssh` is given; without it, the name itself
folder = "~/project"                  # where runs start there
python = "~/.venv/bin/python"         # the interpreter there that has gpu-panel
label = "the one below the window"
groups = ["lab"]                      # `devices.hosts = ["@lab"]` means each host of the group
via = ["docker", "exec", "-i", "box"] # a command that runs a command there, in place of ssh
```

A host that ssh knows need not stand here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_engine.common import paths
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError, meant, telling
from gpu_engine.common.files import write_atomic
from gpu_engine.spec.host_names import ANY, LOCAL, BadName, HostDevices, check_name, parse_all

__all__ = ["ANY", "LOCAL", "BadName", "Host", "HostDevices", "check_name", "parse_all"]

_A_PATH = "expected a whole path there, from / or ~/ on"
_EXPECTED = {
    "ssh": "expected what ssh is given: a host name, an address or a name of ~/.ssh/config, with "
           "or without user@; a port or a jump host belongs into ~/.ssh/config",
    "folder": _A_PATH, "python": _A_PATH,
    "label": "expected a text in quotes, of at most 80 characters",
    "groups": 'expected names of groups in quotes, as in ["lab"]',
    "via": 'expected the words of a command, as in ["docker", "exec", "-i", "box"]'}
"""The keys of a host, and what each may be."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that can be asked."""

    name: str
    """What the person calls it: in `devices.hosts`, in tables, in messages."""
    ssh: str | None = None
    """What `ssh` is given: a host name, an address or a name in ~/.ssh/config, with or without
    user@. None: `name`."""
    folder: str | None = None
    """The folder there in which runs start; None: the one that has the path of the folder here,
    else the home there."""
    python: str | None = None
    """The interpreter there that has gpu-panel; None: the agent's usual places are tried."""
    label: str | None = None
    """More words for the table."""
    groups: tuple[str, ...] = ()
    """What it belongs to: "@lab" in `devices.hosts` means each host of the group lab."""
    via: tuple[str, ...] = ()
    """The argument list of a program that runs a command there, in place of ssh:
    ("docker", "exec", "-i", "box"), ("srun", "--jobid=7", "--overlap", "-w", "n1")."""

    @property
    def is_local(self) -> bool:
        """Whether it is this machine, as itself."""
        return self.name == LOCAL and not self.via and self.ssh is None

    def folders(self, here: str) -> tuple[str, ...]:
        """Where a run starts there: in the folder that hosts.toml names, else in the one that has
        the path of ours, `here`, as on a shared file system, else at home."""
        return (self.folder,) if self.folder else (here, "~")

    @property
    def destination(self) -> str:
        """What `ssh` is given."""
        return self.ssh or self.name


def path() -> Path:
    """Where the file is, whether it exists or not."""
    return paths.settings_folder() / "hosts.toml"


def read() -> dict[str, Host]:
    """The hosts by name, in the file's order; none where there is no file. Raises UserError
    naming file, key and value."""
    from gpu_engine.spec.read import read_toml  # after the panel's first frame

    document = read_toml(path(), own=True) if os.path.lexists(path()) else {}
    if other := next((key for key in document if key != "hosts"), None):
        raise UserError(f"{path()}: {clean(other, 80)} = {_short(document[other])}: a host is a "
                        "table as [hosts.gpu1], and nothing else stands here")
    data = document.get("hosts", {})
    if not isinstance(data, dict):
        raise UserError(f"{path()}: hosts = {_short(data)}: expected a table a host, as in "
                        "[hosts.gpu1]")
    return {name: _host(name, entry) for name, entry in data.items()}


def find(name: str) -> Host:
    """The host that a person calls `name`: as hosts.toml has it, else what ssh knows by that name,
    or this machine. Raises UserError for what can't be a name, or a hosts.toml that is wrong."""
    return read().get(check_name(name)) or Host(name)


def meant_by(entries: Sequence[str]) -> list[Host]:
    """The hosts, each once, that entries of `devices.hosts` stand for, of which one is chosen.
    Raises UserError for a group without a host, or a hosts.toml that is wrong."""
    there, found = read(), dict[str, Host]()
    for entry in parse_all(entries):
        name = entry.host
        members = [*there.values(), Host(LOCAL)] if name == ANY else \
            [h for h in there.values() if name[1:] in h.groups] if entry.several else \
            [there.get(name) or Host(name)]
        if not members:
            raise UserError(f"devices.hosts={name}: no host in {path()} is of that group; "
                            f"gpu-engine hosts add NAME --group {name[1:]} makes one so")
        found |= {host.name: host for host in members}
    return list(found.values())


def add(host: Host) -> Path:
    """Write `host` into the file, in place of one of that name; what else stands there, comments
    too, stays. Returns the file's path. Raises UserError."""
    entry = {key: list(value) if isinstance(value, tuple) else value
             for key in _EXPECTED if (value := getattr(host, key))}
    _host(host.name, entry)
    read()  # a file that is wrong is not written over
    return _change(host.name, entry)


def remove(*names: str) -> Path:
    """Take `names` out of the file. Returns the file's path. Raises UserError where one is not
    there."""
    there = read()
    for name in names:
        if name not in there:
            raise UserError(f"{path()} has no host {clean(name, 80)!r}; {meant(name, there)}")
    for name in dict.fromkeys(names):
        _change(name, None)
    return path()


def _change(name: str, entry: dict[str, Any] | None) -> Path:
    """Have exactly `entry` stand there of `name`; None: nothing. Raises UserError."""
    import tomlkit

    document = tomlkit.parse(path().read_text(encoding="utf-8-sig")) if path().exists() \
        else tomlkit.document()
    hosts: Any = document.setdefault("hosts", tomlkit.table(is_super_table=True))
    if entry is None:
        del hosts[name]
    else:
        if name not in hosts:
            hosts[name] = tomlkit.table()
        for key in set(hosts[name]) - set(entry):
            del hosts[name][key]
        hosts[name].update(entry)
    with telling(f"{path()}: can't be written"):
        paths.private_folder(path().parent)
        write_atomic(path(), tomlkit.dumps(document))
    return path()


def _host(name: str, entry: object) -> Host:
    """Raises UserError."""
    try:
        check_name(name)
    except BadName as err:
        raise UserError(f"{path()}: {err}") from None
    place = f"{path()}: hosts.{name}"
    if name in (LOCAL, ANY):
        means = "this machine" if name == LOCAL else "any of the hosts"
        raise UserError(f"{place}: {means} is called that; give the other one another name")
    if not isinstance(entry, dict):
        raise UserError(f"{place} = {_short(entry)}: expected a table, [hosts.{name}]")
    for key, value in entry.items():
        if key not in _EXPECTED or not _fits(key, value):
            raise UserError(f"{place}.{clean(key, 80)} = {_short(value)}: "
                            + (_EXPECTED.get(key) or f"no such key; {meant(key, _EXPECTED)}"))
    return Host(name, **{**entry, **{k: tuple(entry.get(k, ())) for k in ("groups", "via")}})


def _fits(key: str, value: object) -> bool:
    if key in ("groups", "via"):
        return isinstance(value, list) and 0 < len(value) <= 32 and all(map(_is_text, value)) \
            and (key == "via" or all(_is_name(f"@{name}") for name in value))
    if not isinstance(value, str) or not _is_text(value):
        return False
    if key == "ssh":
        return not value.startswith("@") and _is_name(value)
    return len(value) <= 80 if key == "label" else re.match("/|~/|~$", value) is not None


def _is_name(text: str) -> bool:
    """Whether it is a host's name or, with @, a group's."""
    try:
        return not HostDevices.parse(text).ids
    except BadName:
        return False


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value.isprintable() \
        and len(value) <= 1024


def _short(value: object) -> str:
    return clean(f'"{value}"' if isinstance(value, str) else str(value), 80)
