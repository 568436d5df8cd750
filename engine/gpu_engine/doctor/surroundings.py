"""What a program finds around it: the terminal, the machine's limits, what happens at logout."""

from __future__ import annotations

import locale
import os
import resource
import time
from collections.abc import Mapping
from pathlib import Path

from gpu_engine.common import units
from gpu_engine.common.ask_program import answer
from gpu_engine.devices import host
from gpu_engine.doctor.records import Finding, note, ok, problem
from gpu_engine.launching import logind

_SHM, _FILES, _MEMORY = 1 << 30, 4096, 4 << 30


def text(path: Path) -> str:
    """A small file's text; "" if it can't be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def in_container(root: Path = Path("/")) -> bool:
    """Whether this is inside a container of Docker, Podman, Kubernetes or Apptainer."""
    return any((root / name).exists() for name in (".dockerenv", "run/.containerenv",
                                                   ".singularity.d"))


def terminal(env: Mapping[str, str]) -> list[Finding]:
    """Whether the panel will look as it should in the terminal on standard error."""
    size = _size()
    if size is None:
        return [note("this is no terminal, so nothing can be said about the panel in yours",
                     "gpu-engine doctor, typed in the terminal")]
    term, tmux, screen = env.get("TERM", ""), "TMUX" in env, "STY" in env and "TMUX" not in env
    inside = " in tmux" if tmux else " in GNU screen" if screen else ""
    ssh = " over ssh" if "SSH_CONNECTION" in env else ""
    out = [ok(f"TERM={term}{inside}{ssh}, {size.columns}×{size.lines}")]
    if term in ("", "dumb", "unknown"):
        out.append(problem("the terminal does not say what it can do, so the panel can't draw",
                           "export TERM=xterm-256color"))
    elif not _described(term):
        out.append(note(f"this machine does not know TERM={term}; the panel draws without it, "
                        "other programs may not", "export TERM=xterm-256color"))
    if size.columns < 80 or size.lines < 24:
        out.append(note("the panel needs 80×24 to show whole lines: make the window larger"))
    if locale.getpreferredencoding(False).lower().replace("-", "") != "utf8":
        out.append(note("the locale is not UTF-8, so frames and curves are drawn in ASCII",
                        "export LANG=C.UTF-8"))
    if env.get("NO_COLOR"):
        out.append(note("NO_COLOR is set: nothing is coloured", "unset NO_COLOR"))
    elif env.get("COLORTERM", "") not in ("truecolor", "24bit"):
        out.append(note("the terminal does not say that it has all colours, so the nearest of 256 "
                        "are used", "export COLORTERM=truecolor"))
    asked = answer(["tmux", "show-options", "-sv", "set-clipboard"]) if tmux else None
    if asked and asked.strip() != "on":
        out.append(note(f"tmux has set-clipboard {asked.strip()}: what the panel copies does not "
                        "reach your clipboard", "tmux set -s set-clipboard on"))
    if screen:
        out.append(note("GNU screen passes no clipboard on: what the panel copies is also in a "
                        "file, which it names"))
    return out


def _size() -> os.terminal_size | None:
    """The size of the terminal that this was typed in; None: it is none."""
    try:
        return os.get_terminal_size(2) if os.isatty(0) and os.isatty(2) else None
    except OSError:
        return None


def _described(term: str) -> bool:
    """Whether the terminal database knows this one."""
    try:
        import curses
    except ImportError:  # a Python may be built without
        return True
    try:
        curses.setupterm(term, 2)
    except curses.error:
        return False
    return True


def limits() -> list[Finding]:
    """Whether training meets a limit of the machine."""
    out: list[Finding] = []
    shm = _shm()
    if shm is not None and shm < _SHM:
        out.append(note(f"/dev/shm has {units.size(shm)}: data loaders with workers, and NCCL, may "
                        "fail with \"bus error\"",
                        "docker run --shm-size=16g …" if in_container() else
                        "sudo mount -o remount,size=16G /dev/shm"))
    elif shm is not None:
        out.append(ok(f"/dev/shm has {units.size(shm)}"))
    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = hard if hard != resource.RLIM_INFINITY else 65536
    if files != resource.RLIM_INFINITY:
        said = f"a process may have {files:,} files open"
        out.append(ok(said) if files >= _FILES else
                   note(f"{said}: many loader workers need more", f"ulimit -n {min(hard, 65536)}"
                        if hard > files else "raise nofile in /etc/security/limits.conf"))
    memory, used = host.cgroup_memory()
    if memory is not None:
        now = "" if used is None else f", {units.size(used)} are in use"
        out.append((note if memory < _MEMORY else ok)(
            f"programs here may use {units.size(memory)} of memory{now} (control group)"))
    return out + _clock()


def _shm() -> int | None:
    """Bytes of /dev/shm; None: there is none."""
    try:
        info = os.statvfs("/dev/shm")
    except OSError:
        return None
    return info.f_blocks * info.f_frsize


def _clock() -> list[Finding]:
    behind = Path(__file__).stat().st_mtime - time.time()
    out = []
    if behind > 0:
        out.append(problem(f"the clock is wrong: it is {units.clock(behind)} before gpu-panel's "
                           "own files were written", "sudo timedatectl set-ntp true"))
    set_by_network = answer(["timedatectl", "show", "-p", "NTPSynchronized", "--value"]) or ""
    if set_by_network.strip() == "no":
        out.append(note("the clock is not set over the network, so times of several machines may "
                        "not fit together", "sudo timedatectl set-ntp true"))
    elif set_by_network.strip() == "yes":
        out.append(ok("the clock is set over the network"))
    return out


def logout() -> list[Finding]:
    """Whether runs go on after a logout."""
    found = logind.examine()
    if found.warning is not None:
        return [problem(found.warning, "loginctl enable-linger"
                        if "enable-linger" in found.warning else None)]
    if found.scope:
        return [ok("runs are started outside the login session, and go on after a logout")]
    if "/session-" not in text(Path("/proc/self/cgroup")):
        return [ok("no login session of systemd's: nothing ends runs at logout")]
    return [ok("systemd leaves processes alone at logout")]
