"""Which devices have stayed free, as the panel's `w` waits for."""

from __future__ import annotations

from gpu_engine.devices.availability import Availability, Steady

FREE, BUSY = Availability("free", "free"), Availability("busy", "x")


def test_a_device_must_stay_free_for_some_looks():
    seen = Steady()
    a, b = {"a": FREE, "b": BUSY}, {"a": BUSY, "b": FREE}
    assert [set(seen.update(f)) for f in (a, a, a, a, b, b, b, a)] == [
        set(), set(), {"a"}, {"a"}, set(), set(), {"b"}, set()]
    assert seen.update({}) == frozenset()
    assert not any(seen.update({"a": Availability("unknown", "")}) for _ in range(4))
