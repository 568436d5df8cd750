"""What a CUDA_VISIBLE_DEVICES lets through, by CUDA's rules."""

from __future__ import annotations

import pytest

from gpu_engine.devices.backends.visible import cuda, hides_all, order_doubt, unread
from gpu_engine.devices.records import Device

GPUS = tuple(
    Device(str(i), "gpu", "A100", index=i, uuid=u)
    for i, u in enumerate(["GPU-aaaa1111", "GPU-aaaa2222", "GPU-bbbb3333"])
)
SLICES = tuple(
    Device(u, "mig", f"A100 MIG 1g.10gb 3:{i}", index=3, uuid=u)
    for i, u in enumerate(["MIG-cccc1111", "MIG-cccc2222"])
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("0,-1,2", [0]),
        ("2,0", [2, 0]),
        (" 1 , 2", [1, 2]),
        ("+1", [1]),
        ("1gpu2,2ampere", [1, 2]),
        ("0x2", [0]),
        ("0,9,1", [0]),
        ("9", []),
        ("0,0", []),
        ("1,2,1", []),
        ("0,,1", [0]),
        ("0,GPU-bbbb3333", [0]),
        ("GPU-bbbb3333,0", [2]),
        ("GPU-bbbb3333,GPU-aaaa1111", [2, 0]),
        ("GPU-b", [2]),
        ("GPU-aaaa", []),
        ("GPU-bbbb,GPU-aaaa", [2]),
        ("GPU-", []),
        ("GPU-bbbb,GPU-bbbb3333", []),
        ("bbbb3333", []),
        ("all", []),
        ("none", []),
    ],
)
def test_rules(value, expected):
    assert [d.index for d in cuda(GPUS, value)] == expected


def test_the_place_in_the_variable_is_kept():
    assert [(d.id, d.visible_index) for d in cuda(GPUS, "2,1")] == [("2", 0), ("1", 1)]
    assert all(d.visible_index is None for d in cuda(GPUS, None))


def test_slices_by_name_and_all_of_them():
    both = cuda(SLICES, "MIG-cccc2222,MIG-cccc1111")
    assert [d.id for d in both] == ["MIG-cccc2222", "MIG-cccc1111"]
    assert [d.id for d in cuda(GPUS + SLICES, "3")] == ["MIG-cccc1111"]


@pytest.mark.parametrize(
    ("names", "value", "order", "doubtful"),
    [
        (["A100", "T4"], "0", None, True),
        (["A100", "T4"], "0", "FASTEST_FIRST", True),
        (["A100", "T4"], "0", "PCI_BUS_ID", False),
        (["A100", "T4"], "GPU-a", None, False),
        (["A100", "T4"], None, None, False),
        (["A100", "A100"], "0", None, False),
        (["A100", "A100 MIG 1g.10gb 1:0"], "0", None, False),
    ],
)
def test_when_indices_are_ambiguous(names, value, order, doubtful):
    machine = [Device(str(i), "gpu", n, index=i) for i, n in enumerate(names)]
    assert (order_doubt(machine, value, order) is not None) == doubtful


@pytest.mark.parametrize(("value", "meant"), [
    (None, False), ("", True), ("-1", True), ("NoDevFiles", True), ("none", True), ("0", False),
    (" 7", False), ("GPU-12", False), ("GPU-", False), ("MIG-a", False), ("all", False),
    ('"0,1"', False), ("[0,1]", False), ("cuda:0", False),
])  # fmt: skip
def test_hidden_on_purpose(value, meant):
    assert hides_all(value) is meant


@pytest.mark.parametrize(("value", "over"), [
    (None, None), ("0,1", None), ("GPU-bbbb,GPU-aaaa1", None), ("0,-1,2", None), ("0,", None),
    ("all", None), ("0-2", "-2"), ("0;1", ";1"), ("0 1", " 1"), ("0,9,1", "9,1"),
    ("GPU-bbbb,0", "0"),
])  # fmt: skip
def test_what_is_passed_over_without_a_word(value, over):
    assert unread(cuda(GPUS, value), value) == over
