"""This machine as `gpu-engine doctor` sees it: drivers and devices, torch, other programs, the
terminal, limits, and what happens at logout."""

from __future__ import annotations

import locale
import os
import platform
import resource
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpu_engine.common import paths, units
from gpu_engine.common.programs import version
from gpu_engine.devices import discover, sampler
from gpu_engine.devices.records import HARDWARE_REASONS, Inventory, Sample
from gpu_engine.interpreters import choose, inspection
from gpu_engine.interpreters.inspection import Build, Seen
from gpu_engine.launching import logind, torch_build
from gpu_engine.runs import disk_room

_SHM, _FILES = 1 << 30, 4096
_PROGRAMS = (
    ("ssh", "runs on other hosts", "openssh-client"),
    ("git", "run.sync, and for the commit that is noted with each run", "git"),
    ("tmux", "panels that stay open when a connection breaks", "tmux"),
    ("sbatch", "gpu-engine slurm", ""))
"""(name, what it is needed for, the package of Debian; "" where an admin installs it)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer."""

    level: Literal["ok", "note", "problem"]
    """note: worth knowing, runs work all the same. problem: something does not work."""
    text: str
    """In words, without a full stop."""
    cure: str | None = None
    """A command to type, or what to do where no command does it; None: nothing needs to be done."""


def ok(text: str) -> Finding:
    return Finding("ok", text)


def note(text: str, cure: str | None = None) -> Finding:
    return Finding("note", text, cure)


def problem(text: str, cure: str | None = None) -> Finding:
    return Finding("problem", text, cure)


def installed() -> list[Finding]:
    """gpu-panel, and the Python that it runs in."""
    return [ok(f"gpu-panel {version()} with Python {platform.python_version()}, {sys.executable}"),
            ok(f"its code is in {Path(__file__).parents[1]}")]


_MAKERS = {"10de": "NVIDIA", "1002": "AMD", "8086": "Intel"}
"""PCI's numbers of those who make GPUs."""
_NAMES = {"nvml": "NVIDIA", "amd": "AMD"}
"""Who makes the GPUs of a backend."""


def drivers(inventories: Sequence[Inventory], root: Path = Path("/")) -> list[Finding]:
    """The drivers. `inventories`: what each backend for GPUs has found; `root`: below which the
    kernel says what cards there are."""
    out: list[Finding] = []
    for found in inventories:
        name = _NAMES.get(found.source, found.source)
        if found.problem:
            out.append(problem(f"{name}: {found.problem}", _cure(found.problem)))
        if found.driver or found.devices:
            said = [f"driver {found.driver}" if found.driver else "its driver works"]
            said += [f"takes CUDA up to {found.cuda}"] if found.cuda else []
            out.append(ok(f"{name}: {', '.join(said)}"))
        if found.hidden:
            out.append(note(f"{found.visible_variable}={found.inherited_visible!r} hides all GPUs",
                            f"unset {found.visible_variable}"))
        elif found.visible_variable and found.devices:
            out.append(note(f"{found.visible_variable}={found.inherited_visible} is set: only "
                            "these devices are offered", f"unset {found.visible_variable}"))
    seen = any(i.devices or i.problem or i.driver or i.hidden
               for i in inventories if i.source == "nvml")
    # 03: display controllers; 12: processing accelerators.
    on_bus = [_text(card / "vendor").removeprefix("0x")
              for card in sorted((root / "sys/bus/pci/devices").glob("*"))
              if _text(card / "class").startswith(("0x03", "0x12"))]
    if "10de" in on_bus and not seen:
        out.append(_without_nvidia(on_bus.count("10de"), root))
    if not out:
        makers = sorted({_MAKERS[v] for v in on_bus if v in ("1002", "8086")})
        out.append(note("no GPU driver that gpu-panel reads" + (
            f"; there are cards of {' and '.join(makers)} here" if makers else "")))
    return out


