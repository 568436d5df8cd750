"""A command on a host: a process (ssh, or our own program where the host is this machine), what it
is told and what it prints.

Each command of gpu-engine there is a process of its own; ssh shares one connection among them, so
that it costs a round trip. Nobody waits for a host without a limit.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import select
import signal
import subprocess
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, NamedTuple, TypeVar

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import Problem, UserError
from gpu_engine.common.programs import own_program, version
from gpu_engine.remote.reach import protocol, ssh
from gpu_engine.remote.reach.hosts import BadName, Host

OPEN = 30.0
"""Seconds in which our program has to be there."""
ASK = 60.0
"""Seconds for an answer."""
_SLOWEST = 64 << 10
"""Bytes a second with which what is sent has to be taken."""
_NOISE = 1 << 20
"""Bytes that a login shell may print before our program begins, or a script in all."""
_ODD = 1000
"""Lines that are no answers, which are passed over in all."""
_WORDS = 16 << 10
"""Bytes at the end of what was printed, in which it is looked for why it ended."""
A = TypeVar("A")
T = TypeVar("T")
_ways = weakref.WeakSet["Shell"]()


class HostError(UserError):
    """A host could not be asked, or has refused. Its text begins with the host's name."""

    def __init__(self, host: str, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{host}: {reason}")


class Unreachable(HostError):
    """The host can't be asked, or can't any more."""

    title = "A host can't be reached"


class Cut(Unreachable):
    """The connection ended after the request was sent: nobody here knows whether it was done."""


class Refused(HostError):
    """The host has answered that it can't be done."""

    title = "A host could not do it"

    def __init__(self, host: str, reason: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(host, reason)
        self.problems = tuple(problems) or self.problems


class _Share(Exception):
    """The connection that ssh was to share ended as it was asked for it."""


class Shell:
    """A process that is the way to `host`. A context manager. What ssh and the shell there say of
    errors comes among what is printed."""

    def __init__(self, host: Host, argv: Sequence[str]) -> None:
        self.host = host
        self.over = False
        self._beat = time.monotonic()
        try:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                bufsize=0, env=ssh.environment(),
                start_new_session=True)  # no terminal to ask at, no Ctrl-C of ours
        except OSError as err:
            raise Unreachable(host.name, f"{argv[0]} can't be started: {err.strerror}") from None
        self._in, self._out = _pipe(self.process.stdin), _pipe(self.process.stdout)
        os.set_blocking(self._in.fileno(), False)
        _ways.add(self)

    def read(self, end: float) -> bytes:
        """What it prints next; b"" at its end. Raises TimeoutError where nothing comes until the
        monotonic time `end`, Unreachable where it was closed."""
        self._wait(self._out.fileno(), select.POLLIN, end)
        return os.read(self._out.fileno(), 1 << 18)

    def write(self, data: bytes, end: float) -> None:
        """Tell it all of `data`, as far as it takes that: why it did not is read. Raises
        TimeoutError, Unreachable where it was closed."""
        view = memoryview(data)
        with contextlib.suppress(BrokenPipeError, ValueError):
            while view:
                self._wait(self._in.fileno(), select.POLLOUT, end)
                with contextlib.suppress(BlockingIOError):
                    view = view[os.write(self._in.fileno(), view):]

    def _wait(self, fd: int, event: int, end: float) -> None:
        poll = select.poll()
        poll.register(fd, event)
        while True:
            now = time.monotonic()
            if self.over:
                raise Unreachable(self.host.name, "it was closed")
            if poll.poll(max(0.0, min(end - now, 0.5)) * 1000):
                return
            if now >= end:
                raise TimeoutError
            if now - self._beat > protocol.BEAT and event == select.POLLIN:
                self._beat = now
                with contextlib.suppress(OSError, ValueError):
                    os.write(self._in.fileno(), b"\n")

    def end_input(self) -> None:
        """It is told no more."""
        with contextlib.suppress(OSError):
            self._in.close()

    def why(self, printed: bytes, *, greeted: bool) -> str:
        """Why it has ended, by the end of what it printed, and how it ended. Raises _Share where
        another connection would do."""
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(0.5)
        text = printed[-_WORDS:].decode(errors="replace")
        if not greeted and ssh.share_ended(text, code):
            raise _Share
        return ssh.why(self.host, text, code, greeted=greeted)

    def close(self) -> None:
        """End it, from any thread. Takes some seconds at most."""
        self.over = True
        self.end_input()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                self._end(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(2)
                return

    def give_up(self) -> None:
        """End what nothing has answered on yet, at once: ssh ends with its input, while what `via`
        names may not. From any thread."""
        self.over = True
        self.end_input()
        if self.host.via:
            self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        """What `via` started may go on without it. Of ssh that may be a connection that others
        share."""
        with contextlib.suppress(ProcessLookupError):
            if self.host.via:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        # What its shell has left behind would wait for ever for somebody to read this.
        self._out.close()


class Call:
    """`gpu-engine WORDS` on `host`, in the first of `folders` that exists there, with `content` on
    its standard input; None: that ends when no more is wanted. A context manager. Raises
    Unreachable. `opening` is told of the way as soon as there is one, for who may want to give it
    up before our program answers."""

    def __init__(self, host: Host, *words: str, folders: Sequence[str] = (),
                 content: bytes | None = None, seconds: float = OPEN,
                 opening: Callable[[Shell], object] = id) -> None:
        self.host = host
        self._lines: deque[bytes] = deque()
        self._odd: list[bytes] = []
        """Lines that are no answers."""
        word = secrets.token_hex(8)
        self._word = word.encode()
        """Begins each answer."""
        told = ["--wire", word, *(w for f in folders for w in ("--in", f)), *words]
        own = own_program("gpu_engine", *told) if host.is_local else None
        began = time.monotonic()
        self._shell, said, self._rest = _greeted(
            host, f"{protocol.MARK} {word}", b"" if own else ssh.script(host, word, told),
            began + seconds, own, opening)
        self.opened = time.monotonic() - began
        """Seconds until our program there had begun."""
        self.asked = time.time()
        """When it was told that, Unix seconds: what goes on there says nothing earlier."""
        try:
            number, _, theirs = said.partition(" ")
            if number == ssh.NOT_THERE:
                raise Unreachable(host.name, ssh.not_there(host))
            if number != str(protocol.VERSION):
                raise Unreachable(host.name, f"gpu-panel there is {clean(theirs, 40)} (wire "
                                             f"{clean(number, 20)}), which this one, {version()} "
                                             f"(wire {protocol.VERSION}), can't talk to. "
                                             f"{ssh.setup(host)}")
            self._shell.write(b"\n" if content is None else content,
                              time.monotonic() + ASK + len(content or b"") / _SLOWEST)
            if content is not None:
                self._shell.end_input()
        except TimeoutError:
            self.__exit__()
            raise Cut(host.name, f"it took nothing for {ASK:.0f} s") from None
        except BaseException:
            self.__exit__()
            raise

    def next(self, kind: type[A], seconds: float | None = ASK) -> A:
        """`read`, which is to be of `kind`."""
        try:
            return protocol.typed(self.read(seconds), kind)
        except protocol.BadMessage as err:
            raise Cut(self.host.name, f"what came from there is no answer: {err}") from None

    def read(self, seconds: float | None = ASK) -> Any:
        """The next answer, within `seconds`, as JSON that nobody has looked at; None: however long
        it takes, as ssh ends by itself where a connection was cut. Raises Cut where none comes,
        Refused where it is why none does, BadMessage."""
        end = time.monotonic() + seconds if seconds else math.inf
        try:
            while True:
                while self._lines:
                    line = self._lines.popleft()
                    if line.startswith(self._word):
                        return self._unless_refused(protocol.loaded(line[len(self._word):]))
                    if line.strip():  # a job of the login shell printed something
                        self._odd.append(line[-_WORDS:])
                    if len(self._odd) > _ODD:
                        raise protocol.BadMessage(f"{_ODD} lines that are none")
                *lines, self._rest = self._rest.split(b"\n")
                self._lines += lines
                if lines:
                    continue
                if len(self._rest) > protocol.LONGEST:
                    raise protocol.BadMessage(f"a line of more than {protocol.LONGEST:,} bytes")
                got = self._shell.read(end)
                if not got:
                    half = self._rest.startswith(self._word)  # an answer that was cut
                    printed = b"\n".join((*self._odd, b"" if half else self._rest))
                    raise Cut(self.host.name, self._shell.why(printed, greeted=True))
                self._rest += got
        except TimeoutError:
            raise Cut(self.host.name, f"no answer within {seconds or 0:.0f} s") from None

    def _unless_refused(self, data: Any) -> Any:
        if not isinstance(data, dict) or "errors" not in data:
            return data
        found = [Problem(f.what or "", f.value, f.why, f.remedy)
                 for f in protocol.typed(data["errors"], list[protocol.Fault])]
        raise Refused(self.host.name, "; ".join(map(str, found)), found)

    def close(self) -> None:
        """No more is wanted: it ends there too. From any thread; takes some seconds at most."""
        self._shell.close()

    def __enter__(self) -> Call:
        return self

    def __exit__(self, *_: object) -> None:
        self._shell.__exit__()


def ask(host: Host, kind: type[A], *words: str, folders: Sequence[str] = (),
        content: bytes | None = None, seconds: float = ASK) -> A:
    """The one answer of `host` to `gpu-engine WORDS --json`, which is of `kind`. Raises
    Unreachable, Refused."""
    with Call(host, *words, "--json", folders=folders, content=content) as call:
        return call.next(kind, seconds)


class Ran(NamedTuple):
    """What came of a script."""

    out: str
    """What it printed, errors among it."""
    code: int | None
    """None: it did not end in time, or printed too much, and was ended."""


def run(host: Host, script: bytes, seconds: float) -> Ran:
    """Have `script` run by `sh` there, for what needs no program of ours: within `seconds`, with at
    most 1 MiB of output. Raises Unreachable."""
    end, code = time.monotonic() + seconds, None
    shell, out = _begun(host, script, end)
    with shell, contextlib.suppress(TimeoutError):
        shell.end_input()
        while (got := shell.read(end)) and len(out) <= _NOISE:
            out += got
        if not got:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = shell.process.wait(10)
    return Ran(out.decode("utf-8", "replace"), code)


@contextlib.contextmanager
def typed(host: Host, words: Sequence[str], until: str) -> Iterator[str]:
    """`gpu-engine WORDS` there, entered with what it has printed once `until` is among that; it is
    told that nobody is there any more when we leave. Raises Unreachable, and Refused with what it
    said if it has ended before."""
    end = time.monotonic() + ASK
    shell, out = _begun(host, ssh.script(host, "", words), end)
    with shell:
        try:
            while until.encode() not in out:
                if ssh.NOT_THERE.encode() in out:
                    raise Unreachable(host.name, ssh.not_there(host))
                if not (got := shell.read(end)):
                    said = out.decode(errors="replace").strip().splitlines() or ["it ended"]
                    raise Refused(host.name, clean(said[-1]).strip())
                out += got
        except TimeoutError:
            raise Unreachable(host.name, shell.why(out, greeted=True)) from None
        yield out.decode(errors="replace")


def give_up_all() -> None:
    """End the ways that other threads still have or try, as this process ends."""
    for way in list(_ways):
        if way.process.poll() is None:
            way.give_up()


def reason(err: UserError) -> str:
    """Why it could not be done, for a line that names the host already."""
    return err.reason if isinstance(err, HostError) else str(err)


def at_once(work: Callable[[T], A], items: Sequence[T]) -> list[tuple[T, A | UserError]]:
    """`work` on all items at the same time: each with what that returns, or the UserError that it
    raises."""
    def one(item: T) -> tuple[T, A | UserError]:
        try:
            return item, work(item)
        except UserError as err:
            return item, err

    with ThreadPoolExecutor(max(len(items), 1)) as pool:
        return list(pool.map(one, items))


def _begun(host: Host, script: bytes, end: float) -> tuple[Shell, bytes]:
    """A shell there that was told `script`, and what it has printed since it began. Raises
    Unreachable."""
    mark = secrets.token_hex(8)
    begin = ssh.ENTER + f"exec 2>&1; printf '\\n%s\\n' {mark}\n".encode()
    shell, _, out = _greeted(host, mark, begin + script, end)
    return shell, out


def _greeted(host: Host, mark: str, script: bytes, end: float, own: list[str] | None = None,
             opening: Callable[[Shell], object] = id) -> tuple[Shell, str, bytes]:
    """A shell there that was told `script`, or our `own` program here, once it has printed a line
    with `mark`: what stood behind that, and what has come since. It is over the connection that
    ssh shares, or where that ends just then over another. Raises Unreachable."""
    for shared in (True, False):
        with contextlib.suppress(_Share):
            try:
                shell, data = Shell(host, own or ssh.shell(host, shared=shared)), b""
            except BadName as err:
                raise Unreachable(host.name, str(err)) from None
            opening(shell)
            try:
                shell.write(script, end)
                while got := shell.read(end):
                    data += got
                    _, found, behind = data.partition(mark.encode())
                    said, whole, rest = behind.partition(b"\n")
                    if found and whole:
                        return shell, said.decode(errors="replace").strip(), rest
                    if len(data) > _NOISE:
                        raise Unreachable(host.name, "its login shell prints without end, and what "
                                                     "it is told does not begin")
                raise Unreachable(host.name, shell.why(data, greeted=False))
            except TimeoutError:
                with shell:
                    raise Unreachable(host.name, shell.why(data, greeted=False)) from None
            except BaseException:
                shell.__exit__()
                raise
    raise Unreachable(host.name, "the connection broke")


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream
