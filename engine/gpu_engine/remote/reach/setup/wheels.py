"""Wheels of what is running here: this program, and the packages that it needs but for `_LEFT_OUT`.

They are made from the files that are installed, so nothing is downloaded, and the other machine
gets what runs here. The format is PEP 427's: a zip of the files, with a list of their hashes. The
same files give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import re
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import gpu_engine
from gpu_engine.common.errors import UserError

OURS = "gpu-panel"
_LEFT_OUT = frozenset({"torch", "msgspec"})
"""torch: gigabytes that depend on the other machine's driver; looked for there. msgspec: made for
one version of Python, and only makes the reading of long runs faster, which nobody does there."""
_NOT_CARRIED = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?([^;]*)")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


@dataclass(frozen=True, slots=True)
class Wheel:
    """A package, ready to be installed."""

    file: str
    """Its file's name, which says what it is for: "psutil-7.2.2-cp36-abi3-manylinux….whl"."""
    data: bytes

    @property
    def tags(self) -> tuple[str, str, str]:
        """Interpreter, ABI and platform that it is for."""
        python, abi, platform = self.file.removesuffix(".whl").split("-")[-3:]
        return python, abi, platform

    @property
    def any_platform(self) -> bool:
        return self.tags[1:] == ("none", "any")


def all_wheels() -> list[Wheel]:
    """This program's wheel, then those of all that it needs. Raises UserError where they can't be
    made."""
    try:
        ours = metadata.distribution(OURS)
        return [_ours(ours), *(_packed(d) for d in _needed(ours))]
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


def digest(wheels: Iterable[Wheel]) -> str:
    """A short name for exactly these."""
    whole = hashlib.sha256()
    for wheel in wheels:
        whole.update(wheel.file.encode() + hashlib.sha256(wheel.data).digest())
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


def _ours(installed: metadata.Distribution) -> Wheel:
    """From the folders that this program is running from, whether installed or a checkout."""
    engine = Path(gpu_engine.__file__).parent
    spec = importlib.util.find_spec("gpu_panel")
    panel = Path(spec.origin).parent if spec is not None and spec.origin else None
    files = dict(_folder(engine, "gpu_engine"))
    if panel is not None:
        files |= _folder(panel, "gpu_panel")
    if not (engine / "shipped_presets").is_dir():  # a checkout keeps them at its root
        files |= _folder(engine.parents[1] / "presets", "gpu_engine/shipped_presets")
    about = {name: text for name in ("METADATA", "entry_points.txt")
             if (text := installed.read_text(name)) is not None}
    about["WHEEL"] = ("Wheel-Version: 1.0\nGenerator: gpu-panel\nRoot-Is-Purelib: true\n"
                      "Tag: py3-none-any\n")
    info = f"gpu_panel-{installed.version}.dist-info"
    files |= {f"{info}/{name}": text.encode() for name, text in about.items()}
    return Wheel(f"gpu_panel-{installed.version}-py3-none-any.whl", _zip(files, info))


def _packed(installed: metadata.Distribution) -> Wheel:
    """From the files that were installed."""
    name = re.sub(r"[-_.]+", "_", installed.metadata["Name"]).lower()
    text, listed = installed.read_text("WHEEL"), installed.files
    if text is None or listed is None:
        raise UserError(f"{installed.metadata['Name']} was not installed from a wheel, so that it "
                        "can't be brought elsewhere; install it anew with pip or uv")
    files, info = {}, ""
    for file in listed:
        if file.parts[0].endswith(".dist-info"):
            info = file.parts[0]
        path = Path(str(file.locate()))
        if ".." in file.parts or file.is_absolute() or file.suffix == ".pyc" \
                or (file.parts[0] == info and file.name in _NOT_CARRIED) or not path.is_file():
            continue
        files[file.as_posix()] = path.read_bytes()
    tags = [line.partition(":")[2].strip().split("-") for line in text.splitlines()
            if line.startswith("Tag:")]
    joined = "-".join(".".join(dict.fromkeys(tag[i] for tag in tags)) for i in range(3))
    return Wheel(f"{name}-{installed.version}-{joined}.whl", _zip(files, info))


def _folder(folder: Path, below: str) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".pyc" and "__pycache__" not in path.parts:
            yield f"{below}/{path.relative_to(folder).as_posix()}", path.read_bytes()


def _zip(files: dict[str, bytes], info: str) -> bytes:
    record = "".join(f"{name},sha256={_hash(data)},{len(data)}\n"
                     for name, data in sorted(files.items())) + f"{info}/RECORD,,\n"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in [*sorted(files.items()), (f"{info}/RECORD", record.encode())]:
            entry = zipfile.ZipInfo(name)  # dated 1980: the same files are the same bytes
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return out.getvalue()


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
