"""The ranks as a group: how they meet, small reductions and broadcasts, and leaving in good order.

They meet on a store first, where missing ranks can be named, and then make the process group over
the network interface that leads to the others. Flags and sums travel between CPUs over gloo, even
if gradients go over NCCL, so that they cost no GPU synchronisation.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import socket
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gpu_engine.common.errors import UserError
from gpu_engine.common.floors import torch_since
from gpu_engine.common.ports import address_of, interface_to
from gpu_engine.worker.rank.getting_on import own_sockets
from gpu_engine.worker.rank.job import Identity
from gpu_engine.worker.rank.peers import Peers, Store, come, first_line, named
from gpu_engine.worker.rank.recorder import Recorder

_PIECE = 64 << 20  # bytes; gloo sends a message as a whole, however large


class Group:
    """All ranks, as one of them uses them. With a single rank and no process group, every method
    works locally."""

    def __init__(self, who: Identity, store: Store | None = None,
                 control: dist.ProcessGroup | None = None, timeout: float = 300.0,
                 of_agent: Store | None = None) -> None:
        """`timeout`: seconds without a heartbeat after which another rank counts as lost."""
        self.of_agent = of_agent
        """The store of torchrun's agent, which is the same in all attempts; None: rank 0's own."""
        self.rank, self.size = who.rank, who.world_size
        self._control = control
        self.peers = None if store is None else Peers(who.rank, who.world_size, store, timeout)
        """What the ranks tell each other on the store; None if there are no others."""
        self._store = store
        self._rec: Recorder | None = None

    def beside(self, rec: Recorder) -> Callable[[], None] | None:
        """What the thread of `rec` is to do at each tick while this rank trains; None if there are
        no others. From now on `rec` also records which ranks this one waits for, and how long."""
        self._rec, peers = rec, self.peers
        if peers is None or self.size == 1:
            return None
        peers.report_wait = lambda text: setattr(rec, "detail", text)
        own = another_connection(self._store)  # the main one is busy while a collective waits on it
        return lambda: peers.tick(rec, own)

    # --- waiting for a rank that may be busy for a long time: raise PeerLost ------------------

    def barrier(self) -> None:
        """Wait until all ranks have called this, however long one is busy."""
        if self.peers is None:
            return
        parts = self._rec.parts if self._rec is not None and self._rec.training else None
        before = "" if parts is None else parts.last
        if parts is not None:
            parts.mark("wait")
        self.peers.wait()
        if parts is not None:
            parts.mark(before)

    def broadcast(self, text: str) -> str:
        """Rank 0's text, on every rank."""
        return text if self.peers is None else self.peers.broadcast(text)

    def gather(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, in the order of ranks, on rank 0; [] elsewhere."""
        return [data] if self.peers is None else self.peers.gather(data)

    # --- collectives ------------------------------------------------------------------------

    def all_reduce_max(self, values: list[float]) -> list[float]:
        """For each value, the largest that any rank passed. All ranks call it at the same step."""
        if self._control is None:
            return values
        # float64 holds every whole number up to 2**53 exactly.
        table = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(table, dist.ReduceOp.MAX, group=self._control)
        return table.tolist()

    def start_all_reduce_sum(self, cell: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Start to add up a tensor over all ranks, in place and on its own device, without waiting
        (on a GPU over NCCL). Returns a function that returns the sum."""
        if self._control is None:
            return lambda: cell
        work = dist.all_reduce(cell, dist.ReduceOp.SUM, async_op=True,
                               group=self._control if cell.is_cpu else None)

        def result() -> torch.Tensor:
            if work is not None:  # None: this process is not in the group
                work.wait()
            return cell

        return result

    def broadcast_pieces(self, source: Any, size: int) -> Iterator[memoryview]:
        """The `size` bytes of rank 0's file, piece by piece, on every rank. `source` is that file
        on rank 0 and None elsewhere. Raises OSError if it is shorter."""
        cell = torch.empty(min(size, _PIECE), dtype=torch.uint8)
        view = memoryview((ctypes.c_char * len(cell)).from_address(cell.data_ptr())).cast("B")
        for start in range(0, size, _PIECE):
            count = min(_PIECE, size - start)
            at = 0
            while source is not None and at < count:
                got = source.readinto(view[at:count])
                if not got:
                    raise OSError(f"{source.name}: ends after {start + at} of {size} bytes")
                at += got
            if self._control is not None:
                dist.broadcast(cell[:count], 0, group=self._control)
            yield view[:count]

    def close(self) -> None:
        """Leave the group in good order. Rank 0 leaves last, as it holds the store."""
        if self.peers is not None:
            self.peers.leave()
        if dist.is_initialized():
            dist.destroy_process_group()
        self._control = None


def pack_first(step: int | None, rank: int, size: int) -> float:
    """Pack (step, rank) into one number that is larger for an earlier step and, at the same step,
    for a lower rank, so that a MAX reduction finds the first one. 0 stands for no step."""
    return 0.0 if step is None else float(2 ** 52 - (step * size + rank))


def unpack_first(value: float, size: int) -> tuple[int, int] | None:
    """The (step, rank) that `pack_first` packed; None for no step."""
    if value <= 0 or not math.isfinite(value):
        return None
    return divmod(2 ** 52 - int(value), size)

# ------------------------------------------------------------------------------------------------
# How the ranks form a group. They meet on a store first, where missing ranks can be named, and
# then make the process group over the network interface that leads to the others.


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
    # Torchrun's agent holds the store. A rank that made one too would wait for ever.
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    whole = store = _store(who, wait, holds=who.rank == 0 and not agent)
    if agent:  # it still holds the keys of earlier attempts
        store = prefixed(f"gpu-panel/{os.environ.get('TORCHELASTIC_RESTART_COUNT')}", store)
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
    return Group(who, store, control, timeout, whole if agent else None)


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


def _store(who: Identity, wait: timedelta, *, holds: bool) -> Store:
    addr, port = who.master_addr, who.master_port
    if addr is None or port is None:
        raise CannotMeet("MASTER_ADDR and MASTER_PORT don't say where the ranks meet")
    try:
        return tcp_store(addr, port, who.world_size, holds=holds, timeout=wait)
    except RuntimeError as err:
        if holds:
            raise CannotMeet(f"can't listen on port {port}: {first_line(err)}") from err
        raise CannotMeet(f"rank 0 does not answer at {addr}:{port} within "
                         f"{wait.total_seconds():g} s: {first_line(err)}") from err


def _roll_call(store: Store, who: Identity, timeout: float) -> None:
    """Wait until every rank is there. Raises CannotMeet, naming the ranks that are missing."""
    come(store, who.rank)
    keys = [f"gpu-panel/here/{r}" for r in range(who.world_size)]
    deadline = time.monotonic() + timeout
    pause = 0.005
    while not store.check(keys):
        if time.monotonic() > deadline:
            gone = named([rank for rank, key in enumerate(keys) if not store.check([key])])
            raise CannotMeet(f"{gone} of {who.world_size} did not come to "
                             f"{who.master_addr}:{who.master_port} within {timeout:g} s")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25)


# ------------------------------------------------------------------------------------------------
# The key-value store on which ranks meet. Rank 0 holds it, the others connect over TCP. A call
# raises RuntimeError if the process that holds it is gone.


def tcp_store(host: str, port: int, world_size: int, *, holds: bool, timeout: timedelta) -> Store:
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


def another_connection(store: Any) -> Store:
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
    for one in own_sockets():
        with contextlib.suppress(OSError):
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.getpeername()[1] == at.port:
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silence)


def prefixed(prefix: str, store: Store) -> Store:
    """The part of `store` whose keys begin with `prefix`. Its keys are used without the prefix."""
    return dist.PrefixStore(prefix, store)  # pyright: ignore[reportPrivateImportUsage]
