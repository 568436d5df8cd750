"""The ranks as a group: meeting, agreeing on flags, adding up sums, and leaving.

Flags and sums travel over gloo between CPUs even where gradients go over NCCL, so that asking
the others costs no GPU synchronisation.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import math
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import IO

import torch
import torch.distributed as dist

from gpu_engine.errors import UserError
from gpu_engine.worker.identity import Identity
from gpu_engine.worker.meeting import Meetings, PeerLost, Pulse
from gpu_engine.worker.recorder import Recorder

_SIOCGIFADDR = 0x8915  # linux/sockios.h
_TEXT = 8192
_LINGER = 3.0
_PIECE = 64 << 20  # gloo sends a message in one piece


class CannotMeet(UserError):
    """The ranks could not form a group."""

    title = "The ranks did not meet"


class Group:
    """This rank's view of all ranks. With one rank and no process group everything is local."""

    def __init__(self, who: Identity, store: dist.Store | None = None,
                 control: dist.ProcessGroup | None = None, timeout: float = 300.0) -> None:
        """`timeout`: seconds without a sign of life after which another rank is given up."""
        self.rank, self.size = who.rank, who.world_size
        self._store = store
        self._control = control
        self._heard: str | None = None
        self.meetings = None if store is None else Meetings(
            who.rank, who.world_size, store, timeout, self.failure)

    # --- where one may be busy for long -----------------------------------------------------

    def meet(self) -> None:
        """Wait until all ranks are here, however long one is busy: see `meeting`."""
        if self.meetings is not None:
            self.meetings.meet()

    def hear(self, text: str) -> str:
        """Rank 0's text, on every rank, however long rank 0 takes to come to it."""
        return text if self.meetings is None else self.meetings.hear(text)

    def tell_waits(self, rec: Recorder) -> None:
        """Have `rec` say what this rank waits for."""
        if self.meetings is not None:
            self.meetings.say = lambda text: setattr(rec, "detail", text)

    # --- collectives ------------------------------------------------------------------------

    def agree(self, values: list[float]) -> list[float]:
        """Of each value the largest that any rank gave. All ranks call it, at the same step."""
        if self._control is None:
            return values
        # float64 holds every whole number up to 2**53 exactly.
        table = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(table, dist.ReduceOp.MAX, group=self._control)
        return table.tolist()

    def start_agree(self, value: int) -> Callable[[], int]:
        """Ask for the smallest value that any rank gives, without waiting for the answer; call
        what it returns to have it."""
        if self._control is None:
            return lambda: value
        cell = torch.tensor([value])
        work = dist.all_reduce(cell, dist.ReduceOp.MIN, group=self._control, async_op=True)

        def answer() -> int:
            work.wait()
            return int(cell.item())
        return answer

    def sum(self, table: torch.Tensor) -> torch.Tensor:
        """The sum over ranks of a CPU tensor, in place. Exact where all but one rank give 0."""
        if self._control is not None:
            dist.all_reduce(table, dist.ReduceOp.SUM, group=self._control)
        return table

    def start_sum(self, cell: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Begin to add up a tensor over ranks, in place and on its own device (over NCCL on a
        GPU, which no rank waits for); call what it returns to have the sum."""
        if self._control is None:
            return lambda: cell
        work = dist.all_reduce(cell, dist.ReduceOp.SUM, async_op=True)

        def answer() -> torch.Tensor:
            work.wait()
            return cell
        return answer

    def from_first(self, text: str) -> str:
        """Rank 0's text (at most 8 KiB of UTF-8), on every rank."""
        if self._control is None:
            return text
        cell = torch.zeros(_TEXT, dtype=torch.uint8)
        if self.rank == 0:
            cell[:len(text.encode())] = _bytes(text.encode())
        dist.broadcast(cell, 0, group=self._control)
        return bytes(cell.tolist()).rstrip(b"\0").decode()

    def bytes_from_first(self, data: bytes) -> bytes:
        """Rank 0's bytes, on every rank."""
        if self._control is None:
            return data
        size = torch.tensor([len(data)])
        dist.broadcast(size, 0, group=self._control)
        cell = torch.empty(int(size), dtype=torch.uint8)
        if self.rank == 0:
            cell.copy_(_bytes(data))
        for piece in cell.split(_PIECE):
            dist.broadcast(piece, 0, group=self._control)
        return ctypes.string_at(cell.data_ptr(), cell.numel())  # numpy may not be there

    def pieces_from_first(self, source: IO[bytes] | None, size: int) -> Iterator[memoryview]:
        """The `size` bytes of rank 0's file, piece by piece, on every rank."""
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

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, in order, on rank 0; [] elsewhere."""
        if self._control is None:
            return [data]
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = len(data)
        dist.all_reduce(sizes, group=self._control)
        cell = torch.zeros(int(sizes.max()), dtype=torch.uint8)
        cell[:len(data)] = _bytes(data)
        cells = [torch.empty_like(cell) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(cell, cells, 0, group=self._control)
        if cells is None:
            return []
        return [bytes(c[:n].tolist()) for c, n in zip(cells, sizes.tolist(), strict=True)]

    # --- failure ----------------------------------------------------------------------------

    def announce(self, message: str) -> None:
        """Leave word that this rank failed, for those that will notice only that it is gone.

        Rank 0 holds the store: it stays until the others have read, for a few seconds at most.
        """
        if self._store is None or self.size == 1:
            return
        with contextlib.suppress(Exception):
            text = json.dumps({"rank": self.rank, "message": message[:2000]})
            # The first word stands: a later failure is often an echo of it.
            self._store.compare_set("gpu-panel/failed", "", text)
            self._store.set(f"gpu-panel/saw/{self.rank}", "1")
            if self.rank == 0:
                if dist.get_backend() == "gloo":
                    dist.destroy_process_group()  # wakes those that wait for this rank
                deadline = time.monotonic() + _LINGER
                others = [f"gpu-panel/saw/{r}" for r in range(1, self.size)]
                while time.monotonic() < deadline and not self._store.check(others):
                    time.sleep(0.02)

    def failure(self) -> str | None:
        """What another rank announced, where it can be read: "rank 1: …"."""
        return self._heard or self._listen(self._store)

    def watcher(self) -> tuple[Callable[[], str | None], Callable[[str], None]]:
        """`failure`, and giving a sign of life with what this rank is doing, for another thread,
        on its own connection: a connection that a collective waits on would be busy."""
        if self._store is None or self.size == 1:
            return lambda: None, lambda doing: None
        own = self._store.clone()
        return lambda: self._heard or self._listen(own), Pulse(self.rank, own)

    def _listen(self, store: dist.Store | None) -> str | None:
        if store is None:
            return None
        try:
            if not store.check(["gpu-panel/failed"]):
                return None
            word = json.loads(store.get("gpu-panel/failed"))
            # It comes over the network from whoever reaches the port: data, nothing more.
            if word["rank"] != self.rank:
                self._heard = f"rank {int(word['rank'])}: {str(word['message'])[:2000]}"
                store.set(f"gpu-panel/saw/{self.rank}", "1")
        except Exception:  # noqa: BLE001 - the store lives on rank 0, which may be gone
            pass
        return self._heard

    def close(self) -> None:
        """Leave in good order. Rank 0 takes the store with it, so it goes last."""
        if self.meetings is not None:
            self.meetings.part()
        if dist.is_initialized():
            dist.destroy_process_group()
        self._control = None


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
        dist.init_process_group(backend, store=dist.PrefixStore("pg", store), rank=who.rank,
                                world_size=who.world_size, timeout=wait, device_id=bound)
        control = dist.new_group(backend="gloo", timeout=wait)
    except (RuntimeError, ValueError) as err:
        raise CannotMeet(f"rank {who.rank}: the ranks found each other's names but could not "
                         f"connect over {backend}: {first_line(err)}") from err
    return Group(who, store, control, timeout)


def address_of(host: str | None) -> str | None:
    """The numeric address that `host` means to this machine; None where it means this machine
    itself (Debian gives a machine's own name 127.0.1.1) or nothing."""
    try:
        found = socket.getaddrinfo(host or "", 9, type=socket.SOCK_DGRAM)[0][4][0]
    except OSError:
        return None
    return None if found.startswith("127.") or found == "::1" else str(found)


def _name_interface(store: dist.Store, who: Identity) -> None:
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


def interface_to(address: str) -> str | None:
    """The network interface through which `address` is reached; None where it can't be told.

    A UDP socket sends nothing when it connects, but its local address is the route's.
    """
    try:
        infos = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)
        family, kind, proto, _, target = infos[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(target)
            local = probe.getsockname()[0]
    except OSError:
        return None
    for _, name in socket.if_nameindex():
        if local in _addresses(name):
            return name
    # 127.0.0.2 and the like are no interface's own address.
    return "lo" if local.startswith("127.") else None


def blame(err: BaseException, group: Group) -> BaseException:
    """`err`, or the failure of another rank that it's only an echo of."""
    if _is_connection(err):
        for _ in range(10):
            word = group.failure()
            if word:
                return PeerLost(f"{word} (this rank could not go on without it)")
            time.sleep(0.1)
        return PeerLost("the connection to another rank broke: it ended or its machine can't be "
                        f"reached ({first_line(err)})")
    return err


def _bytes(data: bytes) -> torch.Tensor:
    # torch.frombuffer refuses a buffer of no bytes.
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(
        0, dtype=torch.uint8)


def first_line(err: BaseException) -> str:
    text = str(err).strip()
    return text.splitlines()[0].partition(". This is typically")[0] if text else type(err).__name__


_OWN = ("ncclinvalid", "invalid usage", "duplicate gpu", "ncclunhandledcuda", "cuda error",
        "out of memory")
"""What NCCL says where the fault is this rank's, though it comes as its backend's error."""


def _is_connection(err: BaseException) -> bool:
    """Whether it is what gloo, NCCL or the store raise when another rank is gone. By who raised
    it: a task's own errors may speak of NCCL or of a read that timed out, too."""
    text = str(err).lower()
    if isinstance(err, dist.DistError):
        return not any(sign in text for sign in _OWN)
    return isinstance(err, RuntimeError) and "gloo/" in text  # the source file it comes from


def _agents_store() -> bool:
    """Whether torchrun's agent listens on the port; a rank that did too would wait for ever."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _this_time(store: dist.Store, who: Identity, timeout: float) -> dist.Store:
    """A part of torchrun's store for these processes alone: it holds what the ranks of earlier
    attempts said, and their agents may count attempts differently. Rank 0 answers each rank's
    greeting, a number nobody else has, with the number of this time. Raises CannotMeet."""
    hello, answer = "gpu-panel/hello/{}", "gpu-panel/answer/{}"
    others, deadline, pause = range(1, who.world_size), time.monotonic() + timeout, 0.005
    if who.rank == 0:
        number = store.add("gpu-panel/times", 1)
        this = dist.PrefixStore(f"gpu-panel/{number}", store)
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
                return dist.PrefixStore(f"gpu-panel/{number}", store)
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25)
    raise CannotMeet(f"rank 0 of {who.world_size} did not come to {who.master_addr}:"
                     f"{who.master_port} within {timeout:g} s")


def _store(who: Identity, wait: timedelta) -> dist.Store:
    if _agents_store():
        store, _, _ = next(iter(dist.rendezvous("env://", who.rank, who.world_size)))
        store.set_timeout(wait)
        return store
    addr, port = who.master_addr, who.master_port
    if addr is None or port is None:
        raise CannotMeet("MASTER_ADDR and MASTER_PORT don't say where the ranks meet")
    try:
        return dist.TCPStore(addr, port, who.world_size, is_master=who.rank == 0,
                             timeout=wait, wait_for_workers=False)
    except RuntimeError as err:
        if who.rank == 0:
            raise CannotMeet(f"can't listen on port {port}: {first_line(err)}") from err
        raise CannotMeet(f"rank 0 does not answer at {addr}:{port} within "
                         f"{wait.total_seconds():g} s: {first_line(err)}") from err


def _roll_call(store: dist.Store, who: Identity, timeout: float) -> None:
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


def _addresses(name: str) -> set[str]:
    found = set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        answer = fcntl.ioctl(sock, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        found.add(socket.inet_ntoa(answer[20:24]))
    with contextlib.suppress(OSError), open("/proc/net/if_inet6") as table:  # noqa: PTH123
        for line in table:
            raw, *_, owner = line.split()
            if owner == name:
                found.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(raw)))
    return found


def pack_first(step: int | None, rank: int, size: int) -> float:
    """The earliest step and then the lowest rank as a number that is larger the earlier it is,
    so that MAX finds it; 0 for no step."""
    return 0.0 if step is None else float(2 ** 52 - (step * size + rank))


def unpack_first(value: float, size: int) -> tuple[int, int] | None:
    """(step, rank) of `pack_first`."""
    if value <= 0 or not math.isfinite(value):
        return None
    return divmod(2 ** 52 - int(value), size)
