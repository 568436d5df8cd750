"""Judging what is installed: gpu-panel, what it needs, other programs, torch. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_engine.doctor.records import Finding, note, ok, problem
from gpu_engine.interpreters import wheels
from gpu_engine.interpreters.build import Build


@dataclass(frozen=True, slots=True)
class Package:
    """A package that gpu-panel needs."""

    name: str
    wanted: str
    """The versions that will do: ">=8.1,<9"; "" for any."""
    version: str | None
    """The installed one; None: it is not installed."""


@dataclass(frozen=True, slots=True)
class Install:
    """How gpu-panel is installed."""

    version: str
    python: str
    """The version of the interpreter, "3.11.2"."""
    executable: str
    folder: str
    """Where the package is."""
    prefix: str
    """The environment's folder, `sys.prefix`."""
    conda: bool = False
    """Whether it is a conda environment."""
    packages: tuple[Package, ...] | None = None
    """None: it is not installed as a package, so that nothing says what it needs."""


@dataclass(frozen=True, slots=True)
class Program:
    """Another program that gpu-panel may use."""

    name: str
    path: str | None
    """Where it is; None: it is not on the PATH."""
    said: str | None
    """The first line that it prints about its version; None: it printed none, or failed."""
    needed_for: str
    apt: str
    """The package of Debian and Ubuntu that has it; "" where that is for the machine's admin."""


@dataclass(frozen=True, slots=True)
class Torch:
    """The torch of one interpreter."""

    python: str
    where: str
    """How it was found: "the default", "$VIRTUAL_ENV", …"""
    build: Build | None
    """None: there is no torch."""
    cure: str | None = None
    """What to type where there is none; None: pip of that interpreter."""


def judge_install(facts: Install) -> list[Finding]:
    """gpu-panel and the packages that it needs."""
    out = [ok(f"gpu-panel {facts.version} with Python {facts.python}, {facts.executable}"),
           ok(f"its code is in {facts.folder}")]
    if facts.packages is None:
        out.append(note("it is not installed as a package, so the versions of what it needs can't "
                        "be compared",
                        f"{facts.executable} -m pip install -e {Path(facts.folder).parents[1]}"))
        return out
    good: list[str] = []
    for package in facts.packages:
        if package.version is None:
            out.append(problem(f"{package.name} is not installed; gpu-panel needs "
                               f"{package.name}{package.wanted}", _install(facts, package)))
        elif not in_range(package.version, package.wanted):
            out.append(problem(f"{package.name} is {package.version}; gpu-panel needs "
                               f"{package.wanted}", _install(facts, package)))
        else:
            good.append(f"{package.name} {package.version}")
    if good:
        out.append(ok("what it needs: " + ", ".join(good)))
    return out


def _install(facts: Install, package: Package) -> str:
    wanted = f"'{package.name}{package.wanted}'"
    if "/uv/tools/" in facts.prefix:
        return "uv tool upgrade --reinstall gpu-panel"
    if "/pipx/venvs/" in facts.prefix:
        return "pipx reinstall gpu-panel"
    if facts.conda:
        return f"conda install -p {facts.prefix} -c conda-forge {wanted}"
    return f"{facts.executable} -m pip install {wanted}"


def in_range(version: str, wanted: str) -> bool:
    """Whether `version` satisfies `wanted` (">=8.1,<9", "!=2.0", "==3"). Compares the numbers of
    the release; what follows them ("rc1", "+cu130") is left out. A condition of another form is
    taken as satisfied."""
    own = _numbers(version)
    for condition in filter(None, (part.strip() for part in wanted.split(","))):
        found = re.fullmatch(r"(>=|<=|==|!=|<|>)\s*([0-9][0-9.]*)", condition)
        if found is None:
            continue
        other = _numbers(found[2])
        width = max(len(own), len(other))
        a, b = (n + (0,) * (width - len(n)) for n in (own, other))
        if not {">=": a >= b, "<=": a <= b, "==": a == b, "!=": a != b, "<": a < b, ">": a > b
                }[found[1]]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def judge_programs(programs: Sequence[Program]) -> list[Finding]:
    """The programs that some of what gpu-panel does needs."""
    out = []
    for one in programs:
        if one.path is None:
            out.append(note(f"no {one.name} here; it is needed for {one.needed_for}",
                            f"sudo apt install {one.apt}" if one.apt else None))
        elif one.said is None:
            out.append(note(f"{one.path} does not say its version, so it may not work; it is "
                            f"needed for {one.needed_for}", f"{one.path} --version"))
        else:
            out.append(ok(f"{one.name}: {one.said}"))
    return out


def judge_torch(found: Sequence[Torch], *, gpus: str | None, cuda: str | None) -> list[Finding]:
    """The torch that ranks would have. `found`: the first is the one that is used by default.
    `gpus`: whose GPUs were found, "nvml" or "amd"; None: none. `cuda`: the newest CUDA that the
    driver takes, "12.4"."""
    out: list[Finding] = []
    for number, one in enumerate(found):
        said = f"{one.python} ({one.where})"
        if one.build is None:
            if number == 0:
                others = [o.python for o in found[1:] if o.build is not None]
                out.append(problem(
                    f"no torch in {said}, which ranks would use",
                    f"gpu-engine run PRESET --set run.python={others[0]}" if others else
                    one.cure or f"{one.python} -m pip install torch"))
            continue
        wrong = _unfit(one, gpus, cuda)
        text = f"{one.build.sentence()} in {said}"
        if wrong is None:
            out.append(ok(text))
        else:
            why, cure = wrong
            out.append((problem if number == 0 else note)(f"{text}: {why}", cure))
    return out


def _unfit(one: Torch, gpus: str | None, cuda: str | None) -> tuple[str, str] | None:
    """Why this torch can't use the GPUs, and what would do. CUDA is compatible within a major
    version, so that a driver for 12.2 also runs a torch for 12.9."""
    build = one.build
    if build is None or gpus is None:
        return None
    if gpus == "nvml":
        major = _numbers(cuda or "")[:1]
        cure = (f"{one.python} -m pip install --force-reinstall torch --index-url "
                f"{wheels.index(wheels.for_cuda(cuda))}")
        if build.cuda is None:
            return "it can't use the NVIDIA GPUs of this machine", cure
        if major and _numbers(build.cuda)[:1] > major:
            return (f"the driver is too old for it, as it takes CUDA {cuda}: update the driver, or "
                    "install an older build", cure)
    elif gpus == "amd" and build.hip is None:
        return ("it can't use the AMD GPUs of this machine",
                f"{one.python} -m pip install --force-reinstall torch --index-url "
                f"{wheels.index(wheels.ROCM)}")
    return None
