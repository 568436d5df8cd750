"""Which container a process runs in, by its control group, and the container's name where the
runtime says it to this user. Standard library only.

Control groups: Docker and Podman (`docker-ID.scope`, `/docker/ID`, `libpod-ID.scope`), Kubernetes
(`…/kubepods…/cri-containerd-ID.scope`, `…/crio-ID.scope`, `/kubepods/…/podUID/ID`), LXC and Incus
(`lxc.payload.NAME`).
"""

from __future__ import annotations

import functools
import http.client
import json
import os
import re
import socket
from pathlib import Path

from gpu_engine.common import procs

_ID = re.compile(r"/(?:(docker|libpod|nerdctl|crio|cri-containerd)[-/])?([0-9a-f]{64})(?:\.scope)?"
                 r"(?:/|$)", re.MULTILINE)
_LXC = re.compile(r"/lxc(?:\.payload\.|/)([\w.-]{1,64})")
_RUNTIMES = {"libpod": "podman", "nerdctl": "nerdctl", "docker": "docker"}
_SHORT = 12
"""Characters of an id, as `docker ps` shows it."""
_PATIENCE = 0.5
_LONGEST = 1 << 20


def of_process(pid: int, proc: Path = procs.PROC) -> str | None:
    """ "docker trainer", or "docker 3f2a81b0c4d5" where its name is not known; "pod train-0"; None:
    it is in no container, or that can't be seen."""
    try:
        group = (proc / str(pid) / "cgroup").read_text(errors="replace")[:1 << 14]
    except OSError:
        return None
    if (lxc := _LXC.search(group)) is not None:
        return f"lxc {lxc[1]}"
    if (found := _ID.search(group)) is None:
        return None
    runtime, ident = found[1], found[2]
    if "kubepods" in group:
        return f"pod {_host_name(pid, proc) or ident[:_SHORT]}"
    name = _RUNTIMES.get(runtime or "", "container")
    return f"{name} {_asked(name, ident) or ident[:_SHORT]}"


def _host_name(pid: int, proc: Path) -> str | None:
    """A pod's name, which is the host name of its processes; None: it is another user's."""
    try:
        words = (word.partition(b"=") for word in procs.environment(pid, proc))
        return next((value.decode(errors="replace")[:64] for name, _, value in words
                     if name == b"HOSTNAME" and value), None)
    except OSError:
        return None


@functools.lru_cache(maxsize=256)
def _asked(runtime: str, ident: str) -> str | None:
    """The name that Docker or Podman tells through its socket, if this user may use it."""
    places = {"docker": ["/var/run/docker.sock"],
              "podman": [f"{os.environ.get('XDG_RUNTIME_DIR', '/run')}/podman/podman.sock",
                         "/run/podman/podman.sock"]}
    for place in places.get(runtime, ()):
        if not os.access(place, os.R_OK | os.W_OK):
            continue
        asking = http.client.HTTPConnection("localhost", timeout=_PATIENCE)
        try:
            asking.sock = socket.socket(socket.AF_UNIX)
            asking.sock.settimeout(_PATIENCE)
            asking.sock.connect(place)
            asking.request("GET", f"/containers/{ident}/json")
            said = json.loads(asking.getresponse().read(_LONGEST))
            name = said.get("Name") if isinstance(said, dict) else None
            if isinstance(name, str) and name.strip("/"):
                return name.strip("/")[:64]
        except (OSError, ValueError, http.client.HTTPException):
            continue
        finally:
            asking.close()
    return None
