"""A rank: `python …/gpu_engine/worker/__main__.py --run RUN`, or `python -m gpu_engine.worker`.

Run as a file it needs torch alone: the package is taken from where this file lies, and nothing
of the environment it is installed in comes along.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__" and not __package__:
    # As a script this file's folder is sys.path[0], where `data` or `signals` would shadow
    # other people's modules.
    from importlib.util import module_from_spec, spec_from_file_location

    _here = Path(__file__).resolve().parent
    sys.path[:] = [p for p in sys.path if not p or Path(p).resolve() != _here]
    if "gpu_engine" not in sys.modules:
        _root = _here.parent
        _spec = spec_from_file_location("gpu_engine", _root / "__init__.py",
                                        submodule_search_locations=[str(_root)])
        if _spec is None or _spec.loader is None:
            raise ImportError(f"{_root} is no package")
        _package = module_from_spec(_spec)
        sys.modules["gpu_engine"] = _package
        _spec.loader.exec_module(_package)

from gpu_engine.worker.start import leave, main

if __name__ == "__main__":
    leave(main(sys.argv[1:], os.environ))
