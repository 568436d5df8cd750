"""The key-value store on which ranks meet: rank 0 holds it, the others connect over TCP."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol, cast

import torch.distributed as dist


class Store(Protocol):
    """What ranks use of torch.distributed's stores. A call raises RuntimeError where the process
    that holds the store is gone."""

    def set(self, key: str, value: str, /) -> None:
        """Put a value, in place of one that is there."""
        ...

    def get(self, key: str, /) -> bytes:
        """The value, waited for where it is not there yet."""
        ...

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """The values of several keys, waited for."""
        ...

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter, 0 at first; its new value."""
        ...

    def check(self, keys: list[str], /) -> bool:
        """Whether all of them are there."""
        ...

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Put `desired` where the value is `expected`, "" for none; the value afterwards."""
        ...

    def delete_key(self, key: str, /) -> bool:
        """Take a key away; whether it was there."""
        ...

    def set_timeout(self, timeout: timedelta, /) -> None:
        """How long a call waits for a key."""
        ...

    def clone(self) -> Store:
        """The same store over a connection of its own, for another thread."""
        ...


def tcp(host: str, port: int, world_size: int, *, holds: bool, timeout: timedelta) -> Store:
    """The store at `host`: made there by the rank that `holds` it. Raises RuntimeError."""
    made = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        host, port, world_size, is_master=holds, timeout=timeout, wait_for_workers=False)
    return cast(Store, made)


def of_agent(rank: int, world_size: int) -> Store:
    """The store that torchrun's agent holds, where the environment says. Raises RuntimeError."""
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(iter(rendezvous("env://", rank, world_size)))
    return cast(Store, store)


def below(prefix: str, store: Store) -> Any:
    """The part of `store` whose keys begin with `prefix`, without it: a Store, and torch's own."""
    return dist.PrefixStore(prefix, cast(Any, store))  # pyright: ignore[reportPrivateImportUsage]
