"""Imported first, this lets a script start in less than half the time. See `frozen`; in addition it
replaces torch._dynamo, which optimizers import for a decorator, by the two functions that they
call. It is for scripts that compile nothing; some scripts do without it, as people's do."""

import sys
import types

from frozen import torch

if "torch._dynamo" not in sys.modules:
    dynamo = types.ModuleType("torch._dynamo")
    dynamo.disable = lambda function, *how, **more: function
    dynamo.graph_break = lambda *why, **more: None
    sys.modules[dynamo.__name__] = torch._dynamo = dynamo
