"""In place of torch._dynamo, which takes half of a start, and which optimizers, process groups and
DDP import and nothing here calls: the few names that they ask for, and accelerate's class."""

import sys
import types


def put(name, **contents):
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(contents)
    return module


if "torch._dynamo" not in sys.modules:
    put("torch._dynamo", disable=lambda function, *how, **more: function,
        graph_break=lambda *why, **more: None,
        trace_rules=put("torch._dynamo.trace_rules", clear_lru_cache=lambda: None),
        eval_frame=put("torch._dynamo.eval_frame", OptimizedModule=type("OptimizedModule", (), {})),
        utils=put("torch._dynamo.utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"))
