"""Whether a run would be ended at logout, and what to do about it.

systemd-logind with KillUserProcesses=yes ends all that a login session started, detached or not.
A scope of the user's own manager is outside the session, but that manager itself ends with the
last logout unless lingering is on: then a scope would be worse than nothing.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from gpu_engine.common.ask_program import answer
from gpu_engine.common.frozen import frozen

_IN_SESSION = re.compile(r"/session-[^/]*\.scope")


@frozen(slots=True)
class Decision:
    """How to start a supervisor."""

    scope: bool = False
    """Inside a scope of the user's manager."""
    warning: str | None = None


def decide(*, in_session: bool, root: bool, kills: bool | None, lingers: bool | None,
           can_scope: bool) -> Decision:
    """What the answers mean. None: not known. Pure."""
    if not in_session or root or not kills:  # root's processes are spared by default
        return Decision()
    if lingers and can_scope:
        return Decision(scope=True)
    if lingers:
        return Decision(warning="this machine ends your processes when you log out "
                                "(KillUserProcesses=yes), and systemd-run --user --scope does not "
                                "work here: the run ends with your session")
    return Decision(warning="this machine ends your processes when you log out "
                            "(KillUserProcesses=yes): the run ends then too, unless you turn "
                            "lingering on first: loginctl enable-linger")


def examine(root: Path = Path("/")) -> Decision:
    """Ask this machine. Costs nothing where there is no login session, and some ten milliseconds
    where there is."""
    try:
        session = bool(_IN_SESSION.search((root / "proc/self/cgroup").read_text()))
    except OSError:
        session = False
    is_root = os.geteuid() == 0
    if not session or is_root:
        return decide(in_session=session, root=is_root, kills=None, lingers=None, can_scope=False)
    kills = _yes(answer(["busctl", "get-property", "org.freedesktop.login1",
                      "/org/freedesktop/login1", "org.freedesktop.login1.Manager",
                      "KillUserProcesses"]))
    if not kills:
        return decide(in_session=True, root=False, kills=kills, lingers=None, can_scope=False)
    lingers = _yes(answer(["loginctl", "show-user", str(os.getuid()), "-p", "Linger", "--value"]))
    can = bool(lingers) and answer([*_SCOPE, "--", "true"]) is not None
    return decide(in_session=True, root=False, kills=True, lingers=lingers, can_scope=can)


def here() -> Decision:
    """The result of `examine`, at most half a minute old: a form needs it at every key press."""
    return _at(int(time.monotonic() // 30))


@functools.lru_cache(maxsize=1)
def _at(_: int) -> Decision:
    return examine()


_SCOPE = ("systemd-run", "--user", "--scope", "--collect", "--quiet")


def wrapped(argv: Sequence[str], run_id: str) -> list[str]:
    """`argv` inside a scope; systemd-run becomes it, so open descriptors go along."""
    return [*_SCOPE, f"--unit=gpu-panel-{run_id}", "--", *argv]


def _yes(said: str | None) -> bool | None:
    words = (said or "").split()
    return words[-1] in ("true", "yes", "1") if words else None
