"""The users of this machine: their names, and whether a process is theirs."""

from __future__ import annotations

import os
import pwd
from functools import lru_cache

from gpu_engine.common.clean import clean


@lru_cache(maxsize=4096)
def name(uid: int) -> str:
    """The user's name; "uid 1234" if the machine knows none, as for a user of a container."""
    try:
        return clean(pwd.getpwuid(uid).pw_name, 40) or f"uid {uid}"
    except (KeyError, OverflowError):
        return f"uid {uid}"


def own_process(pid: int, uid: int) -> bool:
    """Whether this process is seen from here and is this user's."""
    try:
        return os.stat(f"/proc/{pid}").st_uid == uid  # noqa: PTH116
    except OSError:
        return False
