"""Two machines for tests: network namespaces that a cable joins."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def joined(network: str) -> Iterator[list[str]]:
    """The names of two network namespaces with the addresses `network`.1 and `network`.2, which
    are gone afterwards. Skips the test where this machine does not let us make them."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("needs root and iproute2")
    names, ends = [[f"{kind}{os.getpid()}{i}" for i in (0, 1)] for kind in ("gpupanel", "gp")]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", ends[0], "netns", names[0], "type", "veth", "peer", "name", ends[1],
           "netns", names[1])
        for number, (name, end) in enumerate(zip(names, ends, strict=True), 1):
            ip("-n", name, "addr", "add", f"{network}.{number}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
    except subprocess.CalledProcessError as err:
        _remove(names)
        pytest.skip(f"no network namespaces here: {err.stderr.decode().strip()}")
    try:
        yield names
    finally:
        _remove(names)


def _remove(names: list[str]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
