"""On PYTHONPATH while the tests run (conftest.py): lets a rank of the engine start in half of the
processor time, of which the suite's hundreds of ranks take the most.

In place of torch._dynamo, which optimizers, process groups and DDP import and a rank never calls,
are the few names that they ask for. Nothing that trains is another: losses are compared with loops
in whole torches. The tests in e2e/ do without this, as a person does.
"""

import gc
import sys
import types

RANK = "gpu_engine/worker/__main__.py"


def put(name, **contents):
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(contents)
    return module


if "--ask" not in sys.orig_argv and any(
        word.endswith(RANK) or word == "gpu_engine.worker" for word in sys.orig_argv):
    gc.set_threshold(50_000, 20, 20)  # it would go through all of torch again and again
    put("torch._dynamo", disable=lambda function, *how, **more: function,
        graph_break=lambda *why, **more: None,
        trace_rules=put("torch._dynamo.trace_rules", clear_lru_cache=lambda: None),
        eval_frame=put("torch._dynamo.eval_frame", OptimizedModule=type("OptimizedModule", (), {})),
        utils=put("torch._dynamo.utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"))
