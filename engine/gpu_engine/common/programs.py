"""Other programs: this interpreter with a module of ours, git, and what else the system has; and
which version of gpu-panel this is. `subprocess` is imported late: most commands that can ask do
not.

What lies in the folder that one is in is none of our modules, whatever it is called: a `json.py` or
a `gpu_engine/` there must not be imported. Python puts that folder on its path for `-m`, unless
`-P` is given, and for each empty entry of PYTHONPATH. So `own_program` is started with `cwd="/"`,
or where it needs the folder, with `own_environment`.

git says what it knows of a folder without a write there, a network, or a program that its
configuration names. This is the only place that starts it.

Standard library only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess


def own_program(module: str, *args: str) -> list[str]:
    """The argument list that runs one of our modules in this interpreter."""
    return [sys.executable, "-P", "-m", module, *args]


def own_environment() -> dict[str, str]:
    """The environment of this process, without empty entries in PYTHONPATH. Entries that name a
    folder stay: somebody has put them there."""
    environ = dict(os.environ)
    if "PYTHONPATH" in environ:
        environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, environ["PYTHONPATH"].split(os.pathsep)))
    return environ


def answer(argv: Sequence[str], seconds: float = 3.0) -> str | None:
    """What a program prints; None where it is missing, fails or takes longer than `seconds`."""
    import subprocess

    try:
        done = subprocess.run(list(argv), capture_output=True, text=True, errors="replace",
                              timeout=seconds, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout or done.stderr) if done.returncode == 0 else None


_ALONE = {
    "GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1",  # a missing object is not fetched
    "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}


def ask_git(folder: str | bytes | Path, *words: str, timeout: float
        ) -> subprocess.CompletedProcess[bytes]:
    """`git WORDS` in `folder`, ended. Raises OSError if it can't be started, and TimeoutExpired
    after `timeout` seconds."""
    import subprocess

    here = Path(os.fsdecode(folder)).absolute()
    tops = [str(top) for top in (here, *here.parents) if os.path.lexists(top / ".git")]
    # Else core.worktree may name any other folder as the one whose files git lists.
    only = {"GIT_WORK_TREE": tops[0]} if tops else {}
    return subprocess.run(["git", "-c", "core.fsmonitor=false", *words], cwd=folder,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout,
                          env=os.environ | _ALONE | only, check=False)


def git(folder: Path, *words: str, timeout: float) -> str | None:
    """The standard output of `git WORDS` in `folder`; None where it fails, is not installed, or
    takes longer than `timeout` seconds."""
    import subprocess

    try:
        done = ask_git(folder, *words, timeout=timeout)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return os.fsdecode(done.stdout) if done.returncode == 0 else None


def version() -> str:
    """"0.1.0", as the package itself has it. Looked up by the package's name: the package offers
    `launch`, so a file that `launch` needs can't import the package without a circle."""
    return str(sys.modules[__name__.partition(".")[0]].__dict__["__version__"])
