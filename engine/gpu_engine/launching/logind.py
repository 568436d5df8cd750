"""Starting what has to go on after this process: whether a logout would end it, and what to do.

systemd-logind with KillUserProcesses=yes ends all that a login session started, detached or not.
A scope of the user's own manager is outside the session, but that manager itself ends with the
last logout unless lingering is on: then a scope would be worse than nothing.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_engine.common.programs import answer, own_program

_IN_SESSION = re.compile(r"/session-[^/]*\.scope")


@dataclass(frozen=True, slots=True)
class Decision:
    """How to start a supervisor."""

    scope: bool = False
    """Inside a scope of the user's manager."""
    warning: str | None = None


def examine(root: Path = Path("/")) -> Decision:
    """Ask this machine. Costs nothing where there is no login session, and some ten milliseconds
    where there is."""
    try:
        session = bool(_IN_SESSION.search((root / "proc/self/cgroup").read_text()))
    except OSError:
        session = False
    # Root's processes are spared by default.
    if not session or os.geteuid() == 0 or not _yes("busctl", "get-property", *_KILLS):
        return Decision()
    if not _yes("loginctl", "show-user", str(os.getuid()), "-p", "Linger", "--value"):
        return Decision(warning="this machine ends your processes when you log out "
                                "(KillUserProcesses=yes): the run ends then too, unless you turn "
                                "lingering on first: loginctl enable-linger")
    if answer([*_SCOPE, "--", "true"]) is None:
        return Decision(warning="this machine ends your processes when you log out "
                                "(KillUserProcesses=yes), and systemd-run --user --scope does not "
                                "work here: the run ends with your session")
    return Decision(scope=True)


def here() -> Decision:
    """The result of `examine`, at most half a minute old: a form needs it at every key press."""
    return _at(int(time.monotonic() // 30))


@functools.lru_cache(maxsize=1)
def _at(_: int) -> Decision:
    return examine()


def start(name: str, log: int, module: str, *args: str, env: Mapping[str, str] | None = None,
          pass_fds: Sequence[int] = ()) -> None:
    """Start a program of ours that outlives this process and its terminal, in a scope of this name
    if it has to be. `log`: the descriptor for all that is printed; it is closed here. Raises
    OSError."""
    argv = own_program(module, *args)
    try:
        subprocess.Popen(wrapped(argv, name) if here().scope else argv, stdin=subprocess.DEVNULL,
                         stdout=log, stderr=log, cwd="/", start_new_session=True, env=env,
                         pass_fds=pass_fds)
    finally:
        os.close(log)


_SCOPE = ("systemd-run", "--user", "--scope", "--collect", "--quiet")
_KILLS = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager",
          "KillUserProcesses")


def wrapped(argv: Sequence[str], name: str) -> list[str]:
    """`argv` inside a scope; systemd-run becomes it, so open descriptors go along."""
    return [*_SCOPE, f"--unit=gpu-panel-{name}", "--", *argv]


def _yes(*asked: str) -> bool:
    words = (answer(asked) or "").split()
    return bool(words) and words[-1] in ("true", "yes", "1")
