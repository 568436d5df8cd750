"""The terminal of a rank (`run.debug_rank`), on real processes that need no torch."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.launching.launcher import launch, prepare
from gpu_engine.runs import folder as runs
from gpu_engine.runs import terminal
from gpu_engine.spec.read import from_dict
from gpu_engine.supervisor.terminal import Terminal

from ..attached import Attached
from ..conftest import patience, slots, wait_for

SCRIPT = """
import os, signal, sys, time
rank = os.environ["RANK"]
print("rank", rank, "terminal", sys.stdin.isatty(), sys.stdout.isatty(), flush=True)
if rank == "0":
    while not os.path.exists("over"): time.sleep(0.02)
    sys.exit()
x = 41
"""


@pytest.fixture
def go(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Launch two ranks, of which rank 1 has a terminal and goes on with this text."""
    started: list[runs.Run] = []

    def start(body: str, *, restarts: int = 0, **run: object) -> runs.Run:
        (tmp_path / "rank.py").write_text(SCRIPT + body)
        spec = {"task": {"command": [sys.executable, str(tmp_path / "rank.py")]},
                "devices": {"ids": ["cpu:0", "cpu:1"]}, "parallel": {"mode": "ddp"},
                "run": {"debug_rank": 1} | run, "train": {"restarts": restarts}}
        started.append(launch(from_dict(spec), inventory=slots(2)))
        return started[-1]

    monkeypatch.chdir(tmp_path)
    yield start
    for run in started:
        if run.state().live:
            run.stop(now=True)
            ended(run)


def ended(run: runs.Run) -> runs.State:
    return wait_for(lambda: (s := run.state()) and not s.live and s)


ENDS = "open('over', 'w').close()\n"


def test_a_breakpoint_waits_for_whoever_attaches_and_all_is_in_the_log(go):
    run = go(f"breakpoint()\nprint('x is', x)\n{ENDS}")
    wait_for(lambda: run.log(1).exists() and "(Pdb)" in run.log(1).read_text())
    with Attached(run, "--rank", "1") as one:
        one.sees("(Pdb) ")
        assert "42" in one.says("p x + 1", "(Pdb) ")
        one.says("x = 7", "(Pdb) ")
        one.leaves()
    with Attached(run) as again:
        assert "p x + 1" in again.sees("(Pdb) x = 7\r\n(Pdb) ")
        again.says("c", "x is 7")
        again.sees("has ended")
        again.ends(0)
    state = ended(run)
    assert (state.state, state.cause) == ("completed", None)
    assert run.log(0).read_text() == "rank 0 terminal False False\n"
    text = run.log(1).read_text()
    assert text.startswith("rank 1 terminal True True\n")
    assert text.endswith("(Pdb) c\nx is 7\n")
    assert "\r" not in text
    assert not (run.path / terminal.SOCKET).exists()


def test_nobody_need_attach(go):
    run = go(f"print('é' * 100_000)\nprint('over', end='')\n{ENDS}")
    state = ended(run)
    assert state.state == "completed"
    assert run.log(1).read_text() == "rank 1 terminal True True\n" + "é" * 100_000 + "\nover"


def test_the_state_says_how_to_get_there(go):
    run = go("input()\n" + ENDS)
    wait_for(lambda: run.state().reason == f"rank 1 has a terminal: gpu-engine attach {run.id}")


def test_two_who_attach_see_the_same_and_both_type(go):
    run = go(f"breakpoint()\n{ENDS}")
    with Attached(run) as one:
        assert "another terminal" not in one.sees("(Pdb) ")
        other = Attached(run)
        assert "another terminal is attached" in other.sees("(Pdb) ")
        one.says("x + 1", "42")
        other.sees("42")
        other.says("x + 2", "43")
        one.sees("43")
        one.leaves()
    with other:
        other.says("c", "has ended")
        other.ends(0)
    assert ended(run).state == "completed"


def test_the_window_has_the_size_of_the_terminal(go):
    run = go("input('ready')\nprint(os.get_terminal_size())\ninput('again')\n"
             f"print(os.get_terminal_size())\n{ENDS}")
    with Attached(run, size=(31, 97)) as one:
        one.sees("ready")
        assert "columns=97, lines=31" in one.says("", "again")
        termios.tcsetwinsize(one.ours, (20, 50))
        run_size(run, 1, b"columns=50")
        assert "columns=50, lines=20" in one.says("", "has ended")


