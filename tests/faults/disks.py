"""Small disks, full disks, and the size of a folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def du(folder: Path) -> int:
    """The bytes that a folder takes on the disk."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total


@contextlib.contextmanager
def mounted(where: Path, size: str, *options: str) -> Iterator[Path]:
    """A small disk."""
    where.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join([f"size={size}", *options]),
                           "gpu-panel-faults", str(where)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"can't mount a small disk here: {done.stderr.strip()}")
    try:
        yield where
    finally:
        for _ in range(50):
            if subprocess.run(["umount", str(where)], capture_output=True).returncode == 0:
                break
            time.sleep(0.1)
        else:
            for pid in _using(where):  # of a case that failed: nobody would find them any more
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["umount", "-l", str(where)], capture_output=True)


def _using(where: Path) -> Iterator[int]:
    """The processes that have a file open below a folder."""
    for fds in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            if any(fd.readlink().is_relative_to(where) for fd in fds.iterdir()):
                yield int(fds.parent.name)


def fill(folder: Path) -> Path:
    """Fill the disk of `folder` completely. Returns the file that fills it."""
    path = folder / "ballast"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        size = 1 << 20
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2
    return path


@contextlib.contextmanager
def kept_full(folder: Path) -> Iterator[None]:
    """Keep the disk of `folder` full, also when somebody removes a file: a checkpoint that could
    not be written whole, and an earlier one whose time has come, would make room for events."""
    done = threading.Event()

    def keep() -> None:
        with path.open("ab", buffering=0) as file:
            while not done.wait(0.01):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"x" * 512)

    path = fill(folder)
    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        path.unlink()


def can_be_root() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None
