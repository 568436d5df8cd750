"""Putting a completion script where its shell finds it."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import expanded, reason, write_atomic
from gpu_engine.completion import scripts

_MARK = "# completion of gpu-engine and gpu-panel"
COMMANDS = ("gpu-engine", "gpu-panel")


@dataclass(frozen=True, slots=True)
class Done:
    """What was written."""

    written: tuple[Path, ...]
    """Files that hold the script."""
    begun_in: Path | None
    """The shell's start file, which now loads it; None: the shell finds it by itself."""
    was_there: bool
    """Whether the start file had that line before, or, where there is none, the script itself was
    there and the same."""


def install(shell: str, env: Mapping[str, str], root: Path = Path("/")) -> Done:
    """Write the script for `shell` into the person's folders. bash with the package bash-completion
    and fish look there by themselves; zsh, and bash without it, get a line in their start file,
    once. `root`: where the machine's own files are. Raises UserError."""
    home = expanded(env.get("HOME") or "~")
    if not home.is_absolute():
        raise UserError("HOME is not set, and this user has no home folder to write it into")
    data = Path(env.get("XDG_DATA_HOME") or home / ".local/share")
    text = scripts.text(shell)
    try:
        if shell == "fish":
            config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
            return _by_itself([config / "fish/completions" / f"{n}.fish" for n in COMMANDS], text)
        if shell == "bash" and (root / "usr/share/bash-completion/bash_completion").exists():
            folder = Path(env.get("BASH_COMPLETION_USER_DIR") or data / "bash-completion")
            return _by_itself([folder / "completions" / n for n in COMMANDS], text)
        file = data / "gpu-panel" / f"completion.{shell}"
        _write(file, text)
        start = home / ".bashrc" if shell == "bash" else \
            Path(env.get("ZDOTDIR") or home) / ".zshrc"
        return Done((file,), start, _begin_in(start, file))
    except OSError as err:
        raise UserError(f"{err.filename or home}: can't be written: {reason(err)}") from None


def _by_itself(files: list[Path], text: str) -> Done:
    changed = [_write(file, text) for file in files]
    return Done(tuple(files), None, not any(changed))


def _write(file: Path, text: str) -> bool:
    """Whether the file had to be changed."""
    if file.exists() and file.read_text(errors="replace") == text:
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, text, mode=0o644)
    return True


def _begin_in(start: Path, file: Path) -> bool:
    """Add the line that loads `file` to a start file. Returns whether it was there already."""
    before = start.read_text(encoding="utf-8", errors="surrogateescape") if start.exists() else ""
    if _MARK in before:
        return True
    quoted = "'" + str(file).replace("'", "'\\''") + "'"
    gap = "" if not before or before.endswith("\n") else "\n"
    with open(start, "a", encoding="utf-8") as out:  # noqa: PTH123  what is there stays untouched
        out.write(f"{gap}{_MARK}\n[ -r {quoted} ] && . {quoted}\n")
    return False


def shell_of(env: Mapping[str, str]) -> str | None:
    """The shell that somebody uses, if it is one of `scripts.SHELLS`; None if it is another."""
    name = os.path.basename(own_shell(env) or "")  # noqa: PTH119  a name, no file
    return name if name in scripts.SHELLS else None


def own_shell(env: Mapping[str, str]) -> str | None:
    """The path of somebody's shell: $SHELL or, where that is not set (cron, containers), what the
    user database says. None if neither knows."""
    if env.get("SHELL"):
        return env["SHELL"]
    try:
        return pwd.getpwuid(os.getuid()).pw_shell or None
    except KeyError:
        return None