def run_size(run: runs.Run, rank: int, size: bytes) -> None:
    """Wait until the rank's terminal has this size."""
    pid = next(p.pid for p in run.state().processes if p.rank == rank)
    asks = (f"import os; fd = os.open('/proc/{pid}/fd/0', os.O_RDONLY | os.O_NOCTTY); "
            "print(os.get_terminal_size(fd))")
    wait_for(lambda: size in subprocess.run([sys.executable, "-c", asks], check=True,
                                            capture_output=True).stdout)


def test_ctrl_c_reaches_the_rank_and_not_who_is_attached(go):
    run = go(f"""
try:
    print('loops'); time.sleep(600)
except KeyboardInterrupt:
    print('interrupted')
{ENDS}""")
    with Attached(run) as one:
        one.sees("loops")
        one.types("\x03")
        one.sees("interrupted")
        one.sees("has ended")
        one.ends(0)
    assert ended(run).state == "completed"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_who_is_attached_leaves_the_terminal_as_it_was(go, number):
    run = go(f"breakpoint()\n{ENDS}")
    with Attached(run) as one:
        one.sees("(Pdb) ")
        one.kill(number)
        one.ends(128 + number)
    assert run.state().state == "running"


def test_a_killed_supervisor_ends_rank_and_attachment(go):
    run = go(f"breakpoint()\n{ENDS}")
    with Attached(run) as one:
        one.sees("(Pdb) ")
        state = run.state()
        assert state.pid is not None
        os.kill(state.pid, signal.SIGKILL)
        one.sees("has ended")
        one.ends(0)
    assert wait_for(lambda: run.state().state == "lost")
    with Attached(run) as late:
        late.sees("gone")
        late.ends(2)


def test_a_stopped_run_lets_go_of_who_is_attached(go):
    run = go("breakpoint()\n", grace=0.5)
    with Attached(run) as one:
        one.sees("(Pdb) ")
        run.stop()
        one.sees("has ended")
        one.ends(0)
    assert ended(run).state == "stopped"


def test_each_attempt_has_its_own(go):
    run = go(f"input('type')\nfirst = os.environ['GPU_PANEL_ATTEMPT'] == '1'\n"
             f"if not first: {ENDS}sys.exit(first)\n", restarts=1)
    for _ in range(2):
        with Attached(run) as one:
            one.sees("type")
            one.says("", "has ended")
            one.ends(0)
    assert ended(run).state == "completed"


def test_what_cannot_be_attached_says_why(go, home: Path, tmp_path: Path, capsys):
    run = go(f"breakpoint()\n{ENDS}")
    told = subprocess.run([sys.executable, "-m", "gpu_engine", "attach", run.id], text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=patience())
    assert told.returncode == 2
    assert "needs a terminal" in told.stderr
    with pytest.raises(UserError, match=f"rank 0 of run {run.id} has no terminal, rank 1 has"):
        terminal.attach(run, 0, print)
    run.path.chmod(0o777)
    with pytest.raises(UserError, match="others can write"):
        terminal.attach(run, 1, print)
    run.path.chmod(0o700)
    with Attached(run) as one:
        one.sees("(Pdb) ")
        one.says("c", "has ended")
    ended(run)
    with Attached(run) as late:
        assert "is not running: it is completed" in late.sees("completed")
        late.ends(2)
    plain = launch(from_dict({"task": {"command": ["sleep", "600"]},
                              "devices": {"ids": ["cpu:0"]}}), inventory=slots(1))
    with pytest.raises(UserError, match="--debug-rank"):
        terminal.attach(plain, None, print)
    plain.stop(now=True)
    ended(plain)


def test_a_link_to_another_socket_is_none(go, tmp_path: Path):
    run = go("input()\n")
    wait_for((run.path / terminal.SOCKET).exists)
    other = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(os.path.relpath(other))
        theirs.listen()
        (run.path / terminal.SOCKET).unlink()
        (run.path / terminal.SOCKET).symlink_to(other)
        with Attached(run) as one:
            one.sees("no socket of yours")
            one.ends(2)
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.accept()