def _without_nvidia(count: int, root: Path) -> Finding:
    module = _text(root / "sys/module/nvidia/version")
    there = f"{units.counted(count, 'NVIDIA card')} in this machine, but "
    if _in_container(root):
        return problem(there + "the driver's library libnvidia-ml.so.1 is not in this container",
                       "start the container with --gpus all (NVIDIA Container Toolkit)")
    if (root / "sys/module/nouveau").is_dir():
        return problem(there + "they run with nouveau, which can't compute",
                       "sudo ubuntu-drivers install, or your distribution's way")
    if module:
        return problem(there + "the driver's library libnvidia-ml.so.1 is not found, although the "
                       f"kernel module {module} is loaded",
                       f"sudo apt install libnvidia-compute-{module.partition('.')[0]}")
    return problem(there + "no driver is installed",
                   "sudo ubuntu-drivers install, or your distribution's way")


_CURES = (("not loaded", "sudo modprobe nvidia"), ("different versions", "sudo reboot"),
          ("must be reset", "sudo nvidia-smi --gpu-reset"), ("did not answer", "sudo dmesg | tail"),
          ("/dev/nvidia*", "ls -l /dev/nvidia*"), ("without GPU rights", "start the container "
           "with --gpus all"), ("dmesg", "sudo dmesg | grep -i xid"))
"""A part of what a driver's trouble is called, and what to type."""


def _cure(trouble: str) -> str | None:
    return next((cure for part, cure in _CURES if part in trouble), None)


def devices(found: Sequence[Inventory], patience: float) -> list[Finding]:
    """The devices that runs are offered, and what is wrong with each."""
    inventory = next((i for i in found if i.devices), None) or discover.cpu_slots()
    samples = () if inventory.is_cpu else \
        sampler.take_several(inventory, readings=0, timeout=patience)[-1].samples
    return of_samples(inventory, samples)


def of_samples(inventory: Inventory, samples: Sequence[Sample]) -> list[Finding]:
    """What a reading of the devices says."""
    said = inventory.named()
    if not inventory.devices:
        return [problem("no devices to train on", "gpu-engine devices")]
    out = [note(f"no GPU to train on; {said} in place of it") if inventory.is_cpu else ok(said)]
    for sample in samples:
        label = sample.device.label
        if sample.problem:
            out.append(problem(f"{label}: {sample.problem}", _cure(sample.problem)))
        out += [problem(f"{label}: {why}", "nvidia-smi -q" if inventory.source == "nvml" else None)
                for why in sample.health]
        held = sorted(HARDWARE_REASONS.intersection(sample.throttle or ()))
        if held:
            out.append(problem(f"{label} is slowed down: {', '.join(held)}",
                               "look at its fans, its dust and its power cables"))
        out += [note(f"{label}: {why}", "sudo nvidia-smi -pm 1" if "persistence" in why else None)
                for why in sample.notes]
        if sample.memory_total is not None and sample.memory_used is not None \
                and not sample.device.is_cpu and not sample.processes \
                and sample.memory_used > 0.1 * sample.memory_total:
            out.append(note(f"{label}: {units.size(sample.memory_used)} are in use, and no process "
                            "is seen that holds them", "sudo fuser -v /dev/nvidia*"
                            if inventory.source == "nvml" else None))
    return out


def programs() -> list[Finding]:
    """The programs that some of what gpu-panel does needs."""
    out = []
    for name, needed_for, apt in _PROGRAMS:
        path = shutil.which(name)
        out.append(ok(f"{name}: {path}") if path else note(
            f"no {name} here; it is needed for {needed_for}",
            f"sudo apt install {apt}" if apt else None))
    return out


Torch = tuple[Seen, str]
"""What an interpreter has, and how it was found ("$VIRTUAL_ENV")."""


def torches(env: Mapping[str, str]) -> list[Torch]:
    """The interpreters near by; the first is what ranks use by default. None is started."""
    folder = Path(paths.here())
    taken = choose.of_ranks(None, folder, env)
    if taken.seen is None:
        own = choose.own()
        return [(Seen(own.path), own.why)]
    others = [(inspection.inspect(place.path), place.why) for place in choose.in_order(folder, env)
              if not place.stranger and place.path != taken.python]
    return [(taken.seen, f"{taken.why}, the default of run.python"),
            *((seen, why) for seen, why in others if seen.build)]


