"""Which device and which link is far below the others of its kind: figures worked out by hand."""

from __future__ import annotations

import pytest

from gpu_engine.diagnose.outliers import slow_devices, slow_links


def product(device, tflops, model="A100"):
    return {"device": device, "host": "lab", "model": model, "flops_per_s": tflops * 1e12}


def pair(a, b, gib, hosts=("lab", "lab"), kind="cuda"):
    return {"ranks": [a, b], "hosts": list(hosts), "device_type": kind,
            "bytes_per_s": gib * 2 ** 30}


def test_the_device_that_is_slow_is_named_with_its_part_of_the_median():
    [found] = slow_devices([product("GPU 0", 250), product("GPU 1", 160), product("GPU 2", 240),
                            product("GPU 3", 245)])
    assert found.what == "GPU 1 on lab"
    assert found.share == pytest.approx(160 / 242.5)


@pytest.mark.parametrize("products", [
    [],
    [product("GPU 0", 100)],
    [product("GPU 0", 100), product("GPU 1", 90)],  # as cards of one kind differ
    [product("GPU 0", 250), product("GPU 1", 60, "T4")],  # another model is no outlier
    [product("CPU 0", 0.1, "cpu"), product("CPU 1", 0.01, "cpu")]])
def test_nothing_is_said_of_devices_where_nothing_follows(products):
    assert slow_devices(products) == []


def test_of_two_devices_the_slower_is_named():
    assert [x.what for x in slow_devices([product("GPU 0", 100), product("GPU 1", 80)])] == [
        "GPU 1 on lab"]


def test_links_within_a_machine_and_between_machines_are_not_compared():
    far = ("a", "b")
    assert slow_links([pair(0, 1, 20), pair(2, 3, 20), pair(0, 2, 1, far),
                       pair(1, 3, 1, far)]) == []
    assert [x.what for x in slow_links([
        pair(0, 1, 20), pair(2, 3, 13), pair(1, 2, 19),
        pair(0, 4, 1.0, far), pair(0, 5, 0.1, far), pair(0, 6, 1.0, far)])] == ["ranks 0 and 5"]
    assert [x.what for x in slow_links([pair(0, 1, 20), pair(2, 3, 9), pair(1, 2, 19)])] == [
        "ranks 2 and 3"]


def test_slots_that_share_a_memory_are_no_links():
    assert slow_links([pair(0, 1, 9, kind="cpu"), pair(0, 2, 1, kind="cpu")]) == []


def test_a_network_is_judged_also_between_machines_without_gpus():
    assert [x.what for x in slow_links([
        pair(0, r, gib, ("a", str(r)), kind="cpu") for r, gib in ((1, 1.0), (2, 0.1), (3, 1.0))])
    ] == ["ranks 0 and 2"]
