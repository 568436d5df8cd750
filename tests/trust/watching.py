"""Watches what this program does to what it has no business with: what it starts, writes, signals
and prints, how long it takes and what memory."""

from __future__ import annotations

import os
import re
import resource
import signal
import stat
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from gpu_engine.common import procs
from gpu_engine.runs import digest, trust

from ..command_line import called
from .hostile_runs import SECRET, World

PATIENCE = 5.0
"""Seconds of the processor, which a command may take on a run folder."""
STILL = 300.0
"""Seconds of a clock after which it waits for what will not come: others may keep the processor."""
MEMORY = 384 << 20
"""Bytes that it may need more than what this process has already."""
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What terminals obey; tabs and line ends aside."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_STARTS = ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.system", "pty.spawn")


class Waits(BaseException):
    """It took longer than it may."""


class _Noted:
    """What the audit hook has seen while it was on."""

    def __init__(self) -> None:
        self.on = False
        self.started: list[list[str]] = []
        self.written: list[str] = []
        self.let: tuple[str, ...] = ()


_noted = _Noted()


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _noted.on:
        return
    if event in _STARTS:
        argv = [os.fsdecode(word) for word in _argv(event, args)]
        if set(argv).intersection(_noted.let):
            return
        _noted.started.append(argv)
        raise PermissionError(1, "no process may be started")
    if event == "open" and isinstance(args[2], int) and args[2] & _WRITES \
            and isinstance(args[0], str | bytes):
        path = os.fsdecode(args[0])
        # With O_NOFOLLOW a link in its place is not opened.
        folder, name = os.path.split(path) if args[2] & os.O_NOFOLLOW else (path, "")
        if "/" in path:  # else it is in a folder that was opened before, or in the present one
            _noted.written.append(f"{os.path.realpath(folder)}/{name}".rstrip("/"))


def _argv(event: str, args: tuple[Any, ...]) -> list[Any]:
    if event == "os.system":
        return [args[0]]
    words = args[1] if isinstance(args[1], list | tuple) else [args[1]]
    return [args[0] or words[0], *words[1:]]


sys.addaudithook(_hook)


@contextmanager
def noted(*let: str) -> Iterator[_Noted]:
    """Within this, no process can be started by this one, but those that have one of `let` as a
    word: what was tried, and what was opened for writing, is noted."""
    _noted.started, _noted.written, _noted.let = [], [], let
    _noted.on = True
    try:
        yield _noted
    finally:
        _noted.on = False


@contextmanager
def limits(memory: int = MEMORY) -> Iterator[None]:
    """Within this, memory and time have an end: MemoryError, `Waits`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = [(number, signal.signal(number, _over)) for number in
              (signal.SIGALRM, signal.SIGPROF)]
    others = signal.setitimer(signal.ITIMER_REAL, STILL, 1.0)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE, 1.0)
    resource.setrlimit(resource.RLIMIT_AS, (size + memory, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, *others)
        for number, handler in before:
            signal.signal(number, handler)


def _over(number: int, frame: FrameType | None) -> None:
    where = [f"{f.filename.rpartition('/')[2]}:{f.lineno}" for f in traceback.extract_stack(frame)
             if "gpu_" in f.filename][-3:]
    what = "processor time" if number == signal.SIGPROF else "time"
    raise Waits(f"took more than its {what} in {' > '.join(where)}")


Tree = dict[str, tuple[object, ...]]


def tree(*folders: Path) -> Tree:
    """Everything in these folders as it is: kind, mode, owner, size, when it was written, and of a
    small file what it holds."""
    found: Tree = {}
    for top in folders:
        for folder, inside, files in os.walk(top):
            for name in (".", *inside, *files):
                path = Path(folder, name)
                info = path.lstat()
                text = path.read_bytes() if stat.S_ISREG(info.st_mode) \
                    and info.st_size < 1 << 16 else b""
                size = info.st_size if stat.S_ISREG(info.st_mode) else 0
                written = 0 if name == "." else info.st_mtime_ns
                found[str(path)] = (info.st_mode, info.st_uid, size, written, text)
    return found


def changed(before: Tree, after: Tree) -> list[str]:
    """The paths that are not as they were."""
    return sorted(path for path in before.keys() | after.keys()
                  if before.get(path) != after.get(path))


class Victim:
    """A process that has nothing to do with any run, and notes the signals that it gets."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c",
             "import os, signal, sys, time\n"
             "def got(number, frame):\n"
             "    os.write(1, b'%d\\n' % number)\n"
             "for n in (1, 2, 3, 10, 12, 15):\n"
             "    signal.signal(n, got)\n"
             "while sys.stdin.buffer.raw.read(1):\n"
             "    os.write(1, b'heard\\n')\n"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True)
        self.signals()
        self.id = (self._process.pid, procs.start_ticks(self._process.pid))

    def signals(self) -> list[str]:
        """What it got since it was asked last: it is asked something, and answers after those."""
        got: list[str] = []
        try:
            self._process.stdin.write(b"?")
            while (line := self._process.stdout.readline()) != b"heard\n":
                if not line:
                    raise BrokenPipeError
                got.append(line.decode().strip())
        except BrokenPipeError:
            got.append(f"ended with {self._process.wait()}")
        return got

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


