"""Imported first, lets a script start in less than half the time: see `frozen`; besides,
optimizers find in the place of torch._dynamo, which each would import for a decorator, the two
functions that they call. For scripts that compile nothing; some do without this, as people's do."""

import sys
import types

from frozen import torch

if "torch._dynamo" not in sys.modules:
    dynamo = types.ModuleType("torch._dynamo")
    dynamo.disable = lambda function, *how, **more: function
    dynamo.graph_break = lambda *why, **more: None
    sys.modules[dynamo.__name__] = torch._dynamo = dynamo
