"""The argument list that brings a shell on a host, the script that makes an agent of it, and why it
did not come, in a sentence to act on.

The system's own `ssh` is used, so that a person's ~/.ssh/config, keys and agent count as they do
when typed. It never asks for anything: who would be asked for a password is told so instead.
Whatever the login shell there is, it is told one thing, `exec sh -s`; the rest reaches that `sh` on
its standard input, so nothing has to be quoted twice.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path

from gpu_engine.common import paths
from gpu_engine.common.clean import clean
from gpu_engine.common.programs import own_environment
from gpu_engine.remote.reach.hosts import Host, check_name
from gpu_engine.remote.reach.protocol import MARK

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
"""Stands behind the mark where the script found no program of ours."""

_LONGEST_SOCKET = 107 - 58
"""A socket's path has 107 bytes. Below the folder ssh writes "/", a hash of 40 characters, and
while it connects "." and 16 more."""

_KNOWN: tuple[tuple[str, str], ...] = (
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key for \S+ has changed",
     "its host key is another one than before. If it was set up anew, forget the old key "
     "(ssh-keygen -R {known}) and look at the new one ({ssh}); if not, somebody may be "
     "between you and it"),
    (r"Host key verification failed|No \S+ host key is known",
     "its host key is not known here yet. Type once: {ssh}  and compare the fingerprint"),
    (r"Permission denied",
     "it let nobody in without a password. Bring your key there{copy}, or load it (ssh-add)"),
    (r"Could not resolve hostname|Name or service not known|Temporary failure in name resolution",
     "there is no host of that name: neither in ~/.ssh/config nor known to this machine"),
    (r"Connection refused", "nothing answers at its ssh port"),
    (r"(?:Connection|Operation) timed out|timed out during banner|Connection to \S+ timed out",
     "no answer: it is off, or a firewall is between"),
    (r"No route to host|Network is unreachable", "there is no way to it from here"),
    (r"Unknown option: -P", "the interpreter there is older than Python 3.11. {setup}"),
    (r"No such option: --wire", "gpu-panel there is older than this one. {setup}"),
    (r"No module named .?gpu_engine", "the interpreter there has no gpu-panel. {setup}"),
    (r"No module named", "gpu-panel there is not whole: {said}"),
    (r"not responding|Broken pipe|Connection reset|closed by remote host|Connection closed by",
     "the connection broke"),
)

_SHARING = re.compile(r"mux_client|mm_send_fd")
"""How the lines begin that ssh prints of a connection which it can't share with others."""
_UNREADABLE = re.compile(r"[\ufffd\x00-\x06]")
"""What a line has that is no text."""
_SSH_FAILED = 255


def shell(host: Host, *, shared: bool = True) -> list[str]:
    """The argument list of a POSIX shell there that reads its commands from standard input. Raises
    BadName. `shared`: over a connection that is open already, where there is one."""
    if host.via:
        return [*host.via, "sh", "-s"]
    destination = check_name(host.destination)
    options = {"BatchMode": "yes", "ConnectTimeout": CONNECT, "ServerAliveInterval": ALIVE,
               "ServerAliveCountMax": MISSED, "ForwardAgent": "no", "ForwardX11": "no",
               "ClearAllForwardings": "yes", "PermitLocalCommand": "no", "RemoteCommand": "none",
               "Compression": "yes"}
    if not shared:  # nor over one that ~/.ssh/config names
        options |= {"ControlMaster": "no", "ControlPath": "none"}
    elif (socket := _socket(destination)) is not None:
        options |= {"ControlMaster": "auto", "ControlPath": socket, "ControlPersist": 30}
    said = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    return ["ssh", "-T", *said, "--", destination, "exec sh -s"]


def environment() -> dict[str, str]:
    """What ssh is started with: no window asks for a password either."""
    return own_environment() | {"SSH_ASKPASS_REQUIRE": "never"}


