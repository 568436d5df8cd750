"""A log outside of the panel: in the person's pager or editor, or as a file. It has the lines that
the view shows, without what a terminal would obey."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import reason
from gpu_panel.run.log.file import Lines

PROGRAMS = {"pager": (("PAGER",), ("less", "more")),
            "editor": (("VISUAL", "EDITOR"), ("vi", "nano"))}
"""The variables that name each, and what is taken where none does."""
_TO_LINE = frozenset({"less", "vi", "vim", "nvim", "nano", "emacs"})
"""Those that go to a line by +N."""


def program(kind: str, line: int) -> list[str]:
    """The person's pager or editor with its arguments, to begin at a line (from 1). Raises
    UserError where there is none."""
    variables, usual = PROGRAMS[kind]
    given = next((text for name in variables if (text := os.environ.get(name, "").strip())), None)
    try:
        words = shlex.split(given) if given else [n for n in usual if shutil.which(n)][:1]
    except ValueError as err:
        raise UserError(f"${variables[-1]} is {given!r}: {err}") from None
    if not words:
        raise UserError(f"there is no {' or '.join(usual)}; name your {kind} in ${variables[-1]}")
    return [*words, f"+{line}"] if PurePath(words[0]).name in _TO_LINE else words


def file_name(lines: Lines) -> str:
    return re.sub(r"[^\w.-]+", "-", lines.title) + ".log"


@contextmanager
def as_file(lines: Lines) -> Iterator[Path]:
    """The log as a file that is this person's alone, and is gone afterwards. Raises UserError."""
    with tempfile.TemporaryDirectory(prefix="gpu-panel-") as folder:
        path = Path(folder, file_name(lines))
        save(lines, path)
        yield path


def save(lines: Lines, path: Path) -> None:
    """Write the log into a new file. Raises UserError, also where something is there already."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.writelines(f"{lines.line(number)}\n" for number in range(len(lines)))
    except FileExistsError:
        raise UserError(f"{path} is there already; choose another name") from None
    except OSError as err:
        raise UserError(f"{path}: can't be written: {reason(err)}") from None
