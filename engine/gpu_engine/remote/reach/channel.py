"""One way to one host: a process (ssh, or an agent that is our child), its lines in and out.

A channel is opened once and ends once; then it has a reason, and another one is opened. Nobody
waits for it without a limit.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import secrets
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TypeVar

from gpu_engine.common.errors import UserError
from gpu_engine.common.procs import readable
from gpu_engine.common.programs import own_program
from gpu_engine.remote.reach import protocol, reasons, ssh
from gpu_engine.remote.reach.records import BadName, Host

OPEN = 30.0
"""Seconds in which an agent has to be there."""
ASK = 60.0
"""Seconds for an answer."""
PING = 15.0
"""Seconds between two signs of life for the agent, which ends without any."""
_SILENT = 45.0
"""Seconds without a line from there after which the way is given up: three signs of life."""
_NOISE = 1 << 20
"""Bytes that a login shell may print before the agent begins."""
_ODD = 1000
"""Lines that are none of the agent's, which are passed over in all."""
_SAID = 16 << 10
"""The end of what came on stderr, as much as is kept."""
_AHEAD = 8
"""Requests of `send_all` on their way at a time: a host far away is not waited for after each."""
_WAITING = 64
"""Answers to one request that wait to be read before no more is taken from the pipe."""

A = TypeVar("A", bound=protocol.Message)
T = TypeVar("T")