class Watch:
    """Calls commands and says what each did that it may not."""

    def __init__(self, world: World, victim: Victim, *kept: Path) -> None:
        """`kept`: folders in which nothing may change. `let`: words of processes that may be
        started; `memory`: as for `limits`."""
        self.let: tuple[str, ...] = ()
        self.memory = MEMORY
        self.world, self.victim, self._kept = world, victim, kept
        self.problems: list[str] = []
        self._before = tree(*kept)

    def call(self, *words: str, **variables: str) -> str:
        """Call it, and note what is wrong. Returns what it has printed."""
        text, at = "", len(self.problems)
        label = " ".join(words).replace(f"{self.world.root}/", "") if not variables else \
            f"completing {variables.get('COMP_WORDS')!r}"
        with noted(*self.let) as seen:
            try:
                with limits(self.memory), _variables(variables):
                    done = called(*words)
                text = done.stdout + done.stderr
                if "Traceback (most recent call last)" in text:
                    self.say(label, f"a traceback: {end_of_traceback(text)}")
                else:
                    self.judge_text(label, text)
                if done.returncode not in (0, 1, 2, 130):
                    self.say(label, f"ended with {done.returncode}")
            except Waits as err:
                self.say(label, str(err))
        self.judge(label, seen)
        if len(self.problems) > at and "--json" in words:
            return ""
        return text

    def judge_text(self, label: str, text: str) -> None:
        """What is printed or shown."""
        if found := OBEYED.search(text):
            near = text[max(found.start() - 30, 0):found.end() + 10]
            self.say(label, f"prints what a terminal obeys: {near!r}")
        if SECRET in text:
            self.say(label, "prints a file that is outside")

    def judge(self, label: str, seen: _Noted) -> None:
        """What was done meanwhile."""
        for argv in seen.started:
            if not self._may_start(argv):
                self.say(label, f"would start {argv}")
        root = os.path.realpath(self.world.root)
        mine = tuple(os.path.join(root, one) + "/" for one in ("home", "out"))  # noqa: PTH118
        for path in seen.written:
            if not path.startswith((*mine, "/dev/", "/proc/")) and "/__pycache__/" not in path:
                self.say(label, f"opens for writing {path.removeprefix(root)}")
        if self.world.marker.exists():
            self.say(label, "EXECUTED what stands in the folder")
            self.world.marker.unlink()
        if got := self.victim.signals():
            self.say(label, f"another's process got {got}")
        after = tree(*self._kept)
        for path in changed(self._before, after):
            if Path(path).name == digest.FILE and stat.S_ISREG(after[path][0]):
                continue  # who looks first keeps what it has read
            self.say(label, f"changed {Path(path).relative_to(self.world.root)}")
        self._before = after

    def _may_start(self, argv: list[str]) -> bool:
        """The interpreter of the tests to look at weights, git and Slurm to ask, ssh to a host by
        its name; what was started here is taken up again, and what waits gets its supervisor."""
        if Path(argv[0]).name == "git":
            return argv[1:3] == ["-c", "core.fsmonitor=false"]
        if Path(argv[0]).name in ("squeue", "sacct"):
            return any(trust.started_here(path) for path in self.world.runs.iterdir()
                       if (path / "slurm.json").exists())
        if str(self.world.marker) in " ".join(argv):
            return False
        if Path(argv[0]).name == "ssh":
            return "ProxyCommand" not in " ".join(argv).replace("-oProxyCommand=none", "")
        if argv[0] == sys.executable or argv[0].startswith(f"{sys.prefix}/bin/python"):
            module = argv[argv.index("-m") + 1] if "-m" in argv else ""
            if module in ("gpu_engine.remote.run", "gpu_engine.supervisor"):
                return any(trust.started_here(Path(word)) for word in argv)
            return module == ""
        return False

    def say(self, label: str, what: str) -> None:
        """It may not do that."""
        self.problems.append(ascii(f"{label}: {what}").strip("'\""))


def end_of_traceback(text: str) -> str:
    """Its last line, and the last line of this program that it names."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    where = [line.partition("gpu_")[2] for line in lines if line.startswith('File "')
             and "/gpu_" in line]
    return f"{lines[-1][:150]} in {''.join(where[-1:])}"


@contextmanager
def _variables(added: dict[str, str]) -> Iterator[None]:
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
