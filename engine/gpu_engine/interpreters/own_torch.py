"""An environment with torch that gpu-panel makes, for where no interpreter near by has one.

It lies in gpu-panel's own folder: neither a project nor the environment that gpu-panel is installed
in gets what nobody has asked for there, all projects share it, and it is gone with one folder. A
run takes it last. Its file `ready` is written last, so that half an installation is none.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

from gpu_engine.common import files, paths
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.common.frozen import frozen
from gpu_engine.common.readable import readable
from gpu_engine.interpreters import build as builds
from gpu_engine.interpreters import install as install_words
from gpu_engine.interpreters.candidates import Place
from gpu_engine.runs import disk_room

RELEASE = "2.13.0"
"""The torch that gpu-panel is tested with: constraints.txt."""
_OF_PYPI = "cu130"
"""The build that PyPI has for Linux."""
_SIZES = {"cpu": (0.2e9, 0.8e9), "cuda": (2.8e9, 4.7e9), "rocm": (5e9, 15e9)}
"""Bytes to download, and on the disk afterwards: torch 2.13.0 for x86-64, measured; ROCm's are
estimated."""
_NVIDIA = Path("/proc/driver/nvidia/version")
_AMD = Path("/sys/class/kfd")
_TICK = 1.0
"""Seconds between two readings of how much has come."""
_PATIENCE = 5.0
"""Seconds in which an installer may end by itself before it is killed."""
_SAID = 6
"""Lines of an installer's that are told when it has failed."""


class NotInstalled(UserError):
    """It was not installed, and why."""

    title = "torch is not installed"


@frozen(slots=True)
class Offer:
    """What would be installed."""

    requirement: str
    """As pip understands it: "torch==2.13.0+cpu"."""
    options: tuple[str, ...]
    """Options of pip's: where it is looked for beside what pip is configured for."""
    build: str
    """"cpu", "cu130", "cu126", "rocm6.4"."""
    why: str
    """For people: "no driver of a GPU is here"."""
    folder: Path
    download: float
    """Bytes, about."""
    size: float
    """Bytes on the disk afterwards, about."""
    free: int | None
    """Bytes that are free there; None: that is not known."""
    uv: str | None
    """The program uv, where it has installed gpu-panel too, or Python has no pip; None: pip
    installs."""

    @property
    def problem(self) -> str | None:
        """Why it can't be installed, with what would do; None: it can."""
        if self.free is not None and self.free < self.download + self.size:
            return (f"{self.folder.parent} has {_gb(self.free)} free, and about "
                    f"{_gb(self.download + self.size)} are needed: make room, or set "
                    "GPU_PANEL_HOME to a folder on a larger disk")
        if self.uv is None and importlib.util.find_spec("ensurepip") is None:
            return (f"{sys.executable} can't make environments without the packages that Debian "
                    "keeps apart: sudo apt install python3-venv")
        return None

    def lines(self) -> list[str]:
        """For people: what, why this build, where, how large, by which program."""
        vendor = "AMD" if self.build.startswith("rocm") else "NVIDIA"
        what = "for the processor alone" if self.build == "cpu" else \
            f"for {vendor} GPUs ({self.build})"
        release = f"torch {RELEASE}" if RELEASE in self.requirement else "torch"
        free = f" ({_gb(self.free)} are free)" if self.free is not None else ""
        return [f"what    {release} {what}: {self.why}",
                f"where   {self.folder}, an environment of its own for all projects",
                f"size    about {_gb(self.download)} to download, {_gb(self.size)} on the disk"
                f"{free}",
                f"by      {'uv' if self.uv else 'pip'}, as it is configured for you: "
                f"{' '.join(self.words)}"]

    @property
    def words(self) -> tuple[str, ...]:
        """What the installer is told to install, and from where."""
        # numpy is what torch warns of if it is missing, and what tasks often need.
        where = self.options if self.uv is None else ("--torch-backend", self.build)
        return (self.requirement, "numpy", *where)


@frozen(slots=True)
class Progress:
    """How far an installation is."""

    line: str
    """What the installer has said last; empty: nothing yet."""
    written: int
    """Bytes that have come into the folder: downloads, and what is unpacked of them."""


def folder() -> Path:
    """Where the environment is or would be. Raises UserError as `places.home`."""
    return paths.home() / "torch"


def made() -> list[Place]:
    """The environment; empty if it is not there, or not whole."""
    try:
        found = folder()
        ready = (found / "ready").is_file()
    except (UserError, OSError):
        return []
    return [Place(f"{found}/bin/python", "the torch that gpu-panel has installed")] if ready else []


