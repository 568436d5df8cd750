"""The key-value store on which ranks meet. Rank 0 holds it, the others connect over TCP."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol, cast

import torch.distributed as dist


class Store(Protocol):
    """The methods of torch.distributed's stores that ranks use. A call raises RuntimeError if the
    process that holds the store is gone."""

    def set(self, key: str, value: str, /) -> None:
        """Set a key, in place of any old value."""
        ...

    def get(self, key: str, /) -> bytes:
        """The value of a key. Waits until it is set."""
        ...

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """The values of several keys. Waits until all are set."""
        ...

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter, which begins at 0. Returns its new value."""
        ...

    def check(self, keys: list[str], /) -> bool:
        """Whether all of these keys are set."""
        ...

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set `desired` if the value is `expected` ("": not set). Returns the value afterwards."""
        ...

    def delete_key(self, key: str, /) -> bool:
        """Delete a key. Returns whether it was set."""
        ...

    def set_timeout(self, timeout: timedelta, /) -> None:
        """Set how long a call waits for a key."""
        ...

    def clone(self) -> Store:
        """The same store over a new connection, for another thread."""
        ...


def tcp(host: str, port: int, world_size: int, *, holds: bool, timeout: timedelta) -> Store:
    """Connect to the store at `host`; the rank that `holds` it makes it. Raises RuntimeError."""
    made = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        host, port, world_size, is_master=holds, timeout=timeout, wait_for_workers=False)
    return cast(Store, made)


def of_agent(rank: int, world_size: int) -> Store:
    """Connect to the store of torchrun's agent, which the environment names. Raises
    RuntimeError."""
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(iter(rendezvous("env://", rank, world_size)))
    return cast(Store, store)


def prefixed(prefix: str, store: Store) -> Any:
    """The part of `store` whose keys begin with `prefix`. Its keys are used without the prefix. It
    is a Store, and also a store that torch accepts."""
    return dist.PrefixStore(prefix, cast(Any, store))  # pyright: ignore[reportPrivateImportUsage]
