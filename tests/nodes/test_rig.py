"""The nodes are machines of their own, reached by the system's ssh, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..conftest import wait_for
from .rig import Rig, answers

pytestmark = pytest.mark.root
ROOT = Path(__file__).parents[2]


def test_a_node_has_its_own_name_address_home_and_processes(rig: Rig):
    first, second, third = rig.nodes
    for node in rig.nodes:
        said = rig.ssh(node.name, "hostname; hostname -I; cd; pwd; ls; echo $OMP_NUM_THREADS")
        assert said.stdout.split() == [node.name, node.address, str(node.home), "1"], said
    assert rig.ssh("gpu1", "touch mark").returncode == 0
    assert (first.home / "mark").is_file()
    assert not (second.home / "mark").exists()
    rig.ssh("gpu1", "setsid sleep 987 >/dev/null 2>&1 </dev/null &")
    wait_for(lambda: "sleep 987" in first.processes().values())
    assert second.processes() == third.processes() == {}
    rig.fresh()
    assert first.processes() == {}
    assert not (first.home / "mark").exists()


def test_nodes_reach_each_other_and_here(rig: Rig):
    first, second, _ = rig.nodes
    code = "import socket; print(socket.create_connection(('{}', 22), 5).recv(3).decode())"
    assert first.run([sys.executable, "-c", code.format(second.address)]).stdout == "SSH\n"
    assert first.run(["getent", "hosts", first.name]).stdout.startswith("127.0.1.1"), \
        "as on Debian: a machine's own name is no address to meet at"
    assert answers(first.address)
    assert not answers(rig.here)


def test_a_cut_cable_a_power_cut_and_another_key(rig: Rig):
    node = rig.nodes[0]
    node.cut()
    assert not answers(node.address, timeout=0.3)
    assert answers(rig.nodes[1].address)
    node.mend()
    assert answers(node.address)

    rig.ssh("gpu1", "echo kept > kept; setsid sleep 987 >/dev/null 2>&1 </dev/null &")
    node.reboot()
    assert rig.ssh("gpu1", "cat kept").stdout == "kept\n"
    assert node.processes() == {}

    node.change_key()
    refused = rig.ssh("gpu1", "true")
    assert refused.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in refused.stderr


def test_another_shell_a_banner_and_a_slow_line(rig: Rig):
    node = rig.nodes[0]
    node.set_shell("/bin/dash")
    assert rig.ssh("gpu1", "echo $0").stdout == "dash\n"
    (node.folder / "banner").write_text("Welcome\n")
    node.start_sshd(f"Banner {node.folder}/banner")
    assert rig.ssh("gpu1", "true").stderr == "Welcome\n"
    rig.write_config(delays={"gpu1": 0.05})
    began = time.monotonic()
    assert rig.ssh("gpu1", "echo there").stdout == "there\n"
    assert time.monotonic() - began > 0.3, "a login is at least three ways there and back"


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_the_program_dies(rig: Rig, tmp_path: Path, end: int):
    """Also when it is killed: no namespace, no link, no sshd."""
    code = ("import sys, time, pathlib; from tests.nodes.rig import Rig\n"
            "rig = Rig(1, pathlib.Path(sys.argv[1]))\n"
            "print(rig.nodes[0].pid, rig.link, flush=True); time.sleep(600)")
    program = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "r")], cwd=ROOT,
                               stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    pid, link = program.stdout.readline().split()
    assert Path(f"/sys/class/net/{link}").exists() or link in _links()
    program.send_signal(end)
    program.wait()
    program.stdout.close()
    wait_for(lambda: link not in _links() and not Path(f"/proc/{pid}").exists())
    assert not _with(os.fsencode(tmp_path / "r"))


def _links() -> str:
    return subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout


def _with(text: bytes) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in entry.read_bytes():
                found.append(str(entry))
        except OSError:
            continue
    return found
