"""Why a host could not be asked, in a sentence to act on. Pure."""

from __future__ import annotations

import re
import shlex

from gpu_engine.common.clean import clean
from gpu_engine.remote.reach.records import Host

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
    (r"No module named .?gpu_engine", "the interpreter there has no gpu-panel. {setup}"),
    (r"No module named", "gpu-panel there is not whole: {said}"),
    (r"not responding|Broken pipe|Connection reset|closed by remote host|Connection closed by",
     "the connection broke"),
)

_SHARING = re.compile(r"mux_client|mm_send_fd")
"""How the lines begin that ssh prints of a connection which it can't share with others."""
_SSH_FAILED = 255


def why(host: Host, stderr: str, code: int | None, *, greeted: bool) -> str:
    """Why the way to `host` ended: `stderr` is the end of what ssh and the shell there said,
    `code` the exit status (None: it still ran), `greeted` whether the agent had begun."""
    lines = [clean(line, 300) for line in stderr.splitlines() if line.strip()]
    # ssh opens a connection of its own then: it is not for this that anything failed.
    lines = [line for line in lines if not _SHARING.match(line)] or lines
    said = lines[-1] if lines else ""
    for pattern, words in _KNOWN:
        if re.search(pattern, "\n".join(lines), re.IGNORECASE):
            return words.format(said=said, setup=setup(host), known=_known_as(host, stderr),
                                ssh=_by_hand(host),
                                copy="" if host.via else f" (ssh-copy-id {host.destination})")
    if code == 127 and not greeted:
        return f"gpu-panel was not found there. {setup(host)}"
    if greeted:
        return f"the connection ended{': ' + said if said else ''}"
    hint = f"look at what it starts with there (~/.bashrc): {_by_hand(host)}"
    return said or (f"its shell ended with {code} before it ran anything; {hint}"
                    if code is not None else
                    "its shell does not answer: it waits, or something reads its input away; "
                    f"{hint}")


def _known_as(host: Host, stderr: str) -> str:
    """The name under which ssh knows the host's key, as a shell reads it: that which it says, or
    else the destination without the user."""
    found = re.search(r"Host key for ([\w.:\[\]-]+) has changed", stderr, re.ASCII)
    return shlex.quote(found[1] if found else host.destination.rpartition("@")[2])


def _by_hand(host: Host) -> str:
    """What a person types to reach the host."""
    return shlex.join((*host.via, "true")) if host.via else f"ssh {host.destination}"


def share_ended(stderr: str, code: int | None) -> bool:
    """Whether ssh ended, before anything ran there, because the connection that it was to share
    ended in the moment in which it asked for it. A moment earlier or later ssh opens one of its
    own; then it does not (OpenSSH, mux.c: mux_client_request_session)."""
    last = (stderr.strip().splitlines() or [""])[-1]
    return code == _SSH_FAILED and _SHARING.match(last) is not None


def not_there(host: Host) -> str:
    """Where the shell there found no agent to start."""
    if host.python:
        return (f"there is no interpreter {host.python} there; name another (python in "
                "hosts.toml)")
    return f"gpu-panel was not found there. {setup(host)}"


def lacks_program(host: Host, reason: str) -> bool:
    """Whether the host was reached, and only our program is not there, or another version."""
    return reason == not_there(host) or setup(host) in reason


def setup(host: Host) -> str:
    """What brings our program there."""
    return f"Bring it there (gpu-engine hosts setup {host.name}), or say where it is (python in " \
           "hosts.toml)"
