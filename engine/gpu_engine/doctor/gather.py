"""Looking at this machine. Each function returns facts, and judges nothing.

Where a question may never be answered (a driver, a network file system), the check that asks it
has a time limit; see `examine`.
"""

from __future__ import annotations

import fcntl
import locale
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from gpu_engine.common import paths
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import locked, reason
from gpu_engine.common.version import version
from gpu_engine.devices import discover, host, sampler
from gpu_engine.devices.backends import registry
from gpu_engine.devices.records import Inventory, Sample
from gpu_engine.doctor.devices import Cards
from gpu_engine.doctor.folders import Folder
from gpu_engine.doctor.software import Install, Package, Program, Torch
from gpu_engine.doctor.surroundings import Limits, Logout, Terminal
from gpu_engine.doctor.user_files import Files, Runs

_WAIT = 3.0
"""Seconds that a program gets to answer."""
_MOST_LOST = 20
"""Lost runs that are searched for processes: each takes a look at all processes."""
_PROGRAMS = (
    ("ssh", ("-V",), "runs on other hosts", "openssh-client"),
    ("git", ("--version",), "run.sync, and for the commit that is noted with each run", "git"),
    ("tmux", ("-V",), "panels that stay open when a connection breaks", "tmux"),
    ("rsync", ("--version",), "copying your data to hosts yourself; gpu-panel has no need of it",
     "rsync"),
    ("sbatch", ("--version",), "gpu-engine slurm", ""))


# --- software -------------------------------------------------------------------------------------

def install() -> Install:
    """How gpu-panel is installed, and which versions of what it needs."""
    try:
        wanted = metadata.requires("gpu-panel") or []
    except metadata.PackageNotFoundError:
        wanted = None
    packages = None if wanted is None else tuple(
        p for p in map(package, wanted) if p is not None)
    return Install(version(), platform.python_version(), sys.executable,
                   str(Path(__file__).parents[1]), sys.prefix,
                   (Path(sys.prefix) / "conda-meta").is_dir(), packages)


def package(requirement: str) -> Package | None:
    """A requirement as the metadata has it, "click<9,>=8.1", with the installed version. None for
    one that may be absent: an extra's, another platform's, and torch, which the ranks need and not
    this environment."""
    text, _, condition = requirement.partition(";")
    name = text.strip()
    wanted = ""
    for at, letter in enumerate(name):
        if letter in "<>=!~ (":
            name, wanted = name[:at], name[at:].strip(" ()")
            break
    name = name.partition("[")[0]
    try:
        there = metadata.version(name)
    except metadata.PackageNotFoundError:
        there = None
    if name == "torch" or "extra ==" in condition or (condition and there is None):
        return None
    return Package(name, wanted.replace(" ", ""), there)


def programs() -> list[Program]:
    """The other programs that gpu-panel may use."""
    out = []
    for name, asked, needed_for, apt in _PROGRAMS:
        path = shutil.which(name)
        said = answer([path, *asked]) if path else None
        line = next((s.strip() for s in (said or "").splitlines() if s.strip()), None)
        out.append(Program(name, path, clean(line, 80) if line else None, needed_for, apt))
    return out


def torches(env: Mapping[str, str]) -> list[Torch]:
    """The interpreters near by with their torch; the first is what ranks use by default. Torch is
    not imported."""
    from gpu_engine.interpreters import candidates, choose, install

    folder = Path(paths.here())
    taken = choose.of_ranks(None, folder, env)
    if taken.seen is None:
        return [Torch(sys.executable, candidates.own().why, None,
                      install.torch_into(sys.executable))]
    others = [(place, candidates.look(place)) for place in candidates.in_order(folder, env)
              if not place.stranger and place.path != taken.python]
    return [Torch(taken.seen.path, f"{taken.why}, the default of run.python", taken.seen.build),
            *(Torch(seen.path, place.why, seen.build) for place, seen in others if seen.build)]


def answer(argv: Sequence[str]) -> str | None:
    """What a program prints; None where it is missing, fails or takes too long."""
    try:
        done = subprocess.run(list(argv), capture_output=True, text=True, errors="replace",
                              timeout=_WAIT, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout or done.stderr) if done.returncode == 0 else None


