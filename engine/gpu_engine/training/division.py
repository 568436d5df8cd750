"""How an iterable dataset divides itself over ranks and loader workers.

PyTorch gives every loader worker a copy of an iterable dataset and leaves it to the dataset to
read only a part: with `get_worker_info()` in the documented pattern, or by rank and worker in
WebDataset's `split_by_node` and `split_by_worker`. A dataset that divides itself must not be
divided once more; any other one must be. The interface does not tell which kind a dataset is, so
it says so with an attribute `divided_by`, or its task does; of two libraries' own it is known.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Any

from gpu_engine.common.errors import UserError

RANK, WORKER = "rank", "worker"
_SAYS = {"nothing": frozenset(), "workers": frozenset({WORKER}), "ranks": frozenset({RANK}),
         "both": frozenset({RANK, WORKER})}
_COUNTS = {"num_shards", "n_shards", "shards", "count", "num", "n", "total", "of", "world_size",
           "num_replicas", "num_workers", "num_parts"}
_INDEXES = {"index", "idx", "i", "shard_index", "shard_id", "shard_idx", "rank", "worker",
            "worker_id", "part"}


@dataclass(frozen=True)
class KnownDivision:
    """A dataset, and what it divides itself by."""

    data: Any
    by: frozenset[str]
    """What it divides itself by: RANK, WORKER, both or neither."""


def known_division(data: Any, task: Any, *, rank: int, ranks: int, workers: int) -> KnownDivision:
    """What `data` divides itself by: by its attribute `divided_by`, by that of `task`, or by its
    library. `workers`: of each of the `ranks`; 0 for none.

    Raises UserError if there is more than one reader and nothing says it, or if `divided_by` has an
    unknown value.
    """
    several = frozenset(what for what, count in ((RANK, ranks), (WORKER, workers)) if count > 1)
    for who in (data, task):
        says = getattr(who, "divided_by", None)
        if says is not None:
            if says not in _SAYS:
                raise UserError(f"{type(who).__name__}.divided_by is {says!r}; it takes "
                                + ", ".join(f'"{word}"' for word in _SAYS))
            return KnownDivision(data, _SAYS[says])
    library = type(data).__module__.partition(".")[0]
    if library == "datasets" and hasattr(data, "_distributed"):
        # Hugging Face's datasets divide over loader workers by themselves, and over ranks once
        # they are told the rank, which nothing public tells: a second time they would be divided
        # twice. Where the name is gone, such a dataset has to say what it divides itself by.
        if ranks > 1 and data._distributed is None:
            library = importlib.import_module("datasets.distributed")  # part of the same library
            data = library.split_dataset_by_node(data, rank=rank, world_size=ranks)
        return KnownDivision(data, _SAYS["both"])
    by = _of_webdataset(data) if library == "webdataset" else frozenset()
    if several <= by:
        return KnownDivision(data, by)
    raise UserError(_unsaid(data, library, ranks, workers))


def _of_webdataset(data: Any) -> frozenset[str]:
    """What WebDataset's own functions in a pipeline of its divide by."""
    stages = {getattr(stage, "__name__", type(stage).__name__)
              for stage in getattr(data, "pipeline", [])}
    if stages & {"ResampledShards", "ResampledShardList"}:  # each reader draws its own
        return _SAYS["both"]
    return frozenset(what for what, splitter in (
        (RANK, "split_by_node"), (WORKER, "split_by_worker")) if splitter in stages)


def _unsaid(data: Any, library: str, ranks: int, workers: int) -> str:
    name = type(data).__name__
    readers = f"{ranks} ranks" if ranks > 1 else "one rank"
    if workers:
        readers += f" with {workers} loader workers" + (" each" if ranks > 1 else "")
    hint = ("Give it nodesplitter=webdataset.split_by_node and no workersplitter of your own, or "
            "say it" if library == "webdataset" else "Say it")
    return (f"{readers} would read {name}, and it does not say how it divides itself among them. "
            f"{hint} in two lines,\n"
            f"    class {name}(IterableDataset):\n"
            '        divided_by = "nothing"\n'
            'if each reader would get all examples, which are then dealt out; or "workers" (it '
            'uses get_worker_info()), "ranks" (it uses the rank), "both". The task may say it too.')


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
