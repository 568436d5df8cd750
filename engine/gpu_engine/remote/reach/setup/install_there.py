"""Runs on the other machine, in the interpreter that was chosen there: makes the new environment
beside an earlier one, tries it, and only then lets it take the earlier one's place.

    install_there.py FOLDER-OF-WHAT-WAS-SENT

Standard library only; nothing of ours can be imported yet.
"""

import contextlib
import filecmp
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

KEPT = 2
"""Environments that stay beside the new one: runs that are going on may be using them."""


def main() -> int:
    sent = Path(sys.argv[1])
    plan = json.loads((sent / "plan.json").read_text())
    root = Path(plan["root"]).expanduser()
    new, number = root / plan["name"], 1
    while (new / "complete").is_file() and not whole(plan, sent, new):
        number += 1  # runs may be using what is left of it
        say(f"{new.name} is damaged: another takes its place")
        new = root / f"{plan['name']}-{number}"
    if not (new / "complete").is_file():
        shutil.rmtree(new, ignore_errors=True)
        try:
            make(plan, sent, new)
            say("try it")
            attempt(plan, new)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        (new / "complete").touch()
    switch(root / plan["place"], new)
    forget(root, new)
    say("done")
    return 0


def make(plan: dict, sent: Path, new: Path) -> None:
    say("make the environment")
    uv = plan["uv"]
    if uv:
        run([uv, "venv", "--quiet", "--python", sys.executable, str(new)])
    else:
        import venv

        venv.EnvBuilder(symlinks=True).create(str(new))
    python = str(new / "bin" / "python")
    say("install the packages")
    site = site_of(python)
    shutil.copytree(sent / "site", site, dirs_exist_ok=True)
    if plan["requirements"]:
        run([*installer(uv, python), *plan["requirements"]])
    if plan["torch_site"]:
        line = "import site; site.addsitedir({!r})\n".format(plan["torch_site"])
        (site / "gpu_panel_torch.pth").write_text(line)
    elif plan["torch"]:
        say("download torch")
        run([*installer(uv, python), plan["torch"]])


def attempt(plan: dict, new: Path) -> None:
    """Have it do what it is for. Raises SystemExit."""
    python = str(new / "bin" / "python")
    run([python, "-m", "gpu_engine", "--version"])
    run([python, "-P", "-m", "gpu_engine", "agent", "word"])
    if plan["torch"]:
        run([python, "-c", "import torch"])


def whole(plan: dict, sent: Path, new: Path) -> bool:
    """Whether an environment that was made of the same still works, and has all that was sent."""
    try:
        attempt(plan, new)
        site = site_of(str(new / "bin" / "python"))
        return all(filecmp.cmp(file, site / file.relative_to(sent / "site"), shallow=False)
                   for file in (sent / "site").rglob("*") if file.is_file())
    except (OSError, SystemExit):
        return False


def installer(uv: str, python: str) -> list:
    """What the names of packages of the package index are put behind."""
    if uv:
        return [uv, "pip", "install", "--quiet", "--python", python]
    if has_pip():
        return [sys.executable, "-m", "pip", "--python", python, "install", "--quiet",
                "--disable-pip-version-check", "--no-input"]
    raise SystemExit("there is neither uv nor pip, which the package index needs")


def has_pip() -> bool:
    """Whether a pip that can install into another environment (22.3 and later) is here."""
    from importlib import metadata

    try:
        numbers = metadata.version("pip").split(".")[:2]
        return tuple(int(n) for n in numbers) >= (22, 3)
    except (metadata.PackageNotFoundError, ValueError):
        return False


def site_of(python: str) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.run([python, "-c", code], check=True, stdout=subprocess.PIPE,
                               text=True).stdout.strip())


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


def run(argv: list) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        raise SystemExit(f"{Path(argv[0]).name} failed: " + " · ".join(lines[-3:]))


def say(text: str) -> None:
    sys.stdout.write(f"gpu-panel: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
