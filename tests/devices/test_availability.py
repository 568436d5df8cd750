"""The rule by which a device is free: unknown is never free, and each refusal says why."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common.errors import TooFew, UserError
from gpu_engine.devices.availability import (
    Availability,
    doubts,
    freest,
    in_the_way,
    judge,
    judge_all,
)
from gpu_engine.devices.leases import Holder, key
from gpu_engine.devices.records import Device, DeviceProcess, Sample, Snapshot

GIB = 1 << 30
GPU = Device("0", "gpu", "A100", index=0, uuid="GPU-0", memory_total=80 * GIB)
IDLE = Sample(GPU, utilization=0.0, memory_used=4 << 20, memory_total=80 * GIB, processes=())
ALICE = DeviceProcess(
    7, 70 * GIB, user="alice", command="python train.py", started=1000.0, host_memory=1
)

SMALL = replace(ALICE, pid=8, memory=1 << 20, user="bob")


def thrice(**changes):
    return [replace(IDLE, **changes)] * 3


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({"problem": "GPU is lost"}, "unhealthy", "GPU is lost"),
        ({"health": ("2 uncorrected memory errors",), "throttle": ("too hot (hardware)",)},
         "unhealthy", "2 uncorrected memory errors; too hot (hardware)"),
        ({"throttle": ("power limit",)}, "free", "free"),
        ({"processes": (ALICE,)}, "busy", "alice · python train.py · 70.0 GiB · 3 days"),
        ({"processes": (SMALL, ALICE)}, "busy",
         "alice · python train.py · 70.0 GiB · 3 days and 1 more"),
        ({"processes": (DeviceProcess(9, visible=False),)}, "busy",
         "pid 9, which can't be seen from here (in a container?)"),
        ({"processes": (DeviceProcess(9, command="x" * 60),)}, "busy", f"pid 9 · {'x' * 60}"),
        ({"processes": (DeviceProcess(9, user="bob", run="3f2a", container="web",
                                      command="x" * 61),)}, "busy",
         f"run 3f2a of bob in web · {'x' * 59}…"),
        ({"memory_used": 512 << 20}, "busy", "512 MiB of its memory are used"),
        ({"memory_used": (512 << 20) - 1}, "free", "free"),
        ({"utilization": 0.10}, "busy", "something uses 10 % of it"),
        ({"processes": None}, "unknown", "the driver does not say which processes are on it"),
        ({"memory_used": None}, "unknown",
         "the driver does not say how much of its memory is used"),
        ({"memory_used": None, "memory_is_hosts": True}, "free", "free"),
        ({"utilization": None}, "unknown", "the driver does not say how much it is used"),
    ],
)
def test_reasons(changes, state, words):
    found = judge(thrice(**changes), now=1000.0 + 3 * 86400)
    assert found == Availability(state, words)


SCREEN = DeviceProcess(3, 900 << 20, "graphics", user="root", command="Xorg")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"processes": (ALICE,)}, "alice · python train.py · 70.0 GiB · 3 days"),
        ({"processes": (SCREEN,), "memory_used": (900 + 512 << 20) - 1}, None),
        ({"processes": (SCREEN,), "memory_used": 900 + 512 << 20}, "512 MiB of its memory"),
        ({"processes": (SCREEN, ALICE)}, "alice"),
        ({"processes": (DeviceProcess(9, kind="mps"),)}, "pid 9"),
        ({"processes": (DeviceProcess(9, visible=False),)}, "can't be seen"),
        ({"processes": (SCREEN,), "memory_used": 2 * GIB}, "1.1 GiB of its memory"),
        ({"processes": (replace(SCREEN, memory=None),), "memory_used": 2 * GIB}, None),
        ({"processes": None, "memory_used": None}, None),
        ({"processes": None, "memory_used": GIB}, "1.0 GiB of its memory"),
        ({"health": ("2 uncorrected memory errors",)}, None),
        ({"problem": "GPU is lost"}, "lost"),
    ],
)
def test_what_is_in_the_way_of_a_named_device(changes, words):
    said = in_the_way(replace(IDLE, **changes), now=1000.0 + 3 * 86400)
    assert said is None if words is None else words in said


def test_doubts_about_a_named_device():
    assert doubts(IDLE) == ()
    assert doubts(replace(IDLE, throttle=("power limit",))) == ()
    (first, second) = doubts(replace(IDLE, processes=None, throttle=("hardware slowdown",)))
    assert first == "hardware slowdown"
    assert second == "the driver does not say which processes are on it, so it may not be free"
    assert doubts(replace(IDLE, problem="lost", processes=None)) == ()


def test_a_lease_comes_first():
    found = judge(thrice(problem="lost"), "run 3f2a of bob")
    assert (found.state, found.reason) == ("leased", "held by run 3f2a of bob")


def test_a_gpu_that_was_lost_at_the_start_has_no_identity():
    back = replace(IDLE, device=replace(GPU, uuid=None))
    assert judge([back] * 3) == Availability(
        "unknown", "its UUID is not known: search for devices again (in the panel: press c twice)")


def test_one_look_is_not_enough():
    assert judge([]) == Availability("unknown", "not read yet")
    assert judge([IDLE]) == Availability("unknown", "only 1 of the 3 readings that are needed")
    assert judge([IDLE], readings=1).state == "free"


def test_a_pause_between_two_steps_is_not_free():
    busy = replace(IDLE, utilization=0.95)
    assert judge([IDLE, IDLE, busy, IDLE, IDLE]).state == "busy"
    assert judge([busy, IDLE, IDLE, IDLE]).state == "free"
    looks = [Snapshot(float(t), (sample,)) for t, sample in enumerate([busy] * 3 + [IDLE] * 3)]
    assert [judge_all(looks[:n], {})["0"].free for n in (3, 5, 6)] == [False, False, True]
    assert judge_all(looks[:4], {}, readings=1)["0"].free
    assert judge_all([], {}) == {}
    looks.append(Snapshot(1000.0 + 3 * 86400, (replace(IDLE, processes=(ALICE,)),)))
    assert judge_all(looks, {})["0"].reason == "alice · python train.py · 70.0 GiB · 3 days"
    unknown = replace(IDLE, utilization=None)
    assert judge([IDLE, unknown, IDLE]).state == "unknown"


def test_a_slice_is_judged_without_utilisation():
    mig = replace(GPU, kind="mig", name="A100 MIG 1g.10gb 0:0")
    idle = replace(IDLE, device=mig, utilization=None)
    assert judge([idle] * 3).state == "free"
    assert judge([idle]).state == "unknown"
    assert judge([replace(idle, processes=None)] * 3).state == "unknown"
    assert judge([replace(idle, processes=(ALICE,))] * 3).state == "busy"


def test_a_cpu_slot_is_free_unless_it_is_loaded_all_the_time():
    slot = Device("cpu:0", "cpu", "CPU core 0", index=0)
    assert judge([Sample(slot)]).state == "free"
    for loads, found in [((0.95, 1.0, 0.9), ("busy", "others use 90 % of it")),
                         ((0.0, 1.0, 1.0, 1.0), ("busy", "others use 100 % of it")),
                         ((1.0, 0.2, 0.5), ("free", "used by others too")),
                         ((1.0, 0.89, 0.4), ("free", "free")),
                         ((1.0, 1.0), ("free", "used by others too"))]:
        assert judge([Sample(slot, utilization=u) for u in loads]) == Availability(*found)
    assert judge([Sample(slot)], "run 1").state == "leased"


maybe = st.none() | st.floats(0, 1)


@given(
    st.lists(
        st.builds(
            Sample,
            st.just(GPU),
            utilization=maybe,
            memory_used=st.none() | st.integers(0, 80 * GIB),
            processes=st.none() | st.just(()) | st.just((ALICE,)),
            problem=st.none() | st.just("lost"),
            health=st.just(()) | st.just(("broken",)),
        ),
        max_size=5,
    )
)
def test_free_means_that_everything_is_known_and_good(samples):
    if judge(samples).free:
        assert len(samples) >= 3
        for sample in samples[-3:]:
            assert sample.utilization is not None
            assert sample.utilization < 0.1
        last = samples[-1]
        assert (last.processes, last.problem, last.health) == ((), None, ())
        assert last.memory_used is not None
        assert last.memory_used < 512 << 20


def machine(*changes, names=None):
    samples = []
    for i, change in enumerate(changes):
        name = names[i] if names else "A100"
        device = replace(GPU, id=str(i), index=i, uuid=f"GPU-{i}", name=name)
        samples.append(replace(IDLE, device=device, **change))
    return [Snapshot(float(t), tuple(samples)) for t in range(3)]


def ids(found):
    return [d.id for d in found]


models = st.sampled_from([("T4", 16), ("A100", 40), ("A100", 80), ("H100", 80)])


@given(st.lists(st.tuples(models, st.integers(0, 7), st.floats(0, 0.09), st.booleans()),
                min_size=1, max_size=7), st.integers(1, 7))
def test_the_least_used_of_the_largest_model_that_has_enough_are_taken(cards, n):
    looks = machine(*({"memory_used": steps << 26, "utilization": share,
                       "processes": (ALICE,) if busy else ()} for _, steps, share, busy in cards))
    looks = [replace(look, samples=tuple(replace(sample, device=replace(
        sample.device, name=name, memory_total=size * GIB)) for sample, ((name, size), *_) in zip(
            look.samples, cards, strict=True))) for look in looks]
    free = [(str(at), card) for at, card in enumerate(cards) if not card[3]]
    if len(free) < n:
        with pytest.raises(TooFew):
            freest(n, looks, {})
        return
    found = ids(freest(n, looks, {}))
    assert found == sorted(found)
    assert len(found) == n
    alike = [model for model, many in Counter(card[0] for _, card in free).items() if many >= n]
    loads = {name: (steps, share, name) for name, (_, steps, share, _) in free}
    taken = {card[0] for name, card in free if name in found}
    if alike:
        [model] = taken
        assert model[1] == max(size for _, size in alike)
        assert found == sorted(sorted((name for name, card in free if card[0] == model),
                                      key=loads.__getitem__)[:n])
    else:
        sizes = sorted((card[0][1] for _, card in free), reverse=True)
        assert sorted((cards[int(name)][0][1] for name in found), reverse=True) == sizes[:n]


def test_memory_that_is_not_known_is_not_free():
    looks = machine({"memory_used": None}, {"processes": (ALICE,), "memory_used": 30 * GIB})
    assert ids(freest(None, looks, {}, free=50 * GIB, share=True)) == ["1"]
    with pytest.raises(TooFew, match=r"^2 with 50\.0 GiB of free memory are needed; "
                       r"GPU 0: the driver does not say how much of its memory is used; GPU 1: "):
        freest(2, looks, {}, free=50 * GIB, share=True)
    looks = machine({"memory_used": 40 << 20}, {}, {"processes": (ALICE,)})
    size = 80 * GIB - (4 << 20)
    assert ids(freest(1, looks, {}, free=size)) == ["1"]
    with pytest.raises(TooFew) as caught:
        freest(2, looks, {}, free=size - 1)
    _, other, mine = str(caught.value).split("; ")
    assert other.startswith("GPU 2: alice · python train.py")
    assert mine == "GPU 0: 80.0 GiB of it are free"


def test_a_larger_card_is_preferred_and_a_slice_is_not():
    looks = machine({}, {}, names=["T4", "A100"])
    small = replace(looks[0].samples[0].device, memory_total=16 * GIB)
    looks = [replace(s, samples=(replace(s.samples[0], device=small), s.samples[1])) for s in looks]
    assert ids(freest(1, looks, {})) == ["1"]
    mig = Device("MIG-x", "mig", "H200 MIG 4g.71gb 0:0", 0, "MIG-x", 200 * GIB)
    slices = [replace(IDLE, device=replace(mig, id=f"MIG-{n}", uuid=f"MIG-{n}")) for n in "xyz"]
    looks = [replace(s, samples=(*slices, *s.samples)) for s in looks]
    assert [ids(freest(n, looks, {})) for n in (1, 2, 3, None)] == [
        ["1"], ["0", "1"], ["MIG-x", "MIG-y", "MIG-z"], ["1"]]  # never both
    other = replace(slices[0], device=replace(mig, id="w", uuid="w", name="H200 MIG 1g.18gb 0:7"))
    only = [Snapshot(0.0, (other, *slices[:2]))] * 3  # two of three are alike
    assert [ids(freest(n, only, {})) for n in (2, None)] == [["MIG-x", "MIG-y"]] * 2
    with pytest.raises(TooFew) as caught:
        freest(4, looks, {})
    assert str(caught.value).startswith(
        "4 devices are needed and 5 are free; whole GPUs and MIG slices are not used together, as "
        "all ranks would wait for the slice")
    [problem] = caught.value.problems
    assert (problem.key, problem.value, problem.remedy) == ("devices.pick", 4, None)


def test_a_gpu_that_does_not_answer_is_not_shared():
    looks = machine({"problem": "GPU is lost"}, {"processes": (ALICE,), "memory_used": 30 * GIB})
    assert ids(freest(1, looks, {}, free=40 * GIB, share=True)) == ["1"]


def test_who_holds_what_is_said_when_there_are_too_few():
    looks = machine({"processes": (ALICE,)}, {}, {}, {"utilization": None})
    leases = {"GPU-2": Holder("GPU-2", run="3f2a", user="bob")}
    with pytest.raises(UserError) as caught:
        freest(2, looks, leases)
    text, [problem] = str(caught.value), caught.value.problems
    assert (problem.key, problem.value, problem.remedy) == ("devices.pick", 2, "--queue")
    assert text.startswith("2 devices are needed and 1 is free; ")
    with pytest.raises(UserError, match=r"^1 device is needed and none is free; "):
        freest(1, [replace(look, samples=look.samples[:1]) for look in looks], leases)
    assert "GPU 0: alice · python train.py" in text
    assert "GPU 2: held by run 3f2a of bob" in text
    assert "GPU 3: the driver does not say how much it is used" in text
    assert "GPU 1" not in text


def test_where_too_few_are_free_those_that_make_room_will_do_who_began_last_first():
    looks = machine({"processes": (ALICE,)}, {}, {"processes": (ALICE,)}, {"processes": (ALICE,)})
    leases = {f"GPU-{i}": Holder(f"GPU-{i}", run="3f2a", since=float(i), gives_way=room)
              for i, room in ((0, 90.0), (2, 90.0), (3, None))}
    assert [ids(freest(n, looks, leases, room=True)) for n in (1, 2, 3)] == [
        ["1"], ["1", "2"], ["0", "1", "2"]]
    for n, more in ((4, {"room": True}), (2, {})):
        with pytest.raises(UserError, match=f"{n} devices are needed and 1 is free"):
            freest(n, looks, leases, **more)


def test_loaded_cpu_slots_are_taken_last():
    slots = [Device(f"cpu:{i}", "cpu", f"CPU core {i}", index=i) for i in range(3)]
    loads = (1.0, 0.5, 0.04)
    looks = [
        Snapshot(float(t), tuple(Sample(d, utilization=u) for d, u in zip(slots, loads)))
        for t in range(3)
    ]
    assert ids(freest(1, looks, {})) == ["cpu:2"]
    alike = [Snapshot(0.0, tuple(Sample(d, u, m) for d, u, m in zip(
        slots, (0.04, 0.0, 0.0), (GIB, 0, 0))))] * 3
    assert ids(freest(1, alike, {})) == ["cpu:0"]  # a twentieth is no load, nor is memory
    assert ids(freest(2, looks, {})) == ["cpu:1", "cpu:2"]
    assert ids(freest(3, looks, {})) == ["cpu:0", "cpu:1", "cpu:2"]
    held = {key(slots[2]): Holder(key(slots[2]), run="1")}
    assert judge_all(looks, held)["cpu:2"].state == "leased"
    with pytest.raises(UserError, match=r"^3 devices are needed and 2 are free; CPU 2: held by"):
        freest(3, looks, held)
