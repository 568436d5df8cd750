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


@pytest.mark.parametrize(("grows", "left", "there"), [
    ([1] * 5, 2, True), ([1] * 4, 2, False), ([1, 1, 0, 1, 1], 2, False), ([1] * 5, 40, False),
    ([0.01] * 5, 2, False)])
def test_memory_that_is_about_to_be_full_is_told_once(monkeypatch, grows, left, there):
    """In GiB, of 100: neither a cache that grows while there is room, nor one that is full."""
    gib, own = 1 << 30, 10.0
    monkeypatch.setattr(memory.cgroups, "memory", lambda: ((100 - left) * gib, 100 * gib))
    monkeypatch.setattr(memory, "_of_status", lambda field: int(own * gib))
    filling, told = memory.Filling(), []
    for second, more in enumerate([0, *grows]):
        own += more
        told.append(filling.look(float(second)))
    assert told[:-1] == [None] * len(grows)
    assert (told[-1] is not None) == there
    if told[-1] is not None:
        assert "has grown by 5.0 GiB in 5 s, and 2.0 GiB are left, at this pace for 2 s" \
            in told[-1].message
        assert filling.look(9.0) is None