def torch(found: Sequence[Torch], *, gpus: str | None, cuda: str | None) -> list[Finding]:
    """The torch that ranks would have. `found`: the first is the one that is used by default.
    `gpus`: whose GPUs were found, "nvml" or "amd"; None: none. `cuda`: the newest CUDA that the
    driver takes, "12.4"."""
    out: list[Finding] = []
    for number, (seen, why_here) in enumerate(found):
        python, build = seen.path, seen.build
        said = f"{python} ({why_here})"
        if build is None:
            if seen.has_torch or seen.unread:
                out.append(note(f"{said}: {seen.sentence()}"))
            elif number == 0:
                others = [other.path for other, _ in found[1:] if other.build is not None]
                out.append(problem(
                    f"no torch in {said}, which ranks would use",
                    f"gpu-engine run PRESET --set run.python={others[0]}" if others else
                    choose.torch_into(python)))
            continue
        wrong = (gpus and torch_build.unfit(python, build, gpus, cuda)) or \
            _too_new(python, build, gpus, cuda)
        text = f"{build.sentence()} in {said}"
        if wrong:
            out.append((problem if number == 0 else note)(f"{text}: {wrong[0]}", wrong[1]))
        else:
            out.append(ok(text))
    return out


def _too_new(python: str, build: Build, gpus: str | None, cuda: str | None
             ) -> tuple[str, str] | None:
    """Why an NVIDIA driver is too old for this torch, and what installs an older one. CUDA is
    compatible within a major version, so that a driver for 12.2 also runs a torch for 12.9."""
    major, newest = ((text or "").partition(".")[0] for text in (build.cuda, cuda))
    if gpus != "nvml" or not (major.isdecimal() and newest.isdecimal()) \
            or int(major) <= int(newest):
        return None
    return (f"the driver is too old for it, as it takes CUDA {cuda}: update the driver, or install "
            "an older build", torch_build.install(python, gpus, cuda))


def terminal(env: Mapping[str, str]) -> list[Finding]:
    """Whether the panel will look as it should in the terminal on standard error."""
    size = _size()
    if size is None:
        return [note("this is no terminal, so nothing can be said about the panel in yours",
                     "gpu-engine doctor, typed in the terminal")]
    term = env.get("TERM", "")
    out = [ok(f"TERM={term}, {size.columns}×{size.lines}")]
    if term in ("", "dumb", "unknown"):
        out.append(problem("the terminal does not say what it can do, so the panel can't draw",
                           "export TERM=xterm-256color"))
    if size.columns < 80 or size.lines < 24:
        out.append(note("the panel needs 80×24 to show whole lines: make the window larger"))
    if locale.getpreferredencoding(False).lower().replace("-", "") != "utf8":
        out.append(note("the locale is not UTF-8, so frames and curves are drawn in ASCII",
                        "export LANG=C.UTF-8"))
    if env.get("NO_COLOR"):
        out.append(note("NO_COLOR is set: nothing is coloured", "unset NO_COLOR"))
    return out


def _size() -> os.terminal_size | None:
    """The size of the terminal that this was typed in; None: it is none."""
    try:
        return os.get_terminal_size(2) if os.isatty(0) and os.isatty(2) else None
    except OSError:
        return None


def limits() -> list[Finding]:
    """Whether training meets a limit of the machine."""
    out: list[Finding] = []
    shm = disk_room.of(Path("/dev/shm")).total
    if shm is not None and shm < _SHM:
        out.append(note(f"/dev/shm has {units.size(shm)}: data loaders with workers, and NCCL, may "
                        "fail with \"bus error\"",
                        "docker run --shm-size=16g …" if _in_container() else
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
    return out


def logout() -> list[Finding]:
    """Whether runs go on after a logout."""
    if (warning := logind.examine()) is not None:
        return [problem(warning, "loginctl enable-linger")]
    if "/session-" not in _text(Path("/proc/self/cgroup")):
        return [ok("no login session of systemd's: nothing ends runs at logout")]
    return [ok("systemd leaves processes alone at logout")]


def _text(path: Path) -> str:
    """A small file's text; "" if it can't be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _in_container(root: Path = Path("/")) -> bool:
    """Whether this is inside a container of Docker, Podman, Kubernetes or Apptainer."""
    return any((root / name).exists() for name in (".dockerenv", "run/.containerenv",
                                                   ".singularity.d"))
