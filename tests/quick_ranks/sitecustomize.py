"""On PYTHONPATH while the tests run (conftest.py): lets a rank of the engine start in half of the
processor time, of which the suite's hundreds of ranks take the most.

It leaves out torch._dynamo (scripts/no_dynamo.py). Nothing that trains is another: losses are
compared with loops in whole torches. The tests in e2e/ do without this, as a person does.
"""

import gc
import runpy
import sys
from pathlib import Path

RANK = "gpu_engine/worker/__main__.py"

if "--export" not in sys.orig_argv and any(
        word.endswith(RANK) or word == "gpu_engine.worker" for word in sys.orig_argv):
    gc.set_threshold(50_000, 20, 20)  # it would go through all of torch again and again
    runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "no_dynamo.py"))
