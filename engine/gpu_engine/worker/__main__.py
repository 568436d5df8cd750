"""A rank: `python …/gpu_engine/worker/__main__.py --run RUN`, or `python -m gpu_engine.worker`.
With --ask, an answer of `questions` instead.

Run as a file, it needs nothing installed but torch: it loads the package from its own folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__" and not __package__:
    # Python puts a script's folder first on sys.path. Our modules there, such as `check`, would
    # shadow those of other people.
    from importlib.util import module_from_spec, spec_from_file_location

    _here = Path(__file__).resolve().parent
    sys.path[:] = [p for p in sys.path if not p or Path(p).resolve() != _here]
    if "gpu_engine" not in sys.modules:
        _root = _here.parent
        _spec = spec_from_file_location("gpu_engine", _root / "__init__.py",
                                        submodule_search_locations=[str(_root)])
        if _spec is None or _spec.loader is None:
            raise ImportError(f"{_root} is not a package")
        _package = module_from_spec(_spec)
        sys.modules["gpu_engine"] = _package
        _spec.loader.exec_module(_package)

from gpu_engine.worker.start import exit_process, main

if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask"]:
        from gpu_engine.worker import questions

        exit_process(questions.main(sys.argv[2:]))
    exit_process(main(sys.argv[1:], os.environ))
