"""Starting what has to go on after this process, and whether a logout would end it.

systemd-logind with KillUserProcesses=yes ends all that a login session started, detached or not.
A scope of the user's own manager is outside the session, but that manager itself ends with the
last logout unless lingering is on: a person has to arrange both.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_engine.common.programs import answer, own_program

_IN_SESSION = re.compile(r"/session-[^/]*\.scope")
_KILLS = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager",
          "KillUserProcesses")
_WARNING = "this machine ends your processes when you log out (KillUserProcesses=yes), and runs " \
    "with them, unless you turn lingering on (loginctl enable-linger) and start gpu-engine or " \
    "gpu-panel outside the session: systemd-run --user --scope gpu-panel"


def examine(root: Path = Path("/")) -> str | None:
    """A warning, if a logout would end what is started here. Costs nothing where there is no login
    session, and some ten milliseconds where there is."""
    try:
        session = bool(_IN_SESSION.search((root / "proc/self/cgroup").read_text()))
    except OSError:
        session = False
    if not session or os.geteuid() == 0:  # root's processes are spared by default
        return None
    words = (answer(("busctl", "get-property", *_KILLS)) or "").split()
    return _WARNING if words and words[-1] == "true" else None


def here() -> str | None:
    """The result of `examine`, at most half a minute old: a form needs it at every key press."""
    return _at(int(time.monotonic() // 30))


@functools.lru_cache(maxsize=1)
def _at(_: int) -> str | None:
    return examine()


def start(log: int, module: str, *args: str, env: Mapping[str, str] | None = None,
          pass_fds: Sequence[int] = ()) -> None:
    """Start a program of ours that outlives this process and its terminal. `log`: the descriptor
    for all that is printed; it is closed here. Raises OSError."""
    try:
        subprocess.Popen(own_program(module, *args), stdin=subprocess.DEVNULL, stdout=log,
                         stderr=log, cwd="/", start_new_session=True, env=env, pass_fds=pass_fds)
    finally:
        os.close(log)
