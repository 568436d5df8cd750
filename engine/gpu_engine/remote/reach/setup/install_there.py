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
import zipfile
from pathlib import Path

KEPT = 2
"""Environments that stay beside the new one: runs that are going on may be using them."""


def main() -> int:
    sent = Path(sys.argv[1])
    plan = json.loads((sent / "plan.json").read_text())
    root = Path(plan["root"]).expanduser()
    new = root / plan["name"]
    if not (new / "complete").is_file():
        shutil.rmtree(new, ignore_errors=True)
        try:
            make(plan, sent, new)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        (new / "complete").touch()
    say("try it")
    subprocess.run([str(new / "bin" / "python"), "-m", "gpu_engine", "--version"], check=True,
                   stdout=subprocess.DEVNULL)
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
    files = [str(sent / name) for name in plan["wheels"]]
    say("install the packages")
    if uv:
        install = [uv, "pip", "install", "--quiet", "--python", python]
        run([*install, "--no-index", "--no-deps", *files])
    elif has_pip():
        install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet",
                   "--disable-pip-version-check", "--no-input"]
        run([*install, "--no-index", "--no-deps", *files])
    else:
        install = []
        for file in files:
            unpack(Path(file), site_of(python))
    if plan["requirements"]:
        need(install)
        run([*install, *plan["requirements"]])
    if plan["torch_site"]:
        line = "import site; site.addsitedir({!r})\n".format(plan["torch_site"])
        (site_of(python) / "gpu_panel_torch.pth").write_text(line)
    elif plan["torch"]:
        need(install)
        say("download torch")
        run([*install, plan["torch"]])


def has_pip() -> bool:
    """Whether a pip that can install into another environment (22.3 and later) is here."""
    from importlib import metadata

    try:
        numbers = metadata.version("pip").split(".")[:2]
        return tuple(int(n) for n in numbers) >= (22, 3)
    except (metadata.PackageNotFoundError, ValueError):
        return False


def need(install: list) -> None:
    if not install:
        raise SystemExit("there is neither uv nor pip, which the package index needs")


def unpack(wheel: Path, site: Path) -> None:
    """What an installer does with a wheel that has no data folder and no scripts of its own."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith("/") or ".." in Path(name).parts or ".data/" in name:
                raise SystemExit(f"{wheel.name} can't be unpacked: {name}")
        archive.extractall(site)


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
