"""Names that torch keeps to itself and that any rank uses, the engine's or a script's, with what
each buys and what happens where it is gone."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any


def is_profiled() -> bool:
    """Whether a profiler of torch is on in this thread. Starting a second one would end the first
    without a word, and nothing public tells. Where the name is gone, no: that has to be risked."""
    import torch

    asks = getattr(torch.autograd, "_profiler_enabled", None)
    return asks is not None and asks()


def recorded_collectives() -> Iterator[dict[str, Any]]:
    """What torch's flight recorders have, gloo's and NCCL's. There is no public way to ask: torch
    writes a file, as pickle, and only when NCCL has timed out. It costs nothing until it is asked,
    and 30 to 60 ms then. Where it is gone, waiting ranks are told by their stacks alone."""
    torch = sys.modules.get("torch._C._distributed_c10d")
    for dump in (getattr(torch, "_dump_fr_trace_json", None),
                 getattr(torch, "_dump_nccl_trace_json", None)):
        try:
            if dump is not None:
                yield json.loads(dump())
        except Exception:  # noqa: BLE001  another torch, whose answer is another
            continue
