"""The argument list that brings a shell on a host, and the script that makes an agent of it.

The system's own `ssh` is used, so that a person's ~/.ssh/config, keys and agent count as they do
when typed. It never asks for anything: who would be asked for a password is told so instead.
Whatever the login shell there is, it is told one thing, `exec sh -s`; the rest reaches that `sh` on
its standard input, so nothing has to be quoted twice.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from pathlib import Path

from gpu_engine.common import paths
from gpu_engine.common.programs import answer, own_environment
from gpu_engine.remote.reach.protocol import MARK
from gpu_engine.remote.reach.records import Host, check_name

CONNECT = 10
"""Seconds in which a host's ssh has to answer."""
ALIVE, MISSED = 3, 3
"""Seconds between two questions whether a connection still stands, and how many may be lost. One
that is shared has to be given up, and another one tried, before a call's time is over."""
SETUP = ".local/share/gpu-panel/host"
"""Where `gpu-engine hosts setup` puts our program, below the home there: a virtual environment."""
ENTER = b"\n" * 8
"""Begins whatever a shell there is told: lines for a ~/.bashrc that asks for some (`read`)."""
NOT_THERE = "not-there"
"""Stands behind the mark where the script found no agent to start."""

_LONGEST_SOCKET = 107 - 58
"""A socket's path has 107 bytes. Below the folder ssh writes "/", a hash of 40 characters, and
while it connects "." and 16 more."""


def shell(host: Host, *, shared: bool = True) -> list[str]:
    """The argument list of a POSIX shell there that reads its commands from standard input. Raises
    BadName. `shared`: over a connection that is open already, where there is one."""
    if host.via:
        return [*host.via, "sh", "-s"]
    destination = check_name(host.destination)
    options = {"BatchMode": "yes", "ConnectTimeout": CONNECT, "ServerAliveInterval": ALIVE,
               "ServerAliveCountMax": MISSED, "ForwardAgent": "no", "ForwardX11": "no",
               "ClearAllForwardings": "yes", "PermitLocalCommand": "no", "RemoteCommand": "none"}
    if not shared:  # nor over one that ~/.ssh/config names
        options |= {"ControlMaster": "no", "ControlPath": "none"}
    elif (socket := _socket(destination)) is not None:
        options |= {"ControlMaster": "auto", "ControlPath": socket, "ControlPersist": 30}
    said = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    return ["ssh", "-T", *said, "--", destination, "exec sh -s"]


def environment() -> dict[str, str]:
    """What ssh is started with: no window asks for a password either."""
    return own_environment() | {"SSH_ASKPASS_REQUIRE": "never"}


def script(host: Host, word: str) -> bytes:
    """What the shell there is told: become the agent, or say that there is none."""
    start = "-P -m gpu_engine agent " + shlex.quote(word)
    if host.python:
        python = quoted(host.python)
        lines = [f"if command -v {python} >/dev/null 2>&1; then exec {python} {start}; fi"]
    else:
        # A shell that nobody logged in to has a short PATH.
        lines = [f'if [ -x "$HOME/{SETUP}/bin/python" ]; then exec "$HOME/{SETUP}/bin/python" '
                  f"{start}; fi",
                  "if command -v gpu-engine >/dev/null 2>&1; then exec gpu-engine agent "
                  f"{shlex.quote(word)}; fi",
                  'if [ -x "$HOME/.local/bin/gpu-engine" ]; then exec '
                  f'"$HOME/.local/bin/gpu-engine" agent {shlex.quote(word)}; fi']
    lines += [f"printf '\\n%s\\n' {shlex.quote(f'{MARK} {word} {NOT_THERE}')}", "exit 127"]
    return ENTER + ("\n".join(lines) + "\n").encode()


def quoted(path: str) -> str:
    """A path there for a shell, its home put in place of ~."""
    return '"$HOME"/' + shlex.quote(path[2:]) if path.startswith("~/") else shlex.quote(path)


def _socket(destination: str) -> Path | None:
    """The socket over which ssh shares the connections to `destination`; None where its path would
    be too long, its folder can't be had, or ssh does not say how it goes there: then they are
    shared where ~/.ssh/config says so.

    ssh's own short name for a connection, %C, leaves out how it comes there and whose key it
    expects (ProxyCommand, HostKeyAlias; ProxyJump before OpenSSH 9.6). Two machines with one
    address, each behind a jump host of its own, would share one connection.
    """
    folder = paths.home() / "ssh"
    if len(os.fsencode(folder)) > _LONGEST_SOCKET:
        return None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.lstat()
    except OSError:
        return None
    private = info.st_uid == os.getuid() and not info.st_mode & 0o077
    if not private or not folder.is_dir() or folder.is_symlink():
        return None
    way = answer(["ssh", "-G", "--", destination], CONNECT)
    name = hashlib.sha256(f"{destination}\n{way}".encode()).hexdigest()[:40]
    return folder / name if way else None
