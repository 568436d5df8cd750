"""Runs on the other machine, in the interpreter that was chosen there: makes the new environment
beside earlier ones, tries it, and only then has it started in their place.

    install_there.py FOLDER-OF-WHAT-WAS-SENT

Standard library only; nothing of ours can be imported yet.
"""

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

KEPT = 3
"""Earlier environments that stay: runs that are going on may be using them."""


def main(sent: Path) -> None:
    plan = json.loads((sent / "plan.json").read_text())
    root = Path(plan["root"]).expanduser()
    new = root / plan["name"]
    python = str(new / "bin" / "python")
    try:
        venv.EnvBuilder(symlinks=True).create(str(new))
        site = next(new.glob("lib/python*/site-packages"))
        shutil.copytree(sent / "site", site, dirs_exist_ok=True)
        if plan["torch"]:
            line = "import site; site.addsitedir({!r})\n".format(plan["torch"])
            (site / "gpu_panel_torch.pth").write_text(line)
            run([python, "-c", "import torch"])
        run([python, "-P", "-m", "gpu_engine", "--wire", "word", "hosts"])
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    # A line that starts it: what runs goes on with the path of its own environment.
    starter = root / plan["place"] / "bin" / "python"
    starter.parent.mkdir(parents=True, exist_ok=True)
    temporary = starter.with_name(f".python.{os.getpid()}")
    quoted = "'" + python.replace("'", "'\\''") + "'"
    temporary.write_text(f'#!/bin/sh\nexec {quoted} "$@"\n')
    temporary.chmod(0o755)
    temporary.replace(starter)
    for old in sorted(root.glob("host-*"), key=lambda p: p.stat().st_mtime)[:-1 - KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def run(argv: list) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        raise SystemExit(f"{Path(argv[0]).name} failed: " + " · ".join(lines[-3:]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
