"""Starting this interpreter with a module of ours.

What lies in the folder that one is in is none of our modules, whatever it is called: a `json.py` or
a `gpu_engine/` there must not be imported. Python puts that folder on its path for `-m`, unless
`-P` is given, and for each empty entry of PYTHONPATH. So `own_program` is started with `cwd="/"`,
or where it needs the folder, with `own_environment`.

Standard library only.
"""

from __future__ import annotations

import os
import sys


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
