"""The person's hosts: `hosts.toml`, a table a machine; and the nodes of the Slurm job within which
this program was started, which nobody has to write down.

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
import socket
import sys
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from gpu_engine.common import paths
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError, meant, telling
from gpu_engine.common.files import write_atomic
from gpu_engine.common.programs import answer
from gpu_engine.remote.reach.records import LOCAL, BadName, Host, check_name, is_name
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

    entry = {key: list(value) if isinstance(value, tuple) else value
             for key in _KEYS if (value := getattr(host, key))}
    _host(host.name, entry)
    read()  # a file that is wrong is not written over
    document = _document()
    hosts = document.setdefault("hosts", tomlkit.table(is_super_table=True))
    if host.name not in hosts:
        hosts[host.name] = tomlkit.table()
    table = hosts[host.name]
    for key in set(table) - set(entry):
        del table[key]
    for key, value in entry.items():
        table[key] = value
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


def hosts_of_job(env: Mapping[str, str] | None = None) -> dict[str, Host]:
    """The job's nodes by name, in Slurm's order, without the one that this is; none outside a job,
    and where Slurm can't be asked. They are reached by `srun` inside the job (`man srun`, --jobid
    and --overlap). `env`: where Slurm's variables are looked up; None: os.environ."""
    env = os.environ if env is None else env
    job, listed = env.get("SLURM_JOB_ID", ""), env.get("SLURM_JOB_NODELIST", "")
    if not job.isdecimal() or not listed:
        return {}
    here = socket.gethostname()
    own = {env.get("SLURMD_NODENAME"), here, here.partition(".")[0]}
    return {name: Host(name, python=sys.executable, label=f"node of job {job}", via=(
        "srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={name}"))
        for name in _names(listed) if name not in own}


@cache
def _names(listed: str) -> tuple[str, ...]:
    """"gpu[01-03,07]" → gpu01, gpu02, gpu03, gpu07."""
    said = answer(["scontrol", "show", "hostnames", listed], 10.0)
    return tuple(filter(is_name, (said or "").split()))


def _document() -> Any:
    import tomlkit

    return tomlkit.parse(path().read_text(encoding="utf-8-sig")) if path().exists() \
        else tomlkit.document()


def _write(document: Any) -> Path:
    import tomlkit

    with telling(f"{path()}: can't be written"):
        path().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(path(), tomlkit.dumps(document))
    return path()


def _host(name: str, entry: object) -> Host:
    """Raises UserError."""
    try:
        check_name(name)
    except BadName as err:
        raise UserError(f"{path()}: {err}") from None
    place = f"{path()}: hosts.{name}"
    if name == LOCAL:
        raise UserError(f"{place}: this machine is called that; give the other one another name")
    if not isinstance(entry, dict):
        raise UserError(f"{place} = {_short(entry)}: expected a table, [hosts.{name}]")
    for key, value in entry.items():
        wrong = _wrong(key, value)
        if wrong is not None:
            raise UserError(f"{place}.{clean(key, 80)} = {_short(value)}: {wrong}")
    return Host(name, **{**entry, "via": tuple(entry.get("via", ()))})


def _short(value: object) -> str:
    return clean(f'"{value}"' if isinstance(value, str) else str(value), 80)


def _wrong(key: str, value: object) -> str | None:
    """What is wrong with the value of a key; None: nothing."""
    if key not in _KEYS:
        return f"no such key; {meant(key, _KEYS)}"
    if key == "via":
        good = isinstance(value, list) and 0 < len(value) <= _MOST_WORDS and all(
            isinstance(word, str) and word and word.isprintable() and len(word) <= 1024
            for word in value)
        return None if good else \
            'expected the words of a command, as in ["docker", "exec", "-i", "box"]'
    if key == "ssh":
        return None if isinstance(value, str) and is_name(value) else (
            "expected what ssh is given: a host name, an address or a name of ~/.ssh/config, "
            "with or without user@; a port or a jump host belongs into ~/.ssh/config")
    if not isinstance(value, str) or not value.strip():
        return "expected a text in quotes"
    if len(value) > _LONGEST[key]:
        return f"at most {_LONGEST[key]:,} characters"
    if not value.isprintable():
        return "control characters can't be part of it"
    if key != "label" and not value.startswith(("/", "~/")) and value != "~":
        return "expected a whole path there, from / or ~/ on"
    return None
