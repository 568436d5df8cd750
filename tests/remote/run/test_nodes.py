"""What each host is told, worked out by hand."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

import gpu_engine
from gpu_engine.common.errors import SpecError
from gpu_engine.interpreters.inspection import Build
from gpu_engine.remote.reach import protocol
from gpu_engine.remote.reach.hosts import Host
from gpu_engine.remote.run import nodes
from gpu_engine.remote.run.nodes import Machine
from gpu_engine.spec.host_names import HostDevices
from gpu_engine.spec.read import apply_sets, from_dict
from gpu_engine.spec.write import to_dict
from tests.conftest import gpus, slots


def machine(name, inventory=None, **more):
    said = {"version": "0.1.0", "python": f"/{name}/python",
            "python_version": "3.12.1", "hostname": name, "user": "u", "home": "/h",
            "folder": "/", "boot": name, "network": name, "place": "1:2", "clock": time.time()}
    return Machine(Host(name), protocol.Welcome(**said | more), inventory or gpus(4))


def spec(hosts, **more):
    return from_dict({"task": {"use": "gpu_engine.tasks.digits:Digits"}, "batch": {"size": 48},
                      "devices": {"hosts": hosts}} | more)


def test_unlike_numbers_of_devices():
    """2 + 1 + 3 ranks: each host its own, numbered on, with its share of the batch."""
    told, plan = nodes.spread(spec(["a:0,1", "b:3", "c:1,2,3"]), [machine(n) for n in "abc"],
                              address="10.0.0.1", port=1234)
    assert [[r.rank for r in n.plan.ranks] for n in told] == [[0, 1], [2], [3, 4, 5]]
    assert [n.spec.devices.ids for n in told] == [["0", "1"], ["3"], ["1", "2", "3"]]
    for number, node in enumerate(told):
        p = node.spec.parallel
        assert (p.mode, p.nodes, p.node_rank, p.node_devices) == ("multinode", 3, number, [2, 1, 3])
        assert (p.master_addr, p.master_port) == ("10.0.0.1", 1234)
        assert node.spec.devices.hosts is None
        assert node.plan.world_size == 6
        assert node.plan.batch.per_gpu == 8
        for process in node.plan.processes:
            assert process.argv[0] == f"/{node.name}/python"
            assert process.env["MASTER_ADDR"] == "10.0.0.1"
            assert process.env["WORLD_SIZE"] == "6"
        assert from_dict(to_dict(node.spec, defaults=False)) == node.spec
    assert [(r.rank, r.host) for r in plan.ranks] == [(0, "a"), (1, "a"), (2, "b"), (3, "c"),
                                                      (4, "c"), (5, "c")]
    assert [p.env["RANK"] for p in plan.processes] == list("012345")
    assert plan.spec.devices.hosts == ["a:0,1", "b:3", "c:1,2,3"]


@pytest.mark.parametrize("task", [{"use": "gpu_engine.tasks.digits:Digits"},
                                  {"command": ["python", "train.py"]}])
def test_the_plan_names_no_path_of_this_machine_for_another(task):
    _, plan = nodes.spread(spec(["a:0", "b:1"], task=task, batch={}),
                           [machine(n, package=f"/{n}/lib/gpu_engine") for n in "ab"],
                           address="10.0.0.1", port=1234)
    for process in plan.processes:
        words = " ".join((*process.argv, *process.env.values()))
        assert str(Path(gpu_engine.__file__).parent) not in words
        assert f"/{process.host}/lib/gpu_engine/" in words


def test_one_host_keeps_its_mode_and_a_host_without_ids_gives_all():
    told, plan = nodes.spread(spec(["b"], parallel={"mode": "ddp"}), [machine("b")],
                              address="127.0.0.1", port=None)
    assert (plan.mode, plan.world_size, told[0].spec.train.restarts) == ("ddp", 4, 0)
    assert told[0].spec.devices.ids == ["0", "1", "2", "3"]


@pytest.mark.parametrize(("asked", "machines", "key", "words"), [
    (["a:0", "b:7"], [machine("a"), machine("b")], "devices.hosts", "no such device"),
    (["a:0", "b:cpu:0"], [machine("a"), machine("b", slots(2))], "devices.hosts", "can't train"),
    (["b:0,1"], [machine("b", slots(2))], "devices.hosts",
     '"b:0,1": b has no GPU that can be used, only its processor: '
     "--set devices.hosts=b:cpu:0,cpu:1"),
    (["a:0", "b:0", "c:0,1,2"], [machine(n) for n in "abc"], "batch.size", "must divide by 5")])
def test_what_does_not_fit(asked, machines, key, words):
    with pytest.raises(SpecError) as caught:
        nodes.spread(spec(asked), machines, address="10.0.0.1", port=1)
    assert key in {p.key for p in caught.value.problems}
    assert words in str(caught.value)


@pytest.mark.parametrize(("text", "hosts"), [
    ("gpu1:0,1,alice@gpu2:3", ["gpu1:0,1", "alice@gpu2:3"]),
    ('["gpu1:0,1", "local:0"]', ["gpu1:0,1", "local:0"]), ("gpu1,gpu2", ["gpu1", "gpu2"])])
def test_typed_behind_set(text, hosts):
    data = {"devices": {"ids": ["0"]}, "task": {"use": "a:B"}}
    apply_sets(data, [f"devices.hosts={text}"])
    assert from_dict(data).devices.hosts == hosts
    assert "ids" not in data["devices"]


@pytest.mark.parametrize("hosts", [["a;b:0"], ["a:0", "a:1"], ["-x"], ["a:$(x)"]])
def test_what_is_no_host_is_refused_when_it_is_read(hosts):
    with pytest.raises(SpecError, match=r"devices\.hosts"):
        spec(hosts)


def _met(name, skew=0.0, **more):
    return replace(machine(name, **more), skew=skew)


def test_what_does_not_fit_between_hosts(monkeypatch):
    """Another version, a machine twice, another torch. A clock that is off is told, and keeps
    nobody from using the host."""
    torch = Build("2.13.0+cu130", "13.0", None)
    met = [_met("a", torch=torch), _met("b", version="0.0.9"), _met("c", skew=-5.0),
           _met("d", skew=0.9), _met("e", boot="a")]
    there = {one.name: one for one in met}
    monkeypatch.setattr(nodes, "meet", lambda host, *_, **__: there[host.name])
    with pytest.raises(SpecError) as err:
        nodes.survey([(HostDevices(m.name), m.host, (), None) for m in met])
    said = {p.value: p.message for p in err.value.problems}
    assert set(said) == {"b", "e"}
    assert "0.0.9" in said["b"]
    assert [w.partition(", and")[0] for w in nodes.clocks(met)] \
        == ["c: its clock is 5.0 s behind this machine's"]
    assert "same machine as a" in said["e"]
    other = Build("2.13.0+cpu", None, None)
    met = [_met("a", torch=torch, interpreter="/a/x"), _met("b", torch=other, interpreter="/b/x"),
           _met("c", lacking="no interpreter has torch: pip install torch")]
    unlike, without = nodes.torches(met, spec(["a", "b", "c"]))
    assert (unlike.key, unlike.value) == ("devices.hosts", "b")
    assert str(without) == "run.python: c: no interpreter has torch: pip install torch"


def test_that_nobody_compares_the_code_is_told():
    def told(sync="none", **task):
        return nodes.not_compared(spec(["a:0"], task=task, batch={}, run={"sync": sync}))

    assert "run.sync=send sends it" in (told(command=["python", "train.py"]) or "")
    assert told("send", command=["python", "train.py"]) is None
    assert told(use="gpu_engine.tasks.digits:Digits") is None
