"""Which of several machines is taken, by what each has said."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest
from msgspec.structs import replace as changed

from gpu_engine.common.errors import HostProblem, Problem, SpecError, TooFew
from gpu_engine.devices.availability import judge_all
from gpu_engine.devices.records import Sample, Snapshot
from gpu_engine.interpreters.inspection import Build
from gpu_engine.remote.reach.hosts import Host
from gpu_engine.remote.reach.protocol import Welcome
from gpu_engine.remote.reach.watcher import HostSeen
from gpu_engine.remote.run import freest
from gpu_engine.remote.run.freest import choose, free_on, on_cpu, with_most_free
from gpu_engine.runs.waiting import Wants
from gpu_engine.spec.read import from_dict
from tests.conftest import gpus, slots

HERE = Welcome("0.1.0", "python", "3.11.2", "h", "u", "/h", "/f", "b", "n", "p", 0.0,
               interpreter="python", torch=Build("2.9.0", "12.8", None))


def machine(name: str, count: int, *used: int, cpu: bool = False, **more: object) -> HostSeen:
    """One with so many devices, of which some are `used` by half."""
    inventory = slots(count) if cpu else gpus(count)
    shot = Snapshot(0.0, tuple(
        Sample(d, 0.5 if n in used else 0.0, 40 << 30 if n in used else 0, d.memory_total,
               processes=()) for n, d in enumerate(inventory.devices)))
    seen = HostSeen(Host(name), "seen", inventory, shot, (shot,) * 3,
                    MappingProxyType(judge_all((shot,) * 3, {})), 0.0, HERE)
    return replace(seen, **more)


AWAY = HostSeen(Host("off"), "away", reason="no answer")


def spec(pick: int, use: str = "gpu_engine.tasks.digits:Digits", **devices: object):
    return from_dict({"devices": {"hosts": ["any"], "pick": pick} | devices,
                      "parallel": {"mode": "ddp"}, "task": {"use": use}})


def taken(seen: list[HostSeen], asked, **more) -> str:
    return ",".join(map(str, choose(seen, asked, cpu=on_cpu(seen), **more).where))


def why_none(seen: list[HostSeen], asked, **more) -> str:
    with pytest.raises(TooFew) as told:
        choose(seen, asked, cpu=on_cpu(seen), **more)
    [problem] = told.value.problems
    assert (problem.key, problem.value, problem.remedy) == (
        "devices.pick", asked.devices.pick, "--queue")
    return str(told.value)


def test_the_machine_with_most_free_and_there_the_freest_by_the_rule_of_one_machine():
    seen = [machine("a", 4, 0, 1, 3), machine("b", 4, 1), machine("c", 3)]
    assert taken(seen, spec(1)) == "b:0"  # three free, as c has, and named before
    assert taken(seen, spec(2)) == "b:0,2"
    assert taken([*seen, machine("d", 4)], spec(3)) == "d:0,1,2"
    assert taken(seen, spec(4, share=True, free_gib=30.0)) == "a:0,1,2,3"  # 40 GiB are free there
    # Those of a have 40 GiB.
    some = [machine("a", 2, 0, 1), machine("b", 1)]
    assert taken(some, spec(1, share=True, free_gib=60.0)) == "b:0"
    assert with_most_free(seen) is seen[1]
    assert with_most_free([machine("a", 1, 0), AWAY]) is with_most_free([]) is None
    assert choose(seen, spec(2), cpu=False).sentence == \
        "on b: GPU 0, GPU 2: the freest of 3 machines"


def test_each_machine_says_what_is_lacking_and_who_is_away_is_passed_over():
    seen = [machine("a", 2, 0), machine("b", 1), machine("laptop", 8, cpu=True), AWAY,
            HostSeen(Host("new"))]
    assert why_none(seen, spec(2)) == (
        "2 devices are needed on one machine; a: 1 of 2 free; b: 1 of 1 free; laptop has no GPU; "
        "off is away: no answer; new has not answered yet")
    with pytest.raises(TooFew, match=r"^1 device is needed on one machine; a: none of 1 free; "
                       r"b has no GPU; a run waits on c, and what waits there goes first$"):
        choose([machine("a", 1, 0), machine("b", 1, cpu=True), machine("c", 1, waiting=1)],
               spec(1), cpu=False, behind=True)
    with pytest.raises(TooFew, match=r"machine; a has GPUs and offers no CPU slots$"):
        choose([machine("a", 1)], spec(1), cpu=True)
    assert choose(seen, spec(1), cpu=False).passed == (
        "off is away: no answer", "new has not answered yet")


@pytest.mark.parametrize(("bad", "why"), [
    ({"welcome": changed(HERE, interpreter=None, lacking="no torch there")}, "no torch there"),
    ({"welcome": changed(HERE, version="0.0.9")}, "gpu-panel there is 0.0.9, and 0.1.0 here"),
])
def test_who_could_not_run_it_is_passed_over(bad, why):
    seen = [machine("a", 4, **bad), machine("b", 1)]
    found = choose(seen, spec(1), cpu=False)
    assert [*found.devices] == ["b"]
    assert found.passed[0].startswith(f"a: {why}")


def test_a_command_of_ones_own_needs_no_torch_that_we_find():
    bare = {"welcome": changed(HERE, interpreter=None, lacking="no torch there")}
    own = from_dict({"devices": {"hosts": ["any"], "pick": 1}, "task": {"command": ["true"]}})
    assert taken([machine("a", 4, **bare), machine("b", 1)], own) == "a:0"


def test_who_answers_and_has_sent_no_reading_is_not_one_without_free_devices():
    silent = machine("a", 2, snapshot=None, recent=())
    assert "a answers, and has not said how its devices are yet" in why_none([silent], spec(1))
    assert choose([silent, machine("b", 1)], spec(1), cpu=False).sentence.startswith("on b: ")


def test_what_answers_is_told_at_once(home, monkeypatch):
    """Though another host is silent."""
    monkeypatch.setattr(freest, "PATIENCE", 0.5)
    told: list[str] = []
    over = freest.look([Host("mute", via=("sh", "-c", "sleep 60")), Host("off", via=("false",))],
                       lambda machines: told.extend(m.host.name for m in machines))
    assert told == ["off", "mute"]
    assert [m.host.name for m in over] == ["mute", "off"]


def test_who_has_just_refused_it_and_where_others_wait():
    seen = [machine("a", 4), machine("b", 3, waiting=2), machine("c", 1)]
    assert taken(seen, spec(1), refused={"a": "its disk is full"}) == "b:0"  # one starts at once
    assert taken(seen, spec(1), refused={"a": "its disk is full"}, behind=True) == "c:0"
    assert "2 runs wait on b, and what waits there goes first" in why_none(
        seen, spec(3), refused={"a": "its disk is full"}, behind=True)


def test_cpu_slots_only_where_nobody_who_answers_has_a_gpu():
    desk = machine("local", 2, cpu=True)
    assert not on_cpu([machine("a", 1, 0), desk])
    assert not on_cpu([desk, AWAY])  # that one may have GPUs
    assert on_cpu([desk])
    assert on_cpu([desk, machine("a", 2, cpu=True), AWAY])
    assert taken([desk, machine("a", 4, cpu=True), AWAY], spec(2)) == "a:cpu:0,cpu:1"
    # A core is taken though something uses it.
    assert free_on(machine("a", 2, 0, cpu=True)) == ["cpu:0", "cpu:1"]


def test_one_that_starts_at_once_takes_the_next_where_one_can_not_start_it(monkeypatch):
    seen = [machine("a", 2), machine("b", 3), AWAY]
    monkeypatch.setattr(freest, "look", lambda asked: tuple(seen))
    monkeypatch.setattr(freest.hosts, "meant_by", lambda names: list(names))

    def plan(chosen):
        assert (chosen.devices.pick, chosen.devices.free_gib) == (None, None)
        if chosen.devices.hosts == ["b:0,1"]:
            raise HostProblem([Problem("devices.hosts", "b", "its disk is full")])
        return chosen.devices.hosts

    asked = spec(2, free_gib=30.0)
    wants = Wants(count=2, free=30 << 30, cpu=False, hosts=("any",))
    assert freest.resolve(asked, plan) == (
        ["a:0,1"], "on a: GPU 0, GPU 1: the freest of 3 machines; b: its disk is full; "
                   "off is away: no answer", wants)
    seen[:] = [machine("b", 2)]
    with pytest.raises(HostProblem):
        freest.resolve(asked, plan)
    seen[:] = [machine("c", 3, 0, 1), machine("a", 1), AWAY, machine("d", 4, cpu=True)]
    for only in (False, True):
        with pytest.raises(TooFew, match=r"^4 devices are needed on one machine; c: 1 of 3 free"):
            freest.resolve(spec(4), plan, only_plan=only)
    with pytest.raises(TooFew):
        freest.resolve(spec(2), plan)
    assert freest.resolve(spec(2), plan, only_plan=True)[:2] == (
        ["c:0,1"], "it can't start now: 2 devices are needed on one machine; c: 1 of 3 free; "
                   "a: 1 of 1 free; d has no GPU; off is away: no answer")


def test_how_many_are_asked_for():
    def asked(mode):
        return freest.asked_of(from_dict({"devices": {"hosts": ["any", "local"]},
                                          "parallel": {"mode": mode}}))

    with pytest.raises(SpecError, match=r"many devices to take on one of any, local \(-n 2\)"):
        asked("ddp")
    one, _ = asked("single")
    assert one.devices.pick == 1


def test_who_can_be_judged():
    early = machine("a", 1)
    early = replace(early, recent=early.recent[:2])
    assert freest.settled([AWAY, machine("a", 1)])
    assert not freest.settled([machine("a", 1), early])


@pytest.mark.parametrize(("seen", "count", "ids", "unknown"), [
    ([machine("a", 1), machine("b", 2), machine("c", 3, cpu=True)], 4, ["0", "1"], False),
    ([machine("a", 1), AWAY], 3, ["0", "1", "2"], False),
    ([machine("a", 2), AWAY], 1, ["0", "1"], False),
    ([machine("a", 1, snapshot=None)], 2, ["0", "1"], False),
    ([machine("a", 1, cpu=True), AWAY], 2, ["cpu:0", "cpu:1"], False),
    ([AWAY], 2, ["0", "1"], True)])
def test_what_a_run_that_waits_is_checked_by(seen, count, ids, unknown):
    """As one that does not answer now may have enough, so many are supposed."""
    found = freest.expected(seen, count)
    assert [d.id for d in found.devices] == ids
    assert [d.index for d in found.devices] == list(range(len(ids)))
    assert len({d.uuid for d in found.devices if d.uuid}) < 3
    assert freest.unknown(found) is unknown
    assert (found.source, found.devices[0].kind) == (
        ("cpu", "cpu") if ids[0] == "cpu:0" else ("nvml", "gpu"))
