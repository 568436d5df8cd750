"""What a rank says of its GPU's memory, with stand-ins for what torch says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gpu_engine.worker.rank import memory


@pytest.mark.parametrize(("retries", "told"), [(0, ()), (3, (3,))])
def test_what_the_device_has_and_how_often_it_was_not_enough(monkeypatch, retries, told):
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda gpu: {
        "allocated_bytes.all.current": 1, "reserved_bytes.all.current": 2,
        "allocated_bytes.all.peak": 3, "num_alloc_retries": retries})
    monkeypatch.setattr(torch.cuda, "get_device_properties",
                        lambda gpu: SimpleNamespace(total_memory=4))
    found = memory.in_use([0])
    assert (found.gpu_allocated, found.gpu_reserved, found.gpu_peak, found.gpu_total) == (
        (1,), (2,), (3,), (4,))
    assert found.gpu_retries == told
