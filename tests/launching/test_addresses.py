"""Where several machines meet: names are looked up, shown, and refused where they can't serve."""

from __future__ import annotations

import socket

import pytest

from gpu_engine.launching import preflight
from gpu_engine.launching.preflight import lasting
from gpu_engine.spec.read import from_dict

from ..conftest import slots

KNOWN = {"node0": ["10.0.0.1"], "both": ["127.0.1.1", "10.0.0.1"], "mine": ["127.0.1.1"],
         "mine6": ["::1"]}


@pytest.fixture(autouse=True)
def names(monkeypatch):
    """A name server of our own, and no answers from before."""
    def ask(host, *_, **__):
        if host not in KNOWN:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, 0)) for a in KNOWN[host]]

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    preflight._addresses.cache_clear()


def spec_of(host: str, node: int = 0):
    return from_dict({"task": {"use": "gpu_engine.tasks.bytes_gpt:BytesGPT"},
                      "devices": {"ids": ["cpu:0"]},
                      "parallel": {"mode": "multinode", "nodes": 2, "node_rank": node,
                                   "master_addr": host, "master_port": 29577}})


@pytest.mark.parametrize(("host", "node", "says"), [
    ("mine6", 0, "is ::1 to this machine"), ("mine", 1, "give node 0's numeric address"),
    ("nobody", 1, "knows no such host")])
def test_a_name_that_cannot_serve_is_refused_with_what_would(host, node, says):
    found = {p.key: p.message for p in lasting(spec_of(host, node), slots(1))}
    assert says in found["parallel.master_addr"]


@pytest.mark.parametrize("host", ["node0", "both", "10.0.0.1", "fe80::1%eth0"])
def test_another_machine_is_taken(host):
    assert "parallel.master_addr" not in {p.key for p in lasting(spec_of(host, 1), slots(1))}
