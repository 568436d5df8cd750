"""How the ranks form a group. They meet on a store first, where missing ranks can be named, and
then make the process group over the network interface that leads to the others."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gpu_engine.common.errors import UserError
from gpu_engine.common.ports import address_of, interface_to
from gpu_engine.worker.rank.failures import first_line
from gpu_engine.worker.rank.identity import Identity
from gpu_engine.worker.rank.process_group import Group
from gpu_engine.worker.rank.store import Store, of_agent, prefixed, tcp


class CannotMeet(UserError):
    """The ranks could not form a group."""

    title = "The ranks did not meet"


def join(who: Identity, backend: str, timeout: float, *, nodes: int = 1,
         device: torch.device | None = None) -> Group:
    """Form the group of all ranks. With the backend "none" it is a group of one, without a store.

    Raises CannotMeet, naming the ranks that did not come within `timeout` seconds.
    """
    if backend == "none":
        return Group(who)
    wait = timedelta(seconds=timeout)
    several = nodes > 1 or who.local_world_size < who.world_size
    store = _store(who, wait)
    if _agents_store():
        store = _attempt_store(store, who, timeout)
    if several:
        store.set(f"gpu-panel/sees/{who.rank}", address_of(who.master_addr) or "")
    _roll_call(store, who, timeout)
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        _choose_interface(store, who, several=several)
    options: dict[str, Any] = {}
    if backend == "nccl":
        options["device_id"] = device
    try:
        dist.init_process_group(backend, store=prefixed("pg", store), rank=who.rank,
                                world_size=who.world_size, timeout=wait, **options)
        control = dist.new_group(backend="gloo", timeout=wait)
    except (RuntimeError, ValueError) as err:
        raise CannotMeet(f"rank {who.rank}: the ranks found each other's names but could not "
                         f"connect over {backend}: {first_line(err)}") from err
    if not isinstance(control, dist.ProcessGroup):
        raise CannotMeet(f"rank {who.rank} is not among the ranks of its own group")
    return Group(who, store, control, timeout)


def _choose_interface(store: Store, who: Identity, *, several: bool) -> None:
    """Tell gloo and NCCL which interface leads to the other machines; on one machine, that nobody
    outside of it is to reach them. Gloo would use the address of the host name, which is 127.0.1.1
    on Debian and can't be reached by the others. If the master address is this machine's own name,
    the address that the other ranks see is used."""
    at = address_of(who.master_addr) if several else None
    if several and at is None:
        keys = [f"gpu-panel/sees/{r}" for r in range(who.world_size)]
        at = next((seen.decode() for seen in store.multi_get(keys) if seen), None)
    # No rank sees the master at another address: all ranks are on this machine after all.
    name = interface_to(at or "127.0.0.1")
    if name:
        os.environ["GLOO_SOCKET_IFNAME"] = name
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "=" + name)


def _agents_store() -> bool:
    """Whether torchrun's agent holds the store. A rank that made one too would wait for ever."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _attempt_store(store: Store, who: Identity, timeout: float) -> Store:
    """The part of torchrun's store that belongs to this attempt. The store still holds the keys of
    earlier attempts, and the agents may number attempts differently. So rank 0 picks a number for
    this attempt, and each other rank asks for it with a random text. Raises CannotMeet."""
    hello, answer = "gpu-panel/hello/{}", "gpu-panel/answer/{}"
    others, deadline, pause = range(1, who.world_size), time.monotonic() + timeout, 0.005
    if who.rank == 0:
        number = store.add("gpu-panel/times", 1)
        this: Store = prefixed(f"gpu-panel/{number}", store)
        answered: dict[int, bytes] = {}
        while others and time.monotonic() < deadline \
                and not this.check([f"gpu-panel/here/{r}" for r in others]):
            for rank in others:
                if not store.check([hello.format(rank)]):
                    continue
                word = store.get(hello.format(rank))
                if answered.get(rank) != word:  # the rank is new, or has been started once more
                    answered[rank] = word
                    store.set(answer.format(rank), f"{word.decode()} {number}")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)
        return this  # the roll call names the ranks that are missing
    word = secrets.token_hex(8)
    store.set(hello.format(who.rank), word)
    while time.monotonic() < deadline:
        if store.check([answer.format(who.rank)]):
            got, _, number = store.get(answer.format(who.rank)).decode().partition(" ")
            if got == word:
                return prefixed(f"gpu-panel/{number}", store)
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25)
    raise CannotMeet(f"rank 0 of {who.world_size} did not come to {who.master_addr}:"
                     f"{who.master_port} within {timeout:g} s")


def _store(who: Identity, wait: timedelta) -> Store:
    if _agents_store():
        return of_agent(who.rank, who.world_size, timeout=wait)
    addr, port = who.master_addr, who.master_port
    if addr is None or port is None:
        raise CannotMeet("MASTER_ADDR and MASTER_PORT don't say where the ranks meet")
    try:
        return tcp(addr, port, who.world_size, holds=who.rank == 0, timeout=wait)
    except RuntimeError as err:
        if who.rank == 0:
            raise CannotMeet(f"can't listen on port {port}: {first_line(err)}") from err
        raise CannotMeet(f"rank 0 does not answer at {addr}:{port} within "
                         f"{wait.total_seconds():g} s: {first_line(err)}") from err


def _roll_call(store: Store, who: Identity, timeout: float) -> None:
    """Wait until every rank is there. Raises CannotMeet, naming the ranks that are missing."""
    store.set(f"gpu-panel/here/{who.rank}", socket.gethostname())
    keys = [f"gpu-panel/here/{r}" for r in range(who.world_size)]
    deadline = time.monotonic() + timeout
    pause = 0.005
    while not store.check(keys):
        if time.monotonic() > deadline:
            gone = missing_ranks(store.check([k]) for k in keys)
            raise CannotMeet(f"{gone} of {who.world_size} did not come to "
                             f"{who.master_addr}:{who.master_port} within {timeout:g} s")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25)


def missing_ranks(there: Iterable[bool]) -> str:
    """The ranks that are not there, as "rank 1" or "ranks 1, 3"."""
    gone = [str(rank) for rank, here in enumerate(there) if not here]
    return f"rank{'s' if len(gone) > 1 else ''} {', '.join(gone)}"
