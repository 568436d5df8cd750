"""The key-value store on which ranks meet. Rank 0 holds it, the others connect over TCP. A call
raises RuntimeError if the process that holds it is gone."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gpu_engine.common.floors import torch_since

if TYPE_CHECKING:
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]
else:
    Store = Any


def tcp(host: str, port: int, world_size: int, *, holds: bool, timeout: timedelta) -> Store:
    """Connect to the store at `host`; the rank that `holds` it makes it. Raises RuntimeError.

    Whoever reaches it can end the run, so it listens only at `host` where that is an address of
    this machine. Left to itself, torch's listens at all of them.
    """
    more: dict[str, Any] = {}
    if holds and (listener := _listener(host, port)) is not None:
        # Before torch 2.8 its faster server could not be given a socket.
        more = {"master_listen_fd": listener.detach(),
                "use_libuv": torch_since(torch.__version__, 2, 8)}
    store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        host, port, world_size, is_master=holds, timeout=timeout, wait_for_workers=False, **more)
    _limit_silence(store)
    return store


def _listener(host: str, port: int) -> socket.socket | None:
    """A socket that listens at `host` alone; None where that is a name, which may mean another
    address to others, is no address of this machine, or the port is taken, as torch then says."""
    with contextlib.suppress(OSError):
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
        made = socket.socket(family, kind)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen(socket.SOMAXCONN)
            return made
        except OSError:
            made.close()
    return None


def of_agent(rank: int, world_size: int, *, timeout: timedelta) -> Store:
    """Connect to the store of torchrun's agent, which the environment names. Raises
    RuntimeError."""
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(iter(rendezvous("env://", rank, world_size)))
    store.set_timeout(timeout)
    _limit_silence(store)
    return store


def another(store: Any) -> Store:
    """The same store over a connection of its own, for another thread."""
    own = store.clone()
    _limit_silence(own)
    return own


def _limit_silence(store: Store) -> None:
    """Break this process's connections to `store` once the machine that holds it has acknowledged
    nothing for the store's timeout. PyTorch waits for most answers without a limit, so a rank
    whose link is cut would wait until TCP itself gives up, after a quarter of an hour."""
    at: Any = store
    while hasattr(at, "underlying_store"):
        at = at.underlying_store
    silence = max(int(at.timeout.total_seconds() * 1000), 1000)
    if not sys.platform.startswith("linux"):
        return
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names alone
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6) \
                        and one.getpeername()[1] == at.port:
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silence)


def prefixed(prefix: str, store: Store) -> Store:
    """The part of `store` whose keys begin with `prefix`. Its keys are used without the prefix."""
    return dist.PrefixStore(prefix, store)  # pyright: ignore[reportPrivateImportUsage]
