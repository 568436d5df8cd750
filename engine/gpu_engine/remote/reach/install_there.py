"""Runs on the other machine, in the interpreter that was chosen there: makes the new environment
beside an earlier one, tries it, and only then lets it take the earlier one's place.

    install_there.py FOLDER-OF-WHAT-WAS-SENT

Standard library only; nothing of ours can be imported yet.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

KEPT = 2
"""Environments that stay beside the new one: runs that are going on may be using them."""


def main() -> int:
    sent = Path(sys.argv[1])
    plan = json.loads((sent / "plan.json").read_text())
    root = Path(plan["root"]).expanduser()
    new = root / plan["name"]
    try:
        venv.EnvBuilder(symlinks=True).create(str(new))
        python = str(new / "bin" / "python")
        site = Path(run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]))
        shutil.copytree(sent / "site", site, dirs_exist_ok=True)
        if plan["torch"]:
            line = "import site; site.addsitedir({!r})\n".format(plan["torch"])
            (site / "gpu_panel_torch.pth").write_text(line)
        run([python, "-P", "-m", "gpu_engine", "agent", "word"])
        if plan["torch"]:
            run([python, "-c", "import torch"])
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    switch(root / plan["place"], new)
    forget(root, new)
    return 0


def switch(place: Path, new: Path) -> None:
    """`place`/bin/python is a line that starts the new one: what runs goes on with the path of its
    own environment."""
    (place / "bin").mkdir(parents=True, exist_ok=True)
    for name in ("python", "gpu-engine", "gpu-panel"):
        module = "" if name == "python" else f" -P -m {name.replace('-', '_')}"
        target = place / "bin" / name
        temporary = target.with_name(f".{name}.{os.getpid()}")
        quoted = "'" + str(new / "bin" / "python").replace("'", "'\\''") + "'"
        temporary.write_text(f'#!/bin/sh\nexec {quoted}{module} "$@"\n')
        temporary.chmod(0o755)
        temporary.replace(target)


def forget(root: Path, new: Path) -> None:
    """Remove old environments that nothing runs in; the newest stay."""
    others = [p for p in root.glob("host-*") if p.is_dir() and p != new]
    others.sort(key=lambda p: p.stat().st_mtime, reverse=True)
    running = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            running.append(file.read_bytes())
    for old in others[KEPT:]:
        if not any(os.fsencode(old) in line for line in running):
            shutil.rmtree(old, ignore_errors=True)


def run(argv: list) -> str:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        raise SystemExit(f"{Path(argv[0]).name} failed: " + " · ".join(lines[-3:]))
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
