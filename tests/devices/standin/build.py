"""Build the stand-in driver library, and write the state that it answers from."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml_standin.c")
LIBRARY = "libnvidia-ml.so.1"


def build(out_dir: Path, *flags: str) -> Path:
    """Compile it into `out_dir`; -DOLD leaves out what old drivers lack. Returns the library."""
    compiler = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    if compiler is None:
        raise RuntimeError("the tests of the GPU view need a C compiler (cc, gcc or clang)")
    out_dir.mkdir(parents=True, exist_ok=True)
    library = out_dir / LIBRARY
    subprocess.run(
        [compiler, "-O1", "-Wall", "-Wextra", "-fPIC", "-shared", f"-Wl,-soname,{LIBRARY}",
         "-pthread", *flags, "-o", str(library), str(SOURCE)],
        check=True,
    )  # fmt: skip
    return library


def calls(path: Path) -> dict[str, int]:
    """Calls by function so far, from the file that NVML_STANDIN_CALLS names."""
    body = path.read_bytes() if path.exists() else b""
    found = {}
    for name, count in struct.iter_unpack("<56sQ", body[: len(body) // 64 * 64]):
        if name[0]:
            found[name.split(b"\0")[0].decode()] = count
    return found


@dataclass
class Standin:
    """A machine whose driver is the stand-in: a library, its state file and its call counts."""

    library: Path
    folder: Path
    lines: list[str] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def calls_file(self) -> Path:
        return self.folder / "calls"

    def set(self, *lines: str) -> None:
        """Make the machine this, whole: a program that runs sees it at its next call."""
        self.lines = list(lines)
        new = self.folder / "state.new"
        new.write_text("".join(f"{line}\n" for line in lines))
        new.replace(self.state)

    def add(self, *lines: str) -> None:
        """Change something, and leave the rest as it is."""
        self.set(*self.lines, *lines)

    def env(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Environment for a program that is to see this machine."""
        found = dict(os.environ if base is None else base)
        older = found.get("LD_LIBRARY_PATH")
        found["LD_LIBRARY_PATH"] = f"{self.library.parent}{':' + older if older else ''}"
        found["NVML_STANDIN_STATE"] = str(self.state)
        found["NVML_STANDIN_CALLS"] = str(self.calls_file)
        found.pop("CUDA_VISIBLE_DEVICES", None)
        found.pop("CUDA_DEVICE_ORDER", None)
        return found

    def calls(self) -> dict[str, int]:
        """Calls by function, of all programs that saw this machine."""
        return calls(self.calls_file)