# --- devices --------------------------------------------------------------------------------------

def cards(root: Path = Path("/")) -> Cards:
    """What the kernel says of the machine's cards."""
    makers: list[str] = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        kind, maker = _text(device / "class"), _text(device / "vendor")
        # 03: display controllers; 12: processing accelerators.
        if kind.startswith(("0x03", "0x12")):
            makers.append(maker.removeprefix("0x"))
    modules = tuple(name for name in ("nvidia", "nouveau", "amdgpu", "i915", "xe")
                    if (root / "sys/module" / name).is_dir())
    return Cards(tuple(makers), modules, _text(root / "sys/module/nvidia/version") or None,
                 in_container(root))


def in_container(root: Path = Path("/")) -> bool:
    """Whether this is inside a container of Docker, Podman, Kubernetes or Apptainer."""
    return any((root / name).exists() for name in (".dockerenv", "run/.containerenv",
                                                   ".singularity.d"))


def inventories(patience: float) -> list[Inventory]:
    """What each backend for GPUs finds."""
    return [discover.discover_of(name, patience) for name in registry.BACKENDS if name != "cpu"]


def devices(found: Sequence[Inventory], patience: float) -> tuple[Inventory, Sequence[Sample]]:
    """The devices that runs are offered, and a reading of each."""
    inventory = next((i for i in found if i.devices), None) or discover.cpu_slots()
    if inventory.is_cpu:
        return inventory, ()
    return inventory, sampler.take_several(inventory, looks=0, timeout=patience)[-1].samples


# --- folders --------------------------------------------------------------------------------------

def folder(path: Path, *, least: int = 0, scarce: int = 0,
           mounts: Path = Path("/proc/self/mountinfo")) -> Folder:
    """A folder that gpu-panel writes into. What is tried there is removed again."""
    from gpu_engine.runs import disk_room

    at = path
    while not at.is_dir() and at.parent != at and not os.path.lexists(at):
        at = at.parent
    there = at == path
    kind = kind_of(at, _text(mounts))
    try:
        info = at.stat()
        if not there:
            if not os.access(at, os.W_OK | os.X_OK):
                raise PermissionError(13, f"{at} may not be written")
            return Folder(str(path), False, free=disk_room.of(at).free, least=least, scarce=scarce,
                          kind=kind)
        with tempfile.NamedTemporaryFile(dir=at, prefix=".doctor-", suffix=".tmp") as file:
            locks = _lock_holds(Path(file.name), file.fileno())
            began = time.time()
            file.write(b"0")
            file.flush()
            clock = os.fstat(file.fileno()).st_mtime - began
    except OSError as err:
        return Folder(str(path), there, reason(err), kind=kind)
    mine = info.st_uid in (os.getuid(), 0)
    return Folder(str(path), True, None, not mine, bool(info.st_mode & 0o022),
                  disk_room.of(at).free, least, scarce, kind, locks, clock)


def _lock_holds(path: Path, fd: int) -> bool | None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return locked(path)


def kind_of(path: Path, mountinfo: str) -> str | None:
    """The kind of the file system that `path` is on, by the text of /proc/self/mountinfo
    (proc(5)); None if it does not tell."""
    best, kind = "", None
    where = os.path.realpath(path)
    for line in mountinfo.splitlines():
        mount, _, source = line.partition(" - ")
        words = mount.split()
        if len(words) < 5 or not source:
            continue
        at = words[4].encode().decode("unicode_escape")  # a blank is \040
        inside = where == at or where.startswith(at.rstrip("/") + "/")
        if inside and len(at) >= len(best):
            best, kind = at, source.split()[0]
    return kind


def shared() -> tuple[str | None, bool, str | None]:
    """The folder of all users: its path, whether it is there, why it is not used."""
    from gpu_engine.devices.leases import shared as box

    path = box.where()
    return (None if path is None else str(path), path is not None and os.path.lexists(path),
            box.why_not())


# --- surroundings ---------------------------------------------------------------------------------

