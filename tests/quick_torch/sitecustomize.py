"""With this folder on PYTHONPATH, ranks do without torch._dynamo, which is for compiling, and which
optimizers, process groups and DDP import: in its place are the few functions that they call. For
tests whose subject is processes, not torch; see the fixture `quick_torch`."""

import sys
import types


def _put(name, **contents):
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(contents)
    return module


_put("torch._dynamo", disable=lambda function, *how, **more: function,
     graph_break=lambda *why, **more: None,
     trace_rules=_put("torch._dynamo.trace_rules", clear_lru_cache=lambda: None),
     utils=_put("torch._dynamo.utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"))
