"""`gpu-engine hosts` as a person types it."""

import json

import pytest

from gpu_engine.remote.reach import hosts
from gpu_engine.remote.reach.hosts import Host

from ..command_line import called
from .test_cli import engine


def test_added_listed_changed_and_removed():
    out = engine("hosts", "add", "gpu1", "--ssh", "alice@10.0.0.7", "--folder", "~/p")
    assert out.stdout == f"gpu1 added in {hosts.path()}: ssh alice@10.0.0.7 · in ~/p\n"
    assert "gpu-engine hosts check gpu1" in out.stderr
    out = called("hosts", "add", "gpu1", "--label", "left")
    assert "gpu1 changed" in out.stdout
    assert called("hosts").stdout == "gpu1  ssh alice@10.0.0.7 · in ~/p  (left)\n"
    listed = json.loads(called("hosts", "--json").stdout)
    assert listed["hosts"][0]["ssh"] == "alice@10.0.0.7"
    assert called("hosts", "remove", "gpu1").returncode == 0
    assert hosts.read() == {}
    assert "no hosts yet" in called("hosts").stderr


@pytest.mark.parametrize(("args", "says"), [
    (["add", "a;b"], "'a;b' is no name of a host"),
    (["add", "--", "-oProxyCommand=x"], "is no name of a host"),
    (["add", "local"], "this machine is called that"),
    (["add", "gpu2", "--folder", "work"], 'hosts.gpu2.folder = "work": expected a whole path'),
    (["remove", "gpu"], "has no host 'gpu'; did you mean gpu1"),
    (["remove", "gpu1", "x"], "has no host 'x'"),
])
def test_a_mistake_is_2_and_changes_nothing(args, says):
    hosts.add(Host("gpu1"))
    out = called("hosts", *args)
    assert (out.returncode, out.stdout) == (2, "")
    assert says in out.stderr
    assert "Traceback" not in out.stderr
    assert hosts.read() == {"gpu1": Host("gpu1")}