def terminal(env: Mapping[str, str]) -> Terminal:
    """The terminal on standard error, which the panel draws on."""
    try:
        is_one = os.isatty(0) and os.isatty(2)
        size = os.get_terminal_size(2) if is_one else os.terminal_size((0, 0))
    except OSError:
        is_one, size = False, os.terminal_size((0, 0))
    term, tmux = env.get("TERM", ""), "TMUX" in env
    said = answer(["tmux", "show-options", "-sv", "set-clipboard"]) if tmux and is_one else None
    encoding = locale.getpreferredencoding(False).lower().replace("-", "")
    return Terminal(is_one, term, env.get("COLORTERM", "") in ("truecolor", "24bit"),
                    encoding == "utf8", size.columns, size.lines, tmux,
                    "STY" in env and not tmux, said.strip() if said else None,
                    "SSH_CONNECTION" in env, bool(env.get("NO_COLOR")), _described(term))


def _described(term: str) -> bool:
    """Whether the terminal database knows this one."""
    try:
        import curses
    except ImportError:
        return True
    try:
        curses.setupterm(term, 2)
    except curses.error:
        return False
    return True


def limits() -> Limits:
    """What the machine allows this process."""
    import resource

    soft, hard = (None if n == resource.RLIM_INFINITY else n
                  for n in resource.getrlimit(resource.RLIMIT_NOFILE))
    try:
        info = os.statvfs("/dev/shm")
        shm = info.f_blocks * info.f_frsize
    except OSError:
        shm = None
    memory, used = host.cgroup_memory()
    written = Path(__file__).stat().st_mtime
    said = answer(["timedatectl", "show", "-p", "NTPSynchronized", "--value"])
    return Limits(shm, soft, hard, memory, used, in_container(), written - time.time(),
                  {"yes": True, "no": False}.get((said or "").strip()))


def logout() -> Logout:
    """What happens to runs when the person logs out."""
    from gpu_engine.launching import logind

    found = logind.look()
    cgroup = _text(Path("/proc/self/cgroup"))
    return Logout("/session-" in cgroup, found.warning, found.scope)


# --- what is kept ---------------------------------------------------------------------------------

def files() -> Files:
    """What can be read of presets and settings."""
    from gpu_engine.notify import config as notify
    from gpu_engine.remote.reach import file as hosts
    from gpu_engine.settings import file as settings
    from gpu_engine.spec import presets

    every = list(presets.all_presets())
    broken = tuple((str(p[0]), p[1]) for p in every if isinstance(p, tuple))
    others: list[tuple[str, str | None]] = []
    if os.path.lexists(hosts.path()):
        try:
            count = len(hosts.read())
            others.append((f"{count} hosts in hosts.toml", None))
        except UserError as err:
            others.append(("hosts.toml", str(err)))
    if os.path.lexists(settings.path()):
        try:
            settings.read()
            others.append(("settings.toml", None))
        except UserError as err:
            others.append(("settings.toml", str(err)))
    if notify.exists():
        others.append(("notify.toml", notify.problem()))
    return Files(len(every), broken, tuple(others))


def runs() -> Runs:
    """What became of the runs."""
    from gpu_engine.queue import waiter
    from gpu_engine.runs import folder as found
    from gpu_engine.runs import leftovers, waiting

    states = [(run, run.state()) for run in found.all_runs()]
    lost = [run for run, state in states if state.state == "lost"]
    left = [run.id for run in lost[:_MOST_LOST] if leftovers.processes(run.path)]
    queue = paths.queue_folder()
    return Runs(len(states), sum(s.live and s.state != "queued" for _, s in states),
                tuple(r.id for r in lost), tuple(left),
                tuple((r.id, s.reason or "") for r, s in states if s.state == "unreadable"),
                sum(s.state == "queued" for _, s in states),
                not waiting.any_here(queue) or waiter.running(queue))


def hosts() -> list[tuple[str, tuple[str, ...]]]:
    """Each host of hosts.toml, and what keeps it from being used."""
    from gpu_engine.remote.reach import checkup, file

    return [(one.host.name, one.problems) for one in checkup.check(file.known().values())]


def _text(path: Path) -> str:
    """A small file's text; "" if it can't be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
