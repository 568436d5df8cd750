"""How the ranks come together: on a store first, where those that are missing can be named, and
then as a process group over the interface that leads to the others."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterable
from datetime import timedelta

import torch
import torch.distributed as dist

from gpu_engine.common.errors import UserError
from gpu_engine.worker.rank.failures import first_line
from gpu_engine.worker.rank.identity import Identity
from gpu_engine.worker.rank.interfaces import address_of, interface_to
from gpu_engine.worker.rank.process_group import Group
from gpu_engine.worker.rank.store import Store, below, of_agent, tcp


class CannotMeet(UserError):
    """The ranks could not form a group."""

    title = "The ranks did not meet"


def join(who: Identity, backend: str, timeout: float, *, nodes: int = 1,
         device: torch.device | None = None) -> Group:
    """Form the group of all ranks. `backend` "none": a group of one, without any of it.

    Raises CannotMeet naming the ranks that did not come within `timeout` seconds.
    """
    if backend == "none":
        return Group(who)
    wait = timedelta(seconds=timeout)
    several = nodes > 1 or who.local_world_size < who.world_size
    store = _store(who, wait)
    if _agents_store():
        store = _this_time(store, who, timeout)
    if several:
        store.set(f"gpu-panel/sees/{who.rank}", address_of(who.master_addr) or "")
    _roll_call(store, who, timeout)
    if several and "GLOO_SOCKET_IFNAME" not in os.environ:
        _name_interface(store, who)
    bound = device if backend == "nccl" else None
    try:
        dist.init_process_group(backend, store=below("pg", store), rank=who.rank,
                                world_size=who.world_size, timeout=wait, device_id=bound)
        control = dist.new_group(backend="gloo", timeout=wait)
    except (RuntimeError, ValueError) as err:
        raise CannotMeet(f"rank {who.rank}: the ranks found each other's names but could not "
                         f"connect over {backend}: {first_line(err)}") from err
    if not isinstance(control, dist.ProcessGroup):
        raise CannotMeet(f"rank {who.rank} is not among the ranks of its own group")
    return Group(who, store, control, timeout)


def _name_interface(store: Store, who: Identity) -> None:
    """Tell gloo and NCCL which interface leads to the other machines. Gloo would ask what the host
    name resolves to: on Debian 127.0.1.1, which the others can't reach. Where the meeting point is
    that to us, too, it is our own name, and the others know the address behind it."""
    at = address_of(who.master_addr)
    if at is None:
        keys = [f"gpu-panel/sees/{r}" for r in range(who.world_size)]
        at = next((seen.decode() for seen in store.multi_get(keys) if seen), None)
    # Nobody sees another: all ranks are on this machine, though it is called several.
    name = interface_to(at or "127.0.0.1")
    if name:
        os.environ["GLOO_SOCKET_IFNAME"] = name
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "=" + name)


def _agents_store() -> bool:
    """Whether torchrun's agent listens on the port; a rank that did too would wait for ever."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _this_time(store: Store, who: Identity, timeout: float) -> Store:
    """A part of torchrun's store for these processes alone: it holds what the ranks of earlier
    attempts said, and their agents may count attempts differently. Rank 0 answers each rank's
    greeting, a number nobody else has, with the number of this time. Raises CannotMeet."""
    hello, answer = "gpu-panel/hello/{}", "gpu-panel/answer/{}"
    others, deadline, pause = range(1, who.world_size), time.monotonic() + timeout, 0.005
    if who.rank == 0:
        number = store.add("gpu-panel/times", 1)
        this: Store = below(f"gpu-panel/{number}", store)
        answered: dict[int, bytes] = {}
        while others and time.monotonic() < deadline \
                and not this.check([f"gpu-panel/here/{r}" for r in others]):
            for rank in others:
                if not store.check([hello.format(rank)]):
                    continue
                word = store.get(hello.format(rank))
                if answered.get(rank) != word:  # else it is answered, or is of an earlier attempt
                    answered[rank] = word
                    store.set(answer.format(rank), f"{word.decode()} {number}")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)
        return this  # the roll call names those that did not come
    word = secrets.token_hex(8)
    store.set(hello.format(who.rank), word)
    while time.monotonic() < deadline:
        if store.check([answer.format(who.rank)]):
            got, _, number = store.get(answer.format(who.rank)).decode().partition(" ")
            if got == word:
                return below(f"gpu-panel/{number}", store)
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25)
    raise CannotMeet(f"rank 0 of {who.world_size} did not come to {who.master_addr}:"
                     f"{who.master_port} within {timeout:g} s")


def _store(who: Identity, wait: timedelta) -> Store:
    if _agents_store():
        store = of_agent(who.rank, who.world_size)
        store.set_timeout(wait)
        return store
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
    """Wait until every rank is there, so that one that isn't can be named."""
    store.set(f"gpu-panel/here/{who.rank}", socket.gethostname())
    keys = [f"gpu-panel/here/{r}" for r in range(who.world_size)]
    deadline = time.monotonic() + timeout
    pause = 0.005
    while not store.check(keys):
        if time.monotonic() > deadline:
            gone = missing(store.check([k]) for k in keys)
            raise CannotMeet(f"{gone} of {who.world_size} did not come to "
                             f"{who.master_addr}:{who.master_port} within {timeout:g} s")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25)


def missing(there: Iterable[bool]) -> str:
    """"rank 1" or "ranks 1, 3": those that are not there."""
    gone = [str(rank) for rank, here in enumerate(there) if not here]
    return f"rank{'s' if len(gone) > 1 else ''} {', '.join(gone)}"
