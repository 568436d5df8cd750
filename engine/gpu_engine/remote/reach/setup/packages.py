"""What is running here: this program and the packages that it needs, but for torch, as files.

They are read from where they are installed, so nothing is downloaded, and the other machine gets
what runs here. The same files give the same `digest`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import gpu_engine
from gpu_engine.common.errors import UserError

OURS = "gpu-panel"
_LEFT_OUT = frozenset({"torch"})
"""Gigabytes that depend on the other machine's driver; looked for there."""
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?([^;]*)")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


@dataclass(frozen=True, slots=True)
class Package:
    """A package, ready to be put into an environment."""

    name: str
    tags: tuple[str, ...]
    """What it is for, as its wheel's name has it: "cp36-abi3-manylinux_2_12_x86_64"."""
    files: dict[str, bytes]
    """By their paths below site-packages."""

    def fits(self, version: tuple[int, ...], same_platform: bool) -> bool:
        """Whether an interpreter of that version, on a platform like this one or not, can use
        it."""
        exact = "cp{}{}".format(*version[:2])
        return any(tag.endswith("-none-any")
                   or (same_platform and ("-abi3-" in tag or tag.startswith(f"{exact}-")))
                   for tag in self.tags)


def everything() -> list[Package]:
    """This program, then all that it needs. Raises UserError where they can't be read."""
    try:
        ours = metadata.distribution(OURS)
        return [_ours(ours), *(_read(d) for d in _needed(ours))]
    except metadata.PackageNotFoundError as err:
        raise UserError(f"{err.name or OURS} is not installed here, so that it can't be brought "
                        "elsewhere; install gpu-panel with pip or uv") from None


def requirements() -> list[str]:
    """What this program needs, as pip takes it, but for `_LEFT_OUT`."""
    found = []
    for text in metadata.distribution(OURS).requires or []:
        name, extras, versions = _parsed(text)
        if name not in _LEFT_OUT and not _EXTRA.search(text):
            found.append(name + (f"[{','.join(extras)}]" if extras else "") + versions)
    return found


def digest(packages: Iterable[Package]) -> str:
    """A short name for exactly these."""
    whole = hashlib.sha256()
    for package in packages:
        for name, data in sorted(package.files.items()):
            whole.update(f"{name}\0".encode() + hashlib.sha256(data).digest())
    return whole.hexdigest()[:12]


def _needed(ours: metadata.Distribution) -> list[metadata.Distribution]:
    """Every package below ours, each once. A requirement that is not installed here is for other
    machines than this one."""
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, tuple[str, ...]]] = set()
    todo: list[tuple[metadata.Distribution, tuple[str, ...]]] = [(ours, ())]
    while todo:
        owner, wanted = todo.pop()
        for text in owner.requires or []:
            name, extras, _ = _parsed(text)
            conditions = _EXTRA.findall(text)
            if name in _LEFT_OUT or (name, extras) in seen \
                    or (conditions and not set(conditions) & set(wanted)):
                continue
            try:
                there = metadata.distribution(name)
            except metadata.PackageNotFoundError:
                continue
            seen.add((name, extras))
            found[name] = there
            todo.append((there, extras))
    return [found[name] for name in sorted(found)]


def _parsed(text: str) -> tuple[str, tuple[str, ...], str]:
    """Name, extras and versions of a requirement."""
    match = _REQUIREMENT.match(text)
    if match is None:
        raise UserError(f"{text!r} is no requirement of a package")
    extras = tuple(e.strip() for e in (match[2] or "").split(",") if e.strip())
    return re.sub(r"[-_.]+", "-", match[1]).lower(), extras, match[3].strip(" ()")


def _ours(installed: metadata.Distribution) -> Package:
    """From the folders that this program is running from, whether installed or a checkout."""
    engine = Path(gpu_engine.__file__).parent
    spec = importlib.util.find_spec("gpu_panel")
    files = dict(_folder(engine, "gpu_engine"))
    if spec is not None and spec.origin:
        files |= _folder(Path(spec.origin).parent, "gpu_panel")
    if not (engine / "shipped_presets").is_dir():  # a checkout keeps them at its root
        files |= _folder(engine.parents[1] / "presets", "gpu_engine/shipped_presets")
    about = installed.read_text("METADATA") or ""
    files[f"gpu_panel-{installed.version}.dist-info/METADATA"] = about.encode()
    return Package(OURS, ("py3-none-any",), files)


def _read(installed: metadata.Distribution) -> Package:
    """From the files that were installed, but for its programs and what is outside."""
    name = installed.metadata["Name"]
    text, listed = installed.read_text("WHEEL"), installed.files
    if text is None or listed is None:
        raise UserError(f"{name} was not installed from a wheel, so that it can't be brought "
                        "elsewhere; install it anew with pip or uv")
    files = {file.as_posix(): path.read_bytes() for file in listed
             if not file.is_absolute() and ".." not in file.parts and file.suffix != ".pyc"
             and (path := Path(str(file.locate()))).is_file()}
    return Package(name, tuple(re.findall(r"^Tag: *(\S+)", text, re.MULTILINE)), files)


def _folder(folder: Path, below: str) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".pyc" and "__pycache__" not in path.parts:
            yield f"{below}/{path.relative_to(folder).as_posix()}", path.read_bytes()