class HostError(UserError):
    """A host could not be asked, or has refused. Its text begins with the host's name."""

    def __init__(self, host: str, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{host}: {reason}")


class Unreachable(HostError):
    """The host can't be asked, or can't any more."""

    title = "A host can't be reached"


class Refused(HostError):
    """The host has answered that it can't be done."""

    title = "A host could not do it"


class Stream:
    """The answers to one request, in their order."""

    def __init__(self, channel: Channel, number: int) -> None:
        self.number = number
        self._channel = channel
        self._answers: queue.Queue[protocol.Answer] = queue.Queue(_WAITING)
        self._over = threading.Event()

    def next(self, seconds: float | None) -> protocol.Answer | None:
        """The next answer; None where none came within `seconds` (None: however long it takes).
        Raises Unreachable when the channel has ended, Refused for `Failed`."""
        end = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            ended = self._channel.ended  # what came before that is still to be read
            try:
                got = self._answers.get(timeout=max(0.0, min(1.0, end - time.monotonic())))
            except queue.Empty:
                if ended is not None:
                    raise Unreachable(self._channel.host.name, ended) from None
                if time.monotonic() >= end:
                    return None
                continue
            if isinstance(got, protocol.Failed):
                self.close()
                raise Refused(self._channel.host.name, got.message)
            return got

    def __iter__(self) -> Iterator[protocol.Answer]:
        """Until the channel ends, which raises Unreachable."""
        while True:
            got = self.next(None)
            if got is not None:
                yield got

    def close(self) -> None:
        """No more answers are wanted."""
        if not self._over.is_set():
            self._over.set()
            self._channel._forget(self)

    def put(self, answer: protocol.Answer) -> None:
        """Of the channel alone: waits while the reader is far behind."""
        while not self._over.is_set() and self._channel.ended is None:
            self._channel.heard = time.monotonic()  # it is not the host that is silent
            try:
                self._answers.put(answer, timeout=0.2)
                return
            except queue.Full:
                continue


class Channel:
    """The way to `host`. Use `open_channel`."""

    def __init__(self, host: Host, *, shared: bool = True) -> None:
        self.host = host
        self.ended: str | None = None
        """Why it has ended; None while it is open."""
        self.heard = time.monotonic()
        """When something last came from there."""
        self._word = secrets.token_hex(8)
        self._streams: dict[int, Stream] = {}
        self._number = 0
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._said = b""
        self._process = self._start(shared)

    # --- asking --------------------------------------------------------------------------------

    def ask(self, request: protocol.Request, kind: type[A] = protocol.Message,
            seconds: float = ASK) -> A:
        """The one answer to `request`, which is to be of `kind`. Raises Unreachable, Refused."""
        with contextlib.closing(self.stream(request)) as stream:
            got = stream.next(seconds)
        if got is None:
            raise Unreachable(self.host.name, f"no answer within {seconds:.0f} s")
        if not isinstance(got, kind):
            raise Refused(self.host.name, "what answers there is no agent of gpu-panel's: it was "
                                          f"to answer with {kind.__name__}")
        return got

    def greet(self, folders: tuple[str, ...]) -> tuple[protocol.Welcome, float, float]:
        """What the agent says of its machine, where a run would start in the first of `folders`
        that exists; how many seconds its clock is ahead of ours; and the seconds by which that may
        be wrong. Raises as `ask`."""
        self.ask(protocol.Hello(folders))  # looking for an interpreter may take long
        before = time.time()
        welcome = self.ask(protocol.Hello(folders), protocol.Welcome)
        half = (time.time() - before) / 2
        return welcome, welcome.clock - (before + half), half

    def stream(self, request: protocol.Request) -> Stream:
        """Send `request`; its answers. Raises Unreachable."""
        with self._lock:
            self._number += 1
            stream = self._streams[self._number] = Stream(self, self._number)
        self._send(stream.number, request)
        return stream

    def send_all(self, key: str, what: str, pieces: Iterable[bytes]) -> None:
        """Send the code that `key` and `what` name piece by piece, several under way at a time.
        Raises Unreachable, and Refused with what the host says."""
        under_way: deque[Stream] = deque()
        offset = 0
        for piece in pieces:
            if len(under_way) == _AHEAD:
                self._taken(under_way.popleft())
            under_way.append(self.stream(protocol.SendCode.of(key, what, offset, piece)))
            offset += len(piece)
        while under_way:
            self._taken(under_way.popleft())

    def _taken(self, stream: Stream) -> None:
        with contextlib.closing(stream):
            if stream.next(ASK) is None:
                raise Unreachable(self.host.name, f"it took nothing of what it is sent for "
                                                  f"{ASK:.0f} s")

    def close(self, reason: str = "it was closed") -> None:
        """End it: the agent there ends too. Takes some seconds at most."""
        self._end(reason)
        process = self._process
        with contextlib.suppress(OSError):
            _pipe(process.stdin).close()
        for act in (lambda: None, process.terminate, process.kill):
            act()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2)
                return

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- lines ---------------------------------------------------------------------------------

    def _start(self, shared: bool) -> subprocess.Popen[bytes]:
        if self.host.is_local:
            argv = own_program("gpu_engine", "agent", self._word)
        else:
            try:
                argv = ssh.shell(self.host, shared=shared)
            except BadName as err:
                raise Unreachable(self.host.name, str(err)) from None
        try:
            return subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                bufsize=0, env=ssh.environment(),
                start_new_session=True)  # no terminal to ask at, no Ctrl-C of ours
        except OSError as err:
            raise Unreachable(self.host.name, f"{argv[0]} can't be started: "
                                              f"{err.strerror}") from None

    def _open(self, seconds: float) -> None:
        """Wait for the agent's mark. Raises Unreachable."""
        threading.Thread(target=self._listen_to_errors, name="stderr", daemon=True).start()
        try:
            if not self.host.is_local:
                os.write(_pipe(self._process.stdin).fileno(), ssh.script(self.host, self._word))
            rest = self._to_the_mark(time.monotonic() + seconds)
        except (OSError, Unreachable) as err:
            reason = err.reason if isinstance(err, Unreachable) else self._why(greeted=False)
            self.close(reason)
            # What its shell has left behind would wait for ever for somebody to read this.
            _pipe(self._process.stdout).close()
            raise Unreachable(self.host.name, reason) from None
        self.heard = time.monotonic()
        threading.Thread(target=self._listen, args=(rest,), name=f"from {self.host.name}",
                         daemon=True).start()
        threading.Thread(target=self._ping, name=f"ping {self.host.name}", daemon=True).start()

    def _to_the_mark(self, deadline: float) -> bytes:
        """What came behind the agent's mark. Raises Unreachable, OSError."""
        out, mark = _pipe(self._process.stdout).fileno(), f"{protocol.MARK} {self._word}".encode()
        data = b""
        while readable(out, deadline - time.monotonic()) and (got := os.read(out, 65536)):
            data += got
            _, found, behind = data.partition(mark)
            more, whole, rest = behind.partition(b"\n")
            if found and whole:
                if more.endswith(ssh.NOT_THERE.encode()):
                    raise Unreachable(self.host.name, reasons.not_there(self.host))
                return rest
            if len(data) > _NOISE:
                raise Unreachable(self.host.name, "its login shell prints without end, and no "
                                                  "agent begins")
        raise Unreachable(self.host.name, self._why(greeted=False))

    def _listen(self, rest: bytes) -> None:
        """Take in lines until the stream ends."""
        out, odd = _pipe(self._process.stdout), 0
        try:
            while True:
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    if line[:1] != b"{":  # a job of the login shell printed something
                        odd += bool(line.strip())
                        if odd > _ODD:
                            raise protocol.BadMessage(f"{_ODD} lines that are none of an agent's")
                        continue
                    self._deliver(*protocol.answer(line))
                if len(rest) > protocol.LONGEST:
                    raise protocol.BadMessage(f"a line of more than {protocol.LONGEST:,} bytes")
                got = os.read(out.fileno(), 1 << 18)
                if not got:
                    break
                self.heard = time.monotonic()
                rest += got
        except protocol.BadMessage as err:
            self.close(f"what came from there is none of an agent's: {err}")
            return
        except (OSError, ValueError):  # closed meanwhile
            pass
        self._end(self._why(greeted=True))

    def _deliver(self, number: int, answer: protocol.Answer) -> None:
        with self._lock:
            stream = self._streams.get(number)
        if stream is not None:
            stream.put(answer)

    def _send(self, number: int, request: protocol.Request) -> None:
        line = protocol.pack(number, request)
        if len(line) > protocol.LONGEST:
            raise Refused(self.host.name, f"what it is to be told has {len(line):,} bytes; "
                                          f"{protocol.LONGEST:,} may be")
        try:
            with self._writing:
                view = memoryview(line)
                while view:
                    view = view[os.write(_pipe(self._process.stdin).fileno(), view):]
        except (OSError, ValueError):
            raise Unreachable(self.host.name, self.ended or self._why(greeted=True)) from None

    def _forget(self, stream: Stream) -> None:
        with self._lock:
            known = self._streams.pop(stream.number, None) is not None
        if known and self.ended is None:
            with contextlib.suppress(Unreachable):
                self._send(0, protocol.Cancel(stream.number))

    def _ping(self) -> None:
        due = 0.0
        while self.ended is None:
            now = time.monotonic()
            if now - self.heard > _SILENT:
                self.close(f"nothing came for {_SILENT:.0f} s")
            elif now >= due:
                due = now + PING
                with contextlib.suppress(Unreachable):
                    self._send(0, protocol.Ping())
            time.sleep(0.5)

    def _end(self, reason: str) -> None:
        with self._lock:
            if self.ended is None:
                self.ended = reason

    def _listen_to_errors(self) -> None:
        stream = _pipe(self._process.stderr)
        with contextlib.suppress(OSError, ValueError):
            while got := os.read(stream.fileno(), 8192):
                self._said = (self._said + got)[-_SAID:]

    def _why(self, *, greeted: bool) -> str:
        """By what ssh said, and how it ended. What it said last may be on its way."""
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(0.5)
        time.sleep(0.05)
        return reasons.why(self.host, self._stderr(), code, greeted=greeted)

    def _share_ended(self) -> bool:
        return reasons.share_ended(self._stderr(), self._process.poll())

    def _stderr(self) -> str:
        return self._said.decode(errors="replace")


def open_channel(host: Host, seconds: float = OPEN) -> Channel:
    """A channel to `host` whose agent has answered. Raises Unreachable."""
    end = time.monotonic() + seconds
    channel = Channel(host)
    try:
        channel._open(seconds)
    except Unreachable:
        if not channel._share_ended():
            raise
        channel = Channel(host, shared=False)
        channel._open(end - time.monotonic())
    return channel


def at_once(work: Callable[[T], object], items: Sequence[T]) -> list[object]:
    """`work` on all items at the same time; what it returns or the UserError that it raises."""
    def one(item: T) -> object:
        try:
            return work(item)
        except UserError as err:
            return err

    with ThreadPoolExecutor(max(len(items), 1)) as pool:
        return list(pool.map(one, items))


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise OSError("no pipe")
    return stream
