"""Finding what is wrong with a run folder: it belongs to somebody else, a FIFO stands where a file
should be. One such run must not keep the others from being shown."""

from __future__ import annotations

import json
import os
from pathlib import Path

from gpu_engine.common.files import read_inside, reason, why_not_inside
from gpu_engine.runs import trust

_MOST = 4
"""How many problems of one run are reported."""


def find(path: Path) -> list[str]:
    """What is odd about the run folder `path`: whose it is, and the files in it that can't be read.
    One sentence for each of the first few."""
    why = trust.why_not_ours(path)
    out = [f"only shown: {why}"] if why else []
    for name in ("state.json", "plan.json", "spec.toml", "supervisor.log", "notes.json"):
        if os.path.lexists(path / name) and (why := why_not_inside(path, name)):
            out.append(f"{name} can't be read: {why}")
    try:
        names = sorted(os.listdir(path / "ranks"))  # noqa: PTH208
    except FileNotFoundError:
        names = []
    except OSError as err:
        names = []
        out.append(f"ranks can't be read: {reason(err)}")
    for name in names:
        if len(out) >= _MOST:
            break
        if name.endswith((".jsonl", ".log")) and (why := why_not_inside(path, f"ranks/{name}")):
            out.append(f"ranks/{name} can't be read: {why}")
    return out[:_MOST]


def why_no_state(path: Path) -> str:
    """Why the state of the run in `path` can't be read from its state.json."""
    try:
        text = read_inside(path, "state.json")
    except FileNotFoundError:
        return "state.json is missing"
    except PermissionError as err:
        return f"can't be read: {reason(err)}{whose(path)}"
    except OSError as err:
        return f"state.json can't be read: {reason(err)}"
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return "state.json is damaged: it is not JSON"
    return "state.json is damaged: it holds no state"


def whose(path: Path) -> str:
    """"; it belongs to alice", or "" if it is the current user's."""
    owner = trust.other_owner(path)
    return f"; it belongs to {owner}" if owner else ""
