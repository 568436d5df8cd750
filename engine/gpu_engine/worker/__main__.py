"""A rank: `python .../gpu_engine/worker/__main__.py --run RUN`, or `python -m gpu_engine.worker`.
With --export, a checkpoint's weights are written instead.

Run as a file, it needs nothing installed but torch: it loads the package from its own folder. The
syntax is that of any Python, so that one that is too old can say so.
"""

import sys

if sys.version_info < (3, 10):  # noqa: UP036 - it may be one that was named in run.python
    sys.stderr.write("{} is Python {}.{}.{}, and ranks need Python 3.10 or newer\n".format(
        sys.executable, *sys.version_info[:3]))
    sys.exit(2)

import os
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
            raise ImportError("{} is not a package".format(_root))  # noqa: UP032 - see above
        _package = module_from_spec(_spec)
        sys.modules["gpu_engine"] = _package
        _spec.loader.exec_module(_package)

from gpu_engine.worker.rank.process import exit_process
from gpu_engine.worker.start import main

if __name__ == "__main__":
    if sys.argv[1:2] == ["--export"]:
        from gpu_engine.training import export

        exit_process(export.main(*sys.argv[2:]))
    exit_process(main(sys.argv[1:], os.environ))
