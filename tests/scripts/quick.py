"""Imported first, this lets a script start in less than half the time. See `frozen`; in addition it
leaves out what torch imports for tracing and compiling only, and what no script here needs:

- torch._dynamo: see `no_dynamo`.
- torch._meta_registrations, which `import torch` imports: what operators do on tensors
  without data. (torch.Generator, which loaders and samplers use, then needs an import of
  torch._prims.rng_prims.)

It is for scripts that compile nothing; some scripts do without it, as people's do."""

import sys
import types

if "torch" not in sys.modules:
    sys.modules["torch._meta_registrations"] = types.ModuleType("torch._meta_registrations")
import no_dynamo  # noqa: F401
from frozen import torch

torch._dynamo = sys.modules["torch._dynamo"]
