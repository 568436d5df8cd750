"""Judging what a program finds around it: the terminal, the machine's limits, what happens at
logout. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_engine.common import units
from gpu_engine.doctor.records import Finding, note, ok, problem

GIB = 1 << 30
_SHM, _FILES, _MEMORY = 1 * GIB, 4096, 4 * GIB


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where this was typed."""

    is_one: bool
    """Whether input and output are a terminal at all."""
    term: str = ""
    truecolor: bool = False
    utf8: bool = True
    columns: int = 0
    rows: int = 0
    tmux: bool = False
    screen: bool = False
    clipboard: str | None = None
    """tmux's option set-clipboard; None: not known."""
    over_ssh: bool = False
    no_color: bool = False
    described: bool = True
    """Whether the terminal database knows TERM."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine allows. None: not known."""

    shm: int | None = None
    """Bytes of /dev/shm."""
    files: int | None = None
    """How many files a process may have open."""
    files_hard: int | None = None
    """How many it may ask for."""
    memory: int | None = None
    """Bytes that the control group of this process may use."""
    memory_now: int | None = None
    """Bytes that it uses."""
    container: bool = False
    clock_behind: float | None = None
    """Seconds that the clock is behind the newest file of gpu-panel itself."""
    synchronised: bool | None = None
    """Whether the clock is set over the network."""


@dataclass(frozen=True, slots=True)
class Logout:
    """What systemd does when somebody logs out."""

    asked: bool
    """False: this is not a login session of systemd's."""
    warning: str | None = None
    scope: bool = False
    """Whether runs are started outside the session."""


def judge_terminal(found: Terminal) -> list[Finding]:
    """Whether the panel will look as it should."""
    if not found.is_one:
        return [note("this is no terminal, so nothing can be said about the panel in yours",
                     "gpu-engine doctor, typed in the terminal")]
    out: list[Finding] = []
    inside = " in tmux" if found.tmux else " in GNU screen" if found.screen else ""
    ssh = " over ssh" if found.over_ssh else ""
    out.append(ok(f"TERM={found.term}{inside}{ssh}, {found.columns}×{found.rows}"))
    if found.term in ("", "dumb", "unknown"):
        out.append(problem("the terminal does not say what it can do, so the panel can't draw",
                           "export TERM=xterm-256color"))
    elif not found.described:
        out.append(note(f"this machine does not know TERM={found.term}; the panel draws without "
                        "it, other programs may not", "export TERM=xterm-256color"))
    if found.columns < 80 or found.rows < 24:
        out.append(note("the panel needs 80×24 to show whole lines: make the window larger"))
    if not found.utf8:
        out.append(note("the locale is not UTF-8, so frames and curves are drawn in ASCII",
                        "export LANG=C.UTF-8"))
    if found.no_color:
        out.append(note("NO_COLOR is set: nothing is coloured", "unset NO_COLOR"))
    elif not found.truecolor:
        out.append(note("the terminal does not say that it has all colours, so the nearest of 256 "
                        "are used", "export COLORTERM=truecolor"))
    if found.tmux and found.clipboard not in (None, "on"):
        out.append(note(f"tmux has set-clipboard {found.clipboard}: what the panel copies does not "
                        "reach your clipboard", "tmux set -s set-clipboard on"))
    if found.screen:
        out.append(note("GNU screen passes no clipboard on: what the panel copies is also in a "
                        "file, which it names"))
    return out


def judge_limits(found: Limits) -> list[Finding]:
    """Whether training meets a limit of the machine."""
    out: list[Finding] = []
    if found.shm is not None and found.shm < _SHM:
        out.append(note(f"/dev/shm has {units.size(found.shm)}: data loaders with workers, and "
                        "NCCL, may fail with \"bus error\"",
                        "docker run --shm-size=16g …" if found.container else
                        "sudo mount -o remount,size=16G /dev/shm"))
    elif found.shm is not None:
        out.append(ok(f"/dev/shm has {units.size(found.shm)}"))
    if found.files is not None and found.files < _FILES:
        able = found.files_hard is None or found.files_hard > found.files
        most = min(found.files_hard or 65536, 65536)
        out.append(note(f"a process may have {found.files:,} files open: many loader workers "
                        "need more", f"ulimit -n {most}" if able else
                        "raise nofile in /etc/security/limits.conf"))
    elif found.files is not None:
        out.append(ok(f"a process may have {found.files:,} files open"))
    if found.memory is not None:
        used = "" if found.memory_now is None else f", {units.size(found.memory_now)} are in use"
        out.append((note if found.memory < _MEMORY else ok)(
            f"programs here may use {units.size(found.memory)} of memory{used} (control group)"))
    if found.clock_behind is not None and found.clock_behind > 0:
        out.append(problem(f"the clock is wrong: it is {units.clock(found.clock_behind)} before "
                           "gpu-panel's own files were written", "sudo timedatectl set-ntp true"))
    if found.synchronised is False:
        out.append(note("the clock is not set over the network, so times of several machines may "
                        "not fit together", "sudo timedatectl set-ntp true"))
    elif found.synchronised:
        out.append(ok("the clock is set over the network"))
    return out


def judge_logout(found: Logout) -> list[Finding]:
    """Whether runs go on after a logout."""
    if found.warning is not None:
        return [problem(found.warning, "loginctl enable-linger"
                        if "enable-linger" in found.warning else None)]
    if found.scope:
        return [ok("runs are started outside the login session, and go on after a logout")]
    if not found.asked:
        return [ok("no login session of systemd's: nothing ends runs at logout")]
    return [ok("systemd leaves processes alone at logout")]
