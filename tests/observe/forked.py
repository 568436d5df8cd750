"""A program for `Zygote.start`: runs a script as Python would, in a process that has torch.

    forked.py [--site FOLDER] SCRIPT ARGUMENTS…

The script is `__main__`, its folder is the first on sys.path, and its uncaught exception and its
atexit functions are treated as at the end of any Python program. With --site, that folder follows
on sys.path, and the sitecustomize in it is imported first, as Python does at its start. Both find
torch not yet imported: `import torch` then gives what this process has, by the usual way of a
finder and a loader.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib
import sys
import threading
import types
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path


class _Torch:
    """Finder and loader of a torch that has been imported and seems not to have been."""

    def __init__(self) -> None:
        self.modules = {name: module for name, module in sys.modules.items()
                        if name.partition(".")[0] == "torch"}
        for name in self.modules:
            del sys.modules[name]

    def find_spec(self, name: str, path=None, target=None) -> ModuleSpec | None:
        return ModuleSpec(name, _Loader(self), is_package=True) if name == "torch" else None


class _Loader(Loader):
    def __init__(self, found: _Torch) -> None:
        self.found = found

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return self.found.modules["torch"]

    def exec_module(self, module: types.ModuleType) -> None:
        sys.modules.update(self.found.modules)
        sys.meta_path.remove(self.found)


def run(script: str) -> None:
    """Run it as the program's `__main__`."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main).update(__file__=script, __builtins__=builtins)
    exec(compile(Path(script).read_bytes(), script, "exec"), vars(main))


def main(words: list[str]) -> int:
    for name in [n for n in sys.modules if n.partition(".")[0] == "gpu_engine"]:
        del sys.modules[name]
    if words[0] == "--site":
        # In the place of what PYTHONPATH was when this process started.
        sys.path[1:next(i for i, p in enumerate(sys.path) if p.endswith(".zip"))] = [words[1]]
        words = words[2:]
        sys.meta_path.insert(0, _Torch())
        sys.modules.pop("sitecustomize", None)  # Debian's Python has one
        with contextlib.suppress(ImportError):  # there is none but the panel's hook
            importlib.import_module("sitecustomize")
    sys.argv = words
    sys.path[0] = str(Path(words[0]).parent)
    status = 0
    try:
        run(words[0])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as err:  # noqa: BLE001 - shown as at the end of any program
        trace = err.__traceback__
        while trace and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(err), err.with_traceback(trace), trace)
        status = 1
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
