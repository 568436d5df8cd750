"""Where several machines meet: names are looked up, shown, and refused where they can't serve."""

from __future__ import annotations

import socket
import threading

import pytest

from gpu_engine.launching import preflight
from gpu_engine.launching.launcher import prepare
from gpu_engine.launching.preflight import probe
from gpu_engine.spec.read import from_dict

from ..conftest import slots

KNOWN = {"node0": ["10.0.0.1"], "both": ["127.0.1.1", "10.0.0.1"], "mine": ["127.0.1.1"],
         "mine6": ["::1"]}


@pytest.fixture(autouse=True)
def names(monkeypatch):
    """A name server of our own, and no answers from before."""
    waits = threading.Event()

    def ask(host, *_, **__):
        if host == "slow":
            waits.wait()
        if host not in KNOWN:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, 0)) for a in KNOWN[host]]

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    preflight._asked.cache_clear()
    monkeypatch.setattr(preflight, "PATIENCE", 0.2)
    monkeypatch.setattr(preflight, "own_addresses", lambda: ["10.0.0.1 (eth0)", "10.1.0.1 (ib0)"])
    yield
    waits.set()


def spec_of(host: str, node: int = 0):
    return from_dict({"task": {"use": "gpu_engine.tasks.bytes_gpt:BytesGPT"},
                      "devices": {"ids": ["cpu:0"]},
                      "parallel": {"mode": "multinode", "nodes": 2, "node_rank": node,
                                   "master_addr": host, "master_port": 29577}})


@pytest.mark.parametrize(("host", "node", "says"), [
    ("mine", 0, "of 10.0.0.1 (eth0), 10.1.0.1 (ib0)"), ("mine6", 0, "is ::1 to this machine"),
    ("mine", 1, "give node 0's numeric address"), ("nobody", 1, "knows no such host")])
def test_a_name_that_cannot_serve_is_refused_with_what_would(host, node, says):
    found = {p.key: p.message for p in probe(spec_of(host, node), slots(1))}
    assert says in found["parallel.master_addr"]


@pytest.mark.parametrize(("host", "says"), [
    ("node0", "node0, which is 10.0.0.1 to this one"), ("both", "both, which is 10.0.0.1"),
    ("slow", "slow; what that means was not answered yet"), ("10.0.0.1", None),
    ("fe80::1%eth0", None), ("localhost", "itself"), ("127.0.0.1", "itself")])
def test_what_a_name_means_is_shown(home, host, says):
    warnings = prepare(spec_of(host, 1), inventory=slots(1)).plan.warnings
    assert [says in w for w in warnings] == ([True] if says else [])