def offer(source: str = "cpu", cuda: str | None = None) -> Offer:
    """What would be installed on this machine. `source`, `cuda`: of its `Inventory`; the drivers'
    own files are looked for as well, as they tell of GPUs also where CPU slots are offered. Raises
    UserError as `places.home`."""
    build, why = _build(source, cuda)
    options: tuple[str, ...] = ()
    requirement = f"torch=={RELEASE}"
    if build == "cpu" and sys.platform != "darwin":
        requirement += "+cpu"
        options = ("--extra-index-url", builds.index(build))
    elif build not in ("cpu", _OF_PYPI):  # the newest that there is for it
        requirement, options = "torch>=2.2,<3", ("--index-url", builds.index(build))
    download, size = _SIZES["cuda" if build.startswith("cu") else
                            "rocm" if build.startswith("rocm") else "cpu"]
    where = folder()
    wanted = install_words.by_uv(sys.executable) or importlib.util.find_spec("ensurepip") is None
    return Offer(requirement, options, build, why, where, download, size,
                 disk_room.of(where).free,
                 shutil.which("uv") if wanted else None)


def _build(source: str, cuda: str | None) -> tuple[str, str]:
    if "nvml" in source:
        return builds.for_cuda(cuda), f"NVIDIA's driver takes CUDA {cuda or 'of no known version'}"
    if "amd" in source:
        return builds.ROCM, "AMD's driver is here"
    with contextlib.suppress(OSError):
        # CUDA 13 began with driver 580, CUDA 12 with 525.
        found = re.search(r"\s(\d{3})\.\d+", _NVIDIA.read_text(errors="replace"))
        driver = int(found[1]) if found else 580
        takes = "13" if driver >= 580 else "12" if driver >= 525 else "11"
        return builds.for_cuda(takes), f"NVIDIA's driver {driver} takes CUDA {takes}"
    if _AMD.is_dir():
        return builds.ROCM, "AMD's driver is here"
    return "cpu", "no driver of an NVIDIA or AMD GPU is here"


def install(wanted: Offer, stop: threading.Event) -> Generator[Progress, None, None]:
    """Install it, in processes of their own; tells how far it is about once a second. Ends early,
    and takes away what is there of it, once `stop` is set or the caller stops asking. Raises
    NotInstalled with the installer's last words."""
    if wanted.problem is not None:
        raise NotInstalled(wanted.problem)
    target = wanted.folder
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(target.with_name("torch.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as err:
        raise NotInstalled(f"{target.parent} can't be written to: {files.reason(err)}") from None
    whole = False
    try:
        # The installer holds it too, so that it is not disturbed after the panel has been killed.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(target, ignore_errors=True)
        try:
            for argv in _steps(wanted):
                yield from _run(argv, target, lock, stop)
                if stop.is_set():
                    return
            shutil.rmtree(target / "tmp", ignore_errors=True)
            (target / "ready").touch()
            whole = True
        finally:
            if not whole:
                shutil.rmtree(target, ignore_errors=True)
    except BlockingIOError:
        raise NotInstalled(f"another process is installing it into {target}") from None
    except OSError as err:
        raise NotInstalled(f"{target}: {files.reason(err)}") from None
    finally:
        os.close(lock)


def _steps(wanted: Offer) -> list[list[str]]:
    where, python = str(wanted.folder), f"{wanted.folder}/bin/python"
    if wanted.uv is not None:
        return [[wanted.uv, "venv", "--no-project", "--allow-existing", "--python", sys.executable,
                 where],
                [wanted.uv, "pip", "install", "--python", python, *wanted.words]]
    # Isolated: nothing of PYTHONPATH and of the folder that one is in.
    return [[sys.executable, "-I", "-m", "venv", where],
            [python, "-I", "-m", "pip", "install", "--disable-pip-version-check", "--no-input",
             "--progress-bar", "off", "--timeout", "60", *wanted.words]]


def _run(argv: list[str], target: Path, lock: int, stop: threading.Event
         ) -> Generator[Progress, None, None]:
    temporary = target / "tmp"
    temporary.mkdir(parents=True, exist_ok=True, mode=0o700)
    environ = os.environ | {"TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd="/",
                               stderr=subprocess.STDOUT, env=environ, start_new_session=True,
                               pass_fds=(lock,))
    assert process.stdout is not None
    said: list[str] = []
    rest, looked, written = b"", 0.0, 0
    try:
        while not stop.is_set():
            if time.monotonic() - looked > _TICK:
                written, looked = _size(target), time.monotonic()
            yield Progress(said[-1] if said else "", written)
            if readable(process.stdout.fileno(), _TICK):
                got = os.read(process.stdout.fileno(), 1 << 16)
                if not got:
                    break
                *whole, rest = (rest + got).split(b"\n")
                said += [text for line in whole if (text := clean(line.decode(errors="replace")))]
                del said[:-_SAID]
        if not stop.is_set() and process.wait() != 0:
            raise NotInstalled("\n".join(said) or f"{argv[0]} ended with {process.returncode}")
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the installer and what it has started, its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)
    if process.stdout is not None:
        process.stdout.close()


def _size(where: Path) -> int:
    """Bytes below a folder, as its files say."""
    total = 0
    for above, _, names in os.walk(where):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(above, name)).st_size  # noqa: PTH118
    return total


def _gb(count: float) -> str:
    return f"{count / 1e9:.1f} GB"
