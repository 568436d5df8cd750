"""Ports of this machine: a listener is seen, whatever address it listens on."""

import socket

import pytest

from gpu_engine.common.ports import free_port, port_taken


@pytest.mark.parametrize(("family", "address"), [
    (socket.AF_INET, "127.0.0.1"), (socket.AF_INET, ""), (socket.AF_INET6, "::1")])
def test_a_port_that_somebody_listens_on_is_taken(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as there:
        there.bind((address, 0))
        there.listen(1)
        port = there.getsockname()[1]
        said = port_taken(port)
        other = int(said.rpartition("; ")[2].removesuffix(" is free"))
        assert other != port
    assert port_taken(other) is None


def test_a_connection_that_is_over_does_not_take_its_port():
    """A run that follows another at once meets at the same port."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port)) as server:
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()  # this side closes first, so its end stays in TIME_WAIT
        client.close()
    assert port_taken(port) is None