def script(host: Host, word: str, words: Sequence[str]) -> bytes:
    """What the shell there is told: become `gpu-engine WORDS`, or say that there is none."""
    start = '-P -m gpu_engine "$@"'
    if host.python:
        python = quoted(host.python)
        lines = [f"if command -v {python} >/dev/null 2>&1; then exec {python} {start}; fi"]
    else:
        # A shell that nobody logged in to has a short PATH.
        lines = [f'if [ -x "$HOME/{SETUP}/bin/python" ]; then exec "$HOME/{SETUP}/bin/python" '
                  f"{start}; fi",
                  'if command -v gpu-engine >/dev/null 2>&1; then exec gpu-engine "$@"; fi',
                  'if [ -x "$HOME/.local/bin/gpu-engine" ]; then exec '
                  '"$HOME/.local/bin/gpu-engine" "$@"; fi']
    lines = [f"set -- {shlex.join(words)}", *lines,
             f"printf '\\n%s\\n' {shlex.quote(f'{MARK} {word} {NOT_THERE}')}", "exit 127"]
    return ENTER + ("\n".join(lines) + "\n").encode()


def quoted(path: str) -> str:
    """A path there for a shell, its home put in place of ~."""
    return '"$HOME"/' + shlex.quote(path[2:]) if path.startswith("~/") else shlex.quote(path)


def _socket(destination: str) -> Path | None:
    """The socket over which ssh shares the connections to `destination`; None where its path would
    be too long or its folder can't be had: then they are shared where ~/.ssh/config says so.

    It is named after what ssh is given. ssh's own short name for a connection, %C, leaves out how
    it comes there and whose key it expects (ProxyCommand, HostKeyAlias): two machines with one
    address, each behind a jump host of its own, would share one connection.
    """
    folder = paths.home() / "ssh"
    if len(os.fsencode(folder)) > _LONGEST_SOCKET:
        return None
    try:
        paths.private_folder(folder)
        info = folder.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & 0o077
    return folder / hashlib.sha256(destination.encode()).hexdigest()[:40] if ours else None


# --- why none came ------------------------------------------------------------------------------

def why(host: Host, printed: str, code: int | None, *, greeted: bool) -> str:
    """Why the way to `host` ended: `printed` is the end of what ssh and the shell there said,
    `code` the exit status (None: it still ran), `greeted` whether the agent had begun."""
    lines = [clean(line, 300) for line in printed.splitlines()
             if line.strip() and not _UNREADABLE.search(line)]
    # ssh opens a connection of its own then: it is not for this that anything failed.
    lines = [line for line in lines if not _SHARING.match(line)] or lines
    said = lines[-1] if lines else ""
    for pattern, words in _KNOWN:
        if re.search(pattern, "\n".join(lines), re.IGNORECASE):
            return words.format(said=said, setup=setup(host), known=_known_as(host, printed),
                                ssh=_by_hand(host),
                                copy="" if host.via else f" (ssh-copy-id {host.destination})")
    if greeted or (code == 255 and not host.via and not said):  # ssh's own: a shell's has a cause
        return f"the connection ended{': ' + said if said else ''}"
    if code == 127:
        return f"gpu-panel was not found there. {setup(host)}"
    hint = f"look at what it starts with there (~/.bashrc): {_by_hand(host)}"
    if code is None:
        return f"its shell does not answer: it waits, or something reads its input away; {hint}"
    return said or f"its shell ended with {code} before it ran anything; {hint}"


def _known_as(host: Host, printed: str) -> str:
    """The name under which ssh knows the host's key, as a shell reads it: that which it says, or
    else the destination without the user."""
    found = re.search(r"Host key for ([\w.:\[\]-]+) has changed", printed, re.ASCII)
    return shlex.quote(found[1] if found else host.destination.rpartition("@")[2])


def _by_hand(host: Host) -> str:
    """What a person types to reach the host."""
    return shlex.join((*host.via, "true")) if host.via else f"ssh {host.destination}"


def share_ended(printed: str, code: int | None) -> bool:
    """Whether ssh ended, before anything ran there, because the connection that it was to share
    ended in the moment in which it asked for it. A moment earlier or later ssh opens one of its
    own; then it does not (OpenSSH, mux.c: mux_client_request_session)."""
    last = (printed.strip().splitlines() or [""])[-1]
    return code == _SSH_FAILED and _SHARING.match(last) is not None


def not_there(host: Host) -> str:
    """Where the shell there found no program of ours."""
    if host.python:
        return (f"there is no interpreter {host.python} there; name another (python in "
                "hosts.toml)")
    return f"gpu-panel was not found there. {setup(host)}"


def setup(host: Host) -> str:
    """What brings our program there."""
    return f"Bring it there (gpu-engine hosts setup {host.name}), or say where it is (python in " \
           "hosts.toml)"
