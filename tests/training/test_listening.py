"""Where a run can be reached over a network: it has no secret that keeps others out."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import psutil
import pytest

from gpu_engine.places import verbs
from gpu_engine.spec.read import from_dict
from gpu_engine.worker.rank import group

from ..conftest import wait_for
from ..remote.run.kit import ENDLESS, TWO_HERE, losses_so_far

pytestmark = pytest.mark.usefixtures("home")
SOON = timedelta(seconds=20)


def listening(pid: int | None = None) -> set[tuple[str, int]]:
    """The addresses and ports on which a process listens; None: this one."""
    return {tuple(c.laddr) for c in psutil.Process(pid).net_connections("inet")
            if c.status == psutil.CONN_LISTEN}


def test_ranks_on_one_machine_listen_to_it_alone():
    run = verbs.launch(from_dict(TWO_HERE | ENDLESS))
    wait_for(lambda: all(
        run.events(rank).exists() and losses_so_far(run.path, rank) for rank in (0, 1)))
    found = set().union(*(listening(process.pid) for process in run.state().processes))
    run.stop()
    assert found
    assert {address for address, _ in found} == {"127.0.0.1"}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_store_listens_where_the_ranks_meet(host):
    before = listening()
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(100)]
    open_before = psutil.Process().num_fds()
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
        free.bind((host, 0))
        port = free.getsockname()[1]
    made = group.tcp_store(host, port, 2, holds=True, timeout=SOON)
    assert listening() - before == {(host, port)}
    other = group.tcp_store(host, port, 2, holds=False, timeout=SOON)
    other.set("word", "heard")
    assert group.another_connection(made).get("word") == b"heard"
    assert psutil.Process().num_fds() - open_before < len(others)  # no copies of them
    for file in others:
        os.close(file)


def test_an_address_that_is_not_this_machines_own_is_that_of_a_way_to_it():
    """Behind address translation, the address that others know is not ours to listen on."""
    assert group._listener("192.0.2.1", 29500) is None
    assert group._listener("a-name", 29500) is None


def test_a_port_that_is_taken_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(RuntimeError, match="address already in use"):
            group.tcp_store("127.0.0.1", taken.getsockname()[1], 1, holds=True, timeout=SOON)