def test_who_does_not_read_holds_up_nobody(go):
    run = go(f"input()\nfor _ in range(400): print('x' * 9999)\n{ENDS}")
    wait_for(lambda: run.state().state == "running")  # it listens
    with socket.socket(socket.AF_UNIX) as deaf, terminal.inside(run.path) as (_, name):
        deaf.connect(name)
        deaf.sendall(terminal.HEAD.pack(terminal.TYPED, 1) + b"\r")
        assert ended(run).state == "completed"
    assert run.log(1).stat().st_size > 400 * 9999


def test_the_socket_is_this_users_alone(go):
    run = go("input()\n")
    wait_for((run.path / terminal.SOCKET).exists)
    assert (run.path / terminal.SOCKET).stat().st_mode & 0o777 == 0o600
    assert run.path.stat().st_mode & 0o777 == 0o700


def test_another_users_run_is_only_shown(go):
    run = go(f"breakpoint()\n{ENDS}")
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(run.path, 65534, -1)
    try:
        with pytest.raises(UserError, match="belongs to"):
            terminal.attach(run, 1, print)
    finally:
        os.chown(run.path, 0, -1)


def test_a_long_path_is_no_hindrance(go, home: Path, monkeypatch: pytest.MonkeyPatch):
    far = home / ("f" * 60) / ("g" * 60)
    far.mkdir(parents=True)
    monkeypatch.setenv("GPU_PANEL_HOME", str(far))
    run = go(f"breakpoint()\n{ENDS}")
    with Attached(run) as one:
        one.sees("(Pdb) ")
        one.says("c", "has ended")


@pytest.mark.parametrize(("spec", "says"), [
    ({"run": {"debug_rank": 2}}, "the ranks of this run are 0 to 1"),
    ({"parallel": {"mode": "single"}, "devices": {"ids": ["cpu:0"]}}, "this run has rank 0 alone"),
    ({"parallel": {"mode": "ddp", "launcher": "torchrun"}}, "parallel.launcher"),
    ({"task": {"command": ["torchrun", "--nproc-per-node=2", "x.py"]}}, "starts its ranks itself"),
    ({"devices": {"hosts": ["gpu1:0,1"]}}, "other machines")])
def test_a_rank_that_can_have_none_is_refused(home: Path, tmp_path: Path, monkeypatch, spec, says):
    (tmp_path / "x.py").touch()
    given = {"task": {"command": [sys.executable, "x.py"]}, "run": {"debug_rank": 1},
             "devices": {"ids": ["cpu:0", "cpu:1"]}, "parallel": {"mode": "ddp"}} | spec
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=r"run\.debug_rank") as raised:
        prepare(from_dict(given), inventory=slots(2))
    assert says in str(raised.value)


def test_a_shell_has_it_too(home: Path, tmp_path: Path):
    run = launch(from_dict({
        "task": {"command": [shutil.which("sh"), "-c", "read a; echo got $a; tty"]},
        "devices": {"ids": ["cpu:0"]}, "run": {"debug_rank": 0}}), inventory=slots(1))
    with Attached(run) as one:
        one.sees("attached")
        one.says("word", "got word")
        one.sees("/dev/pts/")
    assert ended(run).state == "completed"


# --- the two ends, without a run ------------------------------------------------------------------


