"""`gpu-engine hosts check` against machines with addresses of their own, over the system's ssh."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path

import pytest

from gpu_engine import __version__
from gpu_engine.remote.reach import call, hosts, ssh
from gpu_engine.remote.reach.hosts import Host
from gpu_engine.remote.reach.watcher import Watcher
from gpu_engine.remote.run import survey

from ..cli.test_cli import engine
from ..conftest import wait_for
from .rig import Rig

pytestmark = pytest.mark.root


def test_two_that_are_ready_and_one_that_is_away(rig: Rig, home):
    for name in ("gpu1", "gpu2", "gpu3"):
        hosts.add(Host(name, python=sys.executable))
    rig.nodes[2].off()
    out = engine("hosts", "check", "--json")
    first, second, third = json.loads(out.stdout)
    assert out.returncode == 1, out.stderr
    for one, node in ((first, rig.nodes[0]), (second, rig.nodes[1])):
        assert (one["ok"], one["problems"]) == (True, [])
        assert one["welcome"]["hostname"] == node.name
        assert one["welcome"]["addresses"][0] == node.address
        assert one["welcome"]["version"] == __version__
        assert one["inventory"]["devices"][0]["id"] == "cpu:0"
        assert one["clock"] is not None
    assert third["ok"] is False
    assert third["problems"][0] in ("there is no way to it from here",
                                    "no answer: it is off, or a firewall is between")
    said = engine("hosts", "check", "gpu1")
    assert (said.returncode, said.stdout.splitlines()[0][:13]) == (0, "gpu1  ready i")
    assert f"gpu-panel {__version__} · Python" in said.stdout


def test_devices_are_watched_through_a_cut_and_a_reboot(rig: Rig, home, monkeypatch):
    monkeypatch.setattr("gpu_engine.remote.reach.watcher._PAUSES", (0.5,))
    watching = Watcher()
    try:
        for name in ("gpu1", "gpu2"):
            watching.watch(Host(name, python=sys.executable))
        wait_for(lambda: all(s.snapshot for s in watching.seen))
        first = watching.seen[0]
        assert first.inventory is not None
        assert [s.device.id for s in first.snapshot.samples] == [
            d.id for d in first.inventory.devices]
        rig.nodes[0].off()
        rig.nodes[1].cut()
        wait_for(lambda: watching.seen[0].state == "away")
        wait_for(lambda: (watching.seen[1].age() or 0) > 3)
        assert watching.seen[0].reason
        assert watching.seen[0].snapshot is not None
        rig.nodes[0].boot()
        rig.nodes[1].mend()
        now = time.monotonic()
        wait_for(lambda: all(s.state == "seen" and s.heard > now for s in watching.seen))
    finally:
        watching.close()


def test_a_shared_connection_that_ends_as_it_is_asked_for_is_not_shared(rig: Rig, home):
    """Over the system's ssh, which gives up then. What it shares is a connection that exists no
    more: a socket that answers as OpenSSH's master does (PROTOCOL.mux) and ends at once."""
    host = Host("gpu2", python=sys.executable)
    path, = (w.removeprefix("ControlPath=") for w in ssh.shell(host) if "ControlPath=" in w)
    asked = []

    def master(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listening.accept()
                with client:
                    hello = struct.pack(">III", 8, 0x1, 4)  # its length, MUX_MSG_HELLO, version
                    asked.append(client.recv(len(hello)))
                    client.sendall(hello)
                    # its length, MUX_C_ALIVE_CHECK, the request's number
                    _, _, number = struct.unpack(">III", client.recv(12))
                    client.shutdown(socket.SHUT_RD)  # so that no more can be asked
                    client.sendall(struct.pack(">IIII", 12, 0x80000005, number, os.getpid()))

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        threading.Thread(target=master, args=(listening,), daemon=True).start()
        assert survey.meet(host, ()).welcome.hostname == "gpu2"
        ran = call.run(host, b"echo once; echo twice >&2\n", 60)
        assert (ran.out, ran.code) == ("once\ntwice\n", 0)
        listening.shutdown(socket.SHUT_RDWR)
    Path(path).unlink()
    assert len(asked) == 2


def test_machines_with_one_address_behind_two_jump_hosts_are_two(rig: Rig, home):
    """Also while a connection to the other is open; and so is one whose key is not looked at."""
    first, second, _ = rig.nodes
    rig.write_config("".join(
        f"Host {name}\n  HostName 127.0.0.1\n  ProxyJump {by.name}\n  HostKeyAlias {key.address}\n"
        for name, by, key in (("inA", first, first), ("inB", second, second),
                              ("wrong-key", second, first))))
    for node in (first, second):
        node.start_sshd("ListenAddress 127.0.0.1:22")
    for name, said in (("inA", "gpu1\n"), ("inB", "gpu2\n"), ("inA", "gpu1\n")):
        assert call.run(Host(name), b"hostname\n", 60).out == said
    assert len(list((home / "ssh").iterdir())) == 2, "connections are shared"
    with pytest.raises(call.Unreachable, match="its host key"):
        call.run(Host("wrong-key"), b"hostname\n", 60)
