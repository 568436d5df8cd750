"""What is installed: gpu-panel, what it needs, other programs, torch."""

from __future__ import annotations

import platform
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from gpu_engine.common import paths
from gpu_engine.common.ask_program import answer
from gpu_engine.common.clean import clean
from gpu_engine.common.version import version
from gpu_engine.doctor.records import Finding, note, ok, problem
from gpu_engine.interpreters import candidates, choose, install
from gpu_engine.interpreters.build import Build
from gpu_engine.launching import torch_build

_PROGRAMS = (
    ("ssh", ("-V",), "runs on other hosts", "openssh-client"),
    ("git", ("--version",), "run.sync, and for the commit that is noted with each run", "git"),
    ("tmux", ("-V",), "panels that stay open when a connection breaks", "tmux"),
    ("sbatch", ("--version",), "gpu-engine slurm", ""))
"""(name, what asks for its version, what it is needed for, the package of Debian and Ubuntu; ""
where that is for the machine's admin)."""


def installed() -> list[Finding]:
    """gpu-panel and the packages that it needs."""
    folder = Path(__file__).parents[1]
    out = [ok(f"gpu-panel {version()} with Python {platform.python_version()}, {sys.executable}"),
           ok(f"its code is in {folder}")]
    try:
        wanted = metadata.requires("gpu-panel") or []
    except metadata.PackageNotFoundError:
        return [*out, note("it is not installed as a package, so the versions of what it needs "
                           "can't be compared",
                           f"{sys.executable} -m pip install -e {folder.parents[1]}")]
    return out + packages(wanted)


def packages(requirements: Sequence[str]) -> list[Finding]:
    """Whether what is required is there, as the metadata has it: "click<9,>=8.1". Left out is what
    may be absent: an extra's, another platform's, and torch, which the ranks need and not this
    environment."""
    out, good = [], []
    for requirement in requirements:
        text, _, condition = requirement.partition(";")
        name, wanted = re.findall(r"([\w.-]+)(?:\[.*?\])?(.*)", re.sub(r"[\s()]", "", text))[0]
        try:
            there = metadata.version(name)
        except metadata.PackageNotFoundError:
            there = None
        if name == "torch" or "extra ==" in condition or (condition and there is None):
            continue
        if there is None:
            out.append(problem(f"{name} is not installed; gpu-panel needs {name}{wanted}",
                               _install(name, wanted)))
        elif not in_range(there, wanted):
            out.append(problem(f"{name} is {there}; gpu-panel needs {wanted}",
                               _install(name, wanted)))
        else:
            good.append(f"{name} {there}")
    return out + ([ok("what it needs: " + ", ".join(good))] if good else [])


def _install(name: str, wanted: str) -> str:
    if "/uv/tools/" in sys.prefix:
        return "uv tool upgrade --reinstall gpu-panel"
    if "/pipx/venvs/" in sys.prefix:
        return "pipx reinstall gpu-panel"
    if (Path(sys.prefix) / "conda-meta").is_dir():
        return f"conda install -p {sys.prefix} -c conda-forge '{name}{wanted}'"
    return f"{sys.executable} -m pip install '{name}{wanted}'"


def in_range(version: str, wanted: str) -> bool:
    """Whether `version` satisfies `wanted` (">=8.1,<9", "!=2.0", "==3"). Compares the numbers of
    the release; what follows them ("rc1", "+cu130") is left out. A condition of another form is
    taken as satisfied."""
    own = _numbers(version)
    for sign, numbers in re.findall(r"(>=|<=|==|!=|<|>)\s*([0-9][0-9.]*)(?:,|$)", wanted):
        other = _numbers(numbers)
        width = max(len(own), len(other))
        a, b = (n + (0,) * (width - len(n)) for n in (own, other))
        if not {">=": a >= b, "<=": a <= b, "==": a == b, "!=": a != b, "<": a < b, ">": a > b
                }[sign]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def programs() -> list[Finding]:
    """The programs that some of what gpu-panel does needs."""
    out = []
    for name, asked, needed_for, apt in _PROGRAMS:
        path = shutil.which(name)
        said = next((line.strip() for line in ((answer([path, *asked]) if path else None) or ""
                                               ).splitlines() if line.strip()), None)
        if path is None:
            out.append(note(f"no {name} here; it is needed for {needed_for}",
                            f"sudo apt install {apt}" if apt else None))
        elif said is None:
            out.append(note(f"{path} does not say its version, so it may not work; it is needed "
                            f"for {needed_for}", f"{path} --version"))
        else:
            out.append(ok(f"{name}: {clean(said, 80)}"))
    return out


Torch = tuple[str, str, Build | None]
"""An interpreter's path, how it was found ("$VIRTUAL_ENV"), and its torch; None: it has none."""


def torches(env: Mapping[str, str]) -> list[Torch]:
    """The interpreters near by; the first is what ranks use by default. Torch is not imported."""
    folder = Path(paths.here())
    taken = choose.of_ranks(None, folder, env)
    if taken.seen is None:
        own = candidates.own()
        return [(own.path, own.why, None)]
    others = [(candidates.inspect(place), place.why) for place in candidates.in_order(folder, env)
              if not place.stranger and place.path != taken.python]
    return [(taken.seen.path, f"{taken.why}, the default of run.python", taken.seen.build),
            *((seen.path, why, seen.build) for seen, why in others if seen.build)]


def torch(found: Sequence[Torch], *, gpus: str | None, cuda: str | None) -> list[Finding]:
    """The torch that ranks would have. `found`: the first is the one that is used by default.
    `gpus`: whose GPUs were found, "nvml" or "amd"; None: none. `cuda`: the newest CUDA that the
    driver takes, "12.4"."""
    out: list[Finding] = []
    for number, (python, why_here, build) in enumerate(found):
        said = f"{python} ({why_here})"
        if build is None:
            if number == 0:
                others = [path for path, _, other in found[1:] if other is not None]
                out.append(problem(
                    f"no torch in {said}, which ranks would use",
                    f"gpu-engine run PRESET --set run.python={others[0]}" if others else
                    install.torch_into(python)))
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
    if gpus != "nvml" or cuda is None or _numbers(build.cuda or "")[:1] <= _numbers(cuda)[:1]:
        return None
    return (f"the driver is too old for it, as it takes CUDA {cuda}: update the driver, or install "
            "an older build", torch_build.install(python, gpus, cuda))
