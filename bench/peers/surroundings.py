"""The machine, the versions and the others' environment."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "peers"
PYTHON = FOLDER / ".venv" / "bin" / "python"
"""The others' interpreter, which has torch too."""
LOOPS = Path(__file__).with_name("loops")


def machine() -> dict[str, str]:
    """What kind of machine this is; nothing that tells which."""
    model = next((line.partition(":")[2].strip()
                  for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return {"cores": str(len(os.sched_getaffinity(0))), "cpu": model,
            "memory": f"{memory:.0f} GiB", "system": f"Linux {platform.release().split('-')[0]}"}


def versions(*packages: str) -> dict[str, str]:
    """Versions in the others' environment, with Python's and gpu-panel's."""
    ask = ("import importlib.metadata as m, platform, sys\n"
           "print('Python', platform.python_version())\n"
           "for p in sys.argv[1:]: print(p, m.version(p))")
    out = subprocess.run([PYTHON, "-c", ask, *packages], check=True, capture_output=True,
                         text=True).stdout
    return {"gpu-panel": importlib.metadata.version("gpu-panel"),
            **dict(line.split() for line in out.splitlines())}


def commit() -> str:
    """The last commit that changed gpu-panel itself, with "+" if there are changes since; ""
    outside a checkout."""
    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *words, "--", "engine", "tui"],
                              capture_output=True, text=True).stdout.strip()

    return git("log", "-1", "--format=%h") + ("+" if git("status", "--porcelain") else "")


def nvtop() -> str | None:
    """nvtop's path: BENCH_NVTOP, or the one on the PATH."""
    return os.environ.get("BENCH_NVTOP") or shutil.which("nvtop")