class Line:
    """A terminal whose rank is the test; and those who attach to it."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "ranks" / "00001.log"
        self.terminal = Terminal(folder, self.log)
        self.folder = folder
        self.rank = os.dup(self.terminal.theirs)
        self.terminal.started()
        tty.setraw(self.rank)  # what is written is what comes out
        os.set_blocking(self.rank, False)
        self.all: list[socket.socket] = []

    def attach(self) -> socket.socket:
        one = socket.socket(socket.AF_UNIX)
        with terminal.inside(self.folder) as (_, name):
            one.connect(name)
        one.setblocking(False)
        self.all.append(one)
        self.terminal.pump(0)
        return one

    def prints(self, data: bytes) -> None:
        """The rank prints this, and it is passed on."""
        end, before = data[-64:], bytes(self.terminal._recent)
        while data:
            try:
                data = data[os.write(self.rank, data):]
            except BlockingIOError:
                self.terminal.pump(0)
        wait_for(lambda: (self.terminal.pump(0), self.terminal._recent != before
                          and self.terminal._recent.endswith(end))[1])

    def gets(self, one: socket.socket, many: int) -> bytes:
        """So many bytes, or all until the line ends."""
        found = b""
        while len(found) < many:
            self.terminal.pump(0)
            try:
                data = one.recv(1 << 16)
            except BlockingIOError:
                continue
            if not data:
                break
            found += data
        return found

    def typed(self, many: int) -> bytes:
        """So many bytes that the rank reads."""
        found = b""
        while len(found) < many:
            self.terminal.pump(0)
            try:
                found += os.read(self.rank, 100)
            except BlockingIOError:
                continue
        return found


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    found = Line(tmp_path)
    yield found
    for one in found.all:
        one.close()
    os.close(found.rank)
    found.terminal.close()


def test_who_attaches_late_sees_the_last_that_was_printed(line: Line):
    line.prints(b"".join(b"line %05d\n" % at for at in range(4000)) + b"(Pdb) ")
    seen = line.gets(line.attach(), 8192)
    assert seen.endswith(b"line 03999\n(Pdb) ")
    assert len(seen) == 8192


def test_an_end_of_a_line_that_comes_in_two_parts_is_one_in_the_log(line: Line):
    for part in (b"one\r", b"\ntwo\r", b"three\r\n", b"four\r"):
        line.prints(part)
    os.close(line.rank)
    line.terminal.close()
    assert line.log.read_bytes() == b"one\ntwo\rthree\nfour\r"
    line.rank, line.terminal = os.open(os.devnull, os.O_RDONLY), Terminal(line.folder, line.log)


def test_a_frame_that_comes_in_parts_is_typed_once_it_is_there(line: Line):
    one = line.attach()
    for text in (b"x = 7\r", b"c\r"):
        for byte in terminal.HEAD.pack(terminal.TYPED, len(text)) + text:
            one.send(bytes([byte]))
            line.terminal.pump(0)
    assert line.typed(8) == b"x = 7\rc\r"


def test_what_is_typed_faster_than_the_rank_reads_is_not_lost(line: Line):
    one = line.attach()
    text = b"".join(b"%07d\r" % at for at in range(7000))
    frames = b"".join(terminal.HEAD.pack(terminal.TYPED, 1000) + text[at:at + 1000]
                      for at in range(0, len(text), 1000))
    one.setblocking(True)
    sends = threading.Thread(target=one.sendall, args=(frames,))
    sends.start()
    assert line.typed(len(text)) == text
    sends.join()


def test_who_reads_slowly_misses_nothing_and_who_reads_nothing_is_left(line: Line):
    slow, deaf = line.attach(), line.attach()
    line.gets(deaf, len("--- another terminal is attached, too: both see and type ---\r\n"))
    text = b"".join(b"%07d\n" % at for at in range(100_000))  # more than a socket takes
    line.prints(text)
    assert line.gets(slow, len(text)) == text
    line.prints(text + b"end")
    assert line.gets(slow, len(text) + 3) == text + b"end"
    assert len(line.gets(deaf, 2 * len(text))) < 2 * len(text)  # its line has ended


def passed_on(*typed: bytes, printed: bytes = b"", ends: bool = False) -> tuple[bool, bytes, bytes]:
    """What is said of the rank, what reached it, and what was shown, of somebody whose terminal
    has these keys waiting, at once."""
    ours, theirs = os.openpty()
    there, here = socket.socketpair()
    try:
        tty.setraw(theirs)
        os.write(ours, b"".join(typed))
        there.sendall(printed)
        if ends:
            there.shutdown(socket.SHUT_WR)
        goes_on = terminal._pass_on(here, theirs, theirs)
        here.close()
        got = b"".join(iter(lambda: there.recv(1 << 16), b""))
    finally:
        os.close(theirs)
        there.close()
    shown = b""
    with contextlib.suppress(OSError):  # that is the end
        while True:
            shown += os.read(ours, 1 << 16)
    os.close(ours)
    return goes_on, got, shown


def test_keys_before_the_one_that_detaches_reach_the_rank_and_those_after_it_do_not():
    goes_on, got, shown = passed_on(b"c\r", terminal.DETACH, b"ls\r")
    assert goes_on
    assert got.endswith(terminal.HEAD.pack(terminal.TYPED, 2) + b"c\r")
    assert b"\x1b[?2004l" in shown  # what a line editor has begun is ended


def test_the_last_that_a_rank_prints_is_shown():
    goes_on, _, shown = passed_on(printed=b"over", ends=True)
    assert not goes_on
    assert shown.startswith(b"over")
    assert b"\x1b[?25h" in shown
