"""The person's hosts: `hosts.toml`, a table a machine.

```toml
[hosts.gpu1]
ssh = "alice@10.0.0.7"                # what `ssh` is given; without it, the name itself
folder = "~/project"                  # where runs start there
python = "~/.venv/bin/python"         # the interpreter there that has gpu-panel
label = "the one below the window"
via = ["docker", "exec", "-i", "box"] # a command that runs a command there, in place of ssh
```

A host that ssh knows need not stand here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from gpu_engine.common import paths
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError, meant, telling
from gpu_engine.common.files import write_atomic
from gpu_engine.remote.reach.allocation import hosts_of_job
from gpu_engine.remote.reach.records import LOCAL, BadName, Host, check_name
from gpu_engine.spec.read import read_toml

_LONGEST = {"folder": 1024, "python": 1024, "label": 80}
_KEYS = tuple(f.name for f in fields(Host) if f.name != "name")
_MOST_WORDS = 32


def path() -> Path:
    """Where it is, whether it exists or not."""
    return paths.settings_folder() / "hosts.toml"


def read() -> dict[str, Host]:
    """The hosts by name, in the file's order; none where there is no file. Raises UserError
    naming file, key and value."""
    data = read_toml(path()).get("hosts", {}) if os.path.lexists(path()) else {}
    if not isinstance(data, dict):
        raise UserError(f"{path()}: hosts = {_short(data)}: expected a table a host, as in "
                        "[hosts.gpu1]")
    return {name: _host(name, entry) for name, entry in data.items()}


def known() -> dict[str, Host]:
    """The hosts by name: the nodes of the Slurm job that this was started in, and those of the
    file, which has precedence. Raises as `read`."""
    return hosts_of_job() | read()


def find(name: str) -> Host:
    """The host that a person calls `name`: as hosts.toml has it, else a node of this Slurm job,
    else what ssh knows by that name, or this machine. Raises UserError for what can't be a name,
    or a hosts.toml that is wrong."""
    try:
        check_name(name)
    except BadName as err:
        raise UserError(str(err)) from None
    return known().get(name) or Host(name)


def add(host: Host) -> Path:
    """Write `host` into the file, in place of one of that name; what else stands there, comments
    too, stays. Returns the file's path. Raises UserError."""
    import tomlkit

    entry = {key: value for key in _KEYS if (value := getattr(host, key))}
    _host(host.name, {k: list(v) if isinstance(v, tuple) else v for k, v in entry.items()})
    read()  # a file that is wrong is not written over
    document = _document()
    hosts = document.setdefault("hosts", tomlkit.table(is_super_table=True))
    table = hosts.get(host.name)
    if table is None:
        table = hosts[host.name] = tomlkit.table()
        table = hosts[host.name]
    for key in _KEYS:
        value = entry.get(key)
        if value is not None:
            table[key] = list(value) if isinstance(value, tuple) else value
        elif key in table:
            del table[key]
    return _write(document)


def remove(name: str) -> Path:
    """Take `name` out of the file. Returns the file's path. Raises UserError where it is not
    there."""
    there = read()
    if name not in there:
        raise UserError(f"{path()} has no host {clean(name, 80)!r}; {meant(name, there)}")
    document = _document()
    del document["hosts"][name]
    return _write(document)


def _document() -> Any:
    import tomlkit

    return tomlkit.parse(path().read_text(encoding="utf-8")) if path().exists() \
        else tomlkit.document()


def _write(document: Any) -> Path:
    import tomlkit

    with telling(f"{path()}: can't be written"):
        path().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(path(), tomlkit.dumps(document))
    return path()


def _host(name: str, entry: object) -> Host:
    """Raises UserError."""

    def wrong(key: str, value: object, message: str) -> UserError:
        place = f"hosts.{clean(name, 80)}" + (f".{key}" if key else "")
        return UserError(f"{path()}: {place} = {_short(value)}: {message}")

    try:
        check_name(name)
    except BadName as err:
        raise UserError(f"{path()}: {err}") from None
    if name == LOCAL:
        raise UserError(f"{path()}: hosts.{LOCAL}: this machine is called that; give the other "
                        "one another name")
    if not isinstance(entry, dict):
        raise wrong("", entry, f"expected a table, [hosts.{name}]")
    for key, value in entry.items():
        if key not in _KEYS:
            raise wrong(clean(key, 80), value, "no such key; " + meant(key, _KEYS))
        message = _CHECKS[key](key, value)
        if message is not None:
            raise wrong(key, value, message)
    return Host(name, entry.get("ssh"), entry.get("folder"), entry.get("python"),
                entry.get("label"), tuple(entry.get("via", ())))


def _short(value: object) -> str:
    return clean(f'"{value}"' if isinstance(value, str) else str(value), 80)


def _check_ssh(key: str, value: object) -> str | None:
    try:
        check_name(value if isinstance(value, str) else "")
    except BadName:
        return ("expected what ssh is given: a host name, an address or a name of ~/.ssh/config, "
                "with or without user@; a port or a jump host belongs into ~/.ssh/config")
    return None


def _check_text(key: str, value: object) -> str | None:
    if not isinstance(value, str) or not value.strip():
        return "expected a text in quotes"
    if len(value) > _LONGEST[key]:
        return f"at most {_LONGEST[key]:,} characters"
    if not value.isprintable():
        return "control characters can't be part of it"
    return None


def _check_path(key: str, value: object) -> str | None:
    wrong = _check_text(key, value)
    if wrong is None and not str(value).startswith(("/", "~/")) and value != "~":
        return "expected a whole path there, from / or ~/ on"
    return wrong


def _check_via(key: str, value: object) -> str | None:
    if not isinstance(value, list) or not 0 < len(value) <= _MOST_WORDS or not all(
            isinstance(word, str) and word and word.isprintable() and len(word) <= 1024
            for word in value):
        return 'expected the words of a command, as in ["docker", "exec", "-i", "box"]'
    return None


_CHECKS: dict[str, Callable[[str, object], str | None]] = {
    "ssh": _check_ssh, "folder": _check_path, "python": _check_path, "label": _check_text,
    "via": _check_via}
