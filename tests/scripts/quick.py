"""Imported first, this lets a script start in less than half the time. See `frozen`; in addition it
leaves out what torch imports for tracing and compiling only, and what no script here needs:

- torch._dynamo, which optimizers, process groups and DDP import: in its place are the few functions
  that they call, and the class for which accelerate asks.
- torch._meta_registrations, which `import torch` imports: what operators do on tensors
  without data. (torch.Generator then needs an import of torch._prims.rng_prims.)

It is for scripts that compile nothing; some scripts do without it, as people's do."""

import sys
import types


def put(name, **contents):
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(contents)
    return module


if "torch" not in sys.modules:
    put("torch._meta_registrations")
from frozen import torch  # noqa: E402

if "torch._dynamo" not in sys.modules:
    torch._dynamo = put(
        "torch._dynamo", disable=lambda function, *how, **more: function,
        graph_break=lambda *why, **more: None,
        trace_rules=put("torch._dynamo.trace_rules", clear_lru_cache=lambda: None),
        eval_frame=put("torch._dynamo.eval_frame", OptimizedModule=type("OptimizedModule", (), {})),
        utils=put("torch._dynamo.utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"))
