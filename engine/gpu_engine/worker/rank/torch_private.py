"""Names that torch keeps to itself and that ranks use, the engine's or a script's, with what
each buys and what happens where it is gone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Container, Iterator
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


def record_memory(entries: int) -> None:
    """Have the allocator of the GPUs note the Python stack of what it allocates, and what it did
    last. Nothing public tells which line holds what; torch's own page on GPU memory tells to use
    these names. Raises where it is another."""
    import torch

    torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=entries)


def memory_snapshot() -> dict[str, Any]:
    """What the allocator of the GPUs has, and what it did since `record_memory`, in the form that
    https://pytorch.org/memory_viz reads. Raises where it is another."""
    import torch

    return dict(torch.cuda.memory._snapshot())


def when_gpus_are_used(then: Callable[[], None]) -> None:
    """Call `then` once this process begins to use its GPUs; at once if it does so already. To begin
    by ourselves would break a script that forks first, and the first that we see of one is its
    backward pass, when its weights are allocated. Where it is gone, never."""
    import torch

    call = getattr(torch.cuda, "_lazy_call", None)
    if call is not None:
        call(then)


def multiply(tensors: list[Any], factor: Any) -> None:
    """Multiply tensors of one device and type by `factor` (shape ()), in place, in a few kernel
    launches."""
    import torch

    torch._foreach_mul_(tensors, factor)  # pyright: ignore[reportPrivateImportUsage]


def left_out_by_ddp(model: Any) -> Container[str]:
    """The names of parameters and buffers that DDP does not keep equal on all ranks, by the mark
    that its own `_set_params_and_buffers_to_ignore_for_model` makes. Where DDP reads another mark,
    none is left out: such a buffer is rank 0's in an evaluation."""
    return getattr(model, "_ddp_params_and_buffers_to_ignore", ())
