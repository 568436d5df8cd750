"""The command line as another machine's gpu-engine calls it (`reach.call`): `gpu-engine --wire WORD
COMMAND`.

What it starts goes on: runs have supervisors of their own.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from gpu_engine import __version__
from gpu_engine.common import paths
from gpu_engine.common.errors import UserError, telling
from gpu_engine.common.procs import readable
from gpu_engine.remote.reach import protocol


def begin(word: str) -> str:
    """From now on errors are answers alone, and ids mean what others have started here. Returns
    what is said first, so that whoever reads knows where our lines begin."""
    os.environ["PATH"] = search_path(os.environ.get("PATH", os.defpath))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    paths.serving = True
    return f"\n{protocol.MARK} {word} {protocol.VERSION} {__version__}"


def content(most: int) -> bytes:
    """What stands on standard input, or little more than `most` bytes of it. Nobody is waited for
    longer than a while."""
    data = bytearray()
    while len(data) <= most and readable(0, protocol.SILENCE) and (got := os.read(0, 1 << 20)):
        data += got
    return bytes(data)


def end_with_input() -> None:
    """End this process as soon as nobody is there any more. Returns once somebody is."""
    def heard() -> bool:
        return readable(0, protocol.SILENCE) and os.read(0, 4096) != b""

    def watch() -> None:
        while heard():
            continue
        os._exit(0)

    if not heard():
        os._exit(0)
    threading.Thread(target=watch, daemon=True).start()


def search_path(path: str) -> str:
    """Where a run's command is looked for: ssh gives a short PATH, without the environment that
    holds this interpreter. If that has torch it comes first, as if it were activated; else last."""
    own = str(Path(sys.executable).parent)
    others = [p for p in path.split(os.pathsep) if p and p != own]
    first = importlib.util.find_spec("torch") is not None
    return os.pathsep.join([own, *others] if first else [*others, own])


def enter(folders: Sequence[str]) -> Path:
    """Go into the first of `folders` that exists, as if what follows were typed there. Raises
    UserError."""
    found = (Path(os.path.expandvars(f)).expanduser() for f in folders)
    path = next((path.absolute() for path in found if path.is_dir()), None)
    if path is None:
        raise UserError(f"there is no folder {folders[0]} there; name the one that has your files "
                        "(folder in hosts.toml)")
    with telling(f"{path}: can't be entered"):
        os.chdir(path)
    return Path.cwd()
