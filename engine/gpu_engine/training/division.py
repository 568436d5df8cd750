"""Finds out whether an iterable dataset divides itself over ranks and loader workers.

PyTorch gives every loader worker a copy of an iterable dataset and leaves it to the dataset to
read only a part: with `get_worker_info()` in the documented pattern, or by rank and worker in
WebDataset's `split_by_node` and `split_by_worker`. A dataset that divides itself must not be
divided once more; any other one must be. The interface does not tell which kind a dataset is, so
it is watched until it gives its first example. If it reads its worker's number and the number of
workers, it divides by worker; if it reads its rank and the world size, it divides by rank. When
that rule is wrong, comparing the readers' first examples shows it (`reader_reports`).
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Any

from gpu_engine.common.errors import UserError

RANK, WORKER = "rank", "worker"
_SAYS = {"nothing": frozenset(), "worker": frozenset({WORKER}), "rank": frozenset({RANK}),
         "rank and worker": frozenset({RANK, WORKER})}
_COUNTS = {"num_shards", "n_shards", "shards", "count", "num", "n", "total", "of", "world_size",
           "num_replicas", "num_workers", "num_parts"}
_INDEXES = {"index", "idx", "i", "shard_index", "shard_id", "shard_idx", "rank", "worker",
            "worker_id", "part"}


@dataclass(frozen=True)
class KnownDivision:
    """How a dataset divides itself, as far as it is known before reading it."""

    data: Any
    by: frozenset[str]
    """What it divides itself by: RANK, WORKER, both or neither."""
    sure: bool
    """Whether its author says so (`divided_by`), so that it need not be watched."""


def known_division(data: Any, rank: int, ranks: int, watched: frozenset[str] = frozenset()
                   ) -> KnownDivision:
    """What `data` divides itself by, according to its attribute `divided_by`, its library, or what
    was seen while the dataset was made (`watched`, from `Watch.divides`).

    Raises UserError if `divided_by` has an unknown value.
    """
    says = getattr(data, "divided_by", None)
    if says is not None:
        if says not in _SAYS:
            raise UserError(f"{type(data).__name__}.divided_by is {says!r}; it takes "
                            + ", ".join(f'"{word}"' for word in _SAYS))
        return KnownDivision(data, _SAYS[says], sure=True)
    if type(data).__module__.partition(".")[0] == "datasets" and hasattr(data, "_distributed"):
        # Hugging Face's datasets divide over loader workers by themselves, and over ranks once
        # they are told the rank.
        if ranks > 1 and data._distributed is None:
            library = importlib.import_module("datasets.distributed")  # part of the same library
            data = library.split_dataset_by_node(data, rank=rank, world_size=ranks)
        return KnownDivision(data, frozenset({RANK, WORKER}), sure=False)
    return KnownDivision(data, frozenset(watched), sure=False)


def shard(data: Any, index: int, count: int) -> Any:
    """Call `data.shard` for part `index` of `count`. The names of its parameters decide their
    order: ours is (index, count), that of Hugging Face (num_shards, index)."""
    try:
        parameters = list(inspect.signature(data.shard).parameters.values())
    except (TypeError, ValueError):
        return data.shard(index, count)
    first, second = [*parameters, None, None][:2]
    if first is None or second is None or first.kind is first.VAR_POSITIONAL:
        return data.shard(index, count)
    turned = first.name in _COUNTS or second.name in _INDEXES
    values = (count, index) if turned else (index, count)
    if second.kind is second.POSITIONAL_ONLY:
        return data.shard(*values)
    if first.kind is first.POSITIONAL_ONLY:
        return data.shard(values[0], **{second.name: values[1]})
    return data.shard(**{first.name: values[0], second.name: values[1]})
