"""Several machines on one: network namespaces with addresses of their own and real `sshd`s.

Each node has its own network, process numbers, mounts, host name and, anew with each boot, boot id:
the home of its root, /run, /dev/shm, /etc/hosts and /etc/passwd are its own, everything else is
shared, as with a shared file system.
The nodes and whoever runs the test ("here") hang on one switch. Needs root.

A node's first process reads from a pipe that only this program holds: when the program ends,
however it ends, the node ends with all that runs in it, and the kernel takes its links away.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..conftest import patience, wait_for

TOOLS = ("sshd", "ssh", "ssh-keygen", "ip", "unshare", "nsenter")
PATH = os.defpath + ":/usr/local/sbin:/usr/sbin:/sbin"
_PORT = 22


def why_not() -> str | None:
    """Why there can be no nodes here, in words; None where there can."""
    if os.geteuid() != 0:
        return "machines on one machine are network namespaces, which need root"
    absent = [tool for tool in TOOLS if not shutil.which(tool, path=PATH)]
    if absent:
        return f"machines on one machine need {', '.join(absent)} (openssh-server, iproute2)"
    tried = subprocess.run(["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "true"],
                           capture_output=True, text=True)
    if tried.returncode:
        return f"this machine allows no namespaces: {tried.stderr.strip()}"
    return None


@dataclass
class Node:
    """One machine: `name` is what ssh calls it, and its host name."""

    rig: Rig
    number: int
    name: str
    address: str
    folder: Path
    """What lies here of it: its home (`home`), its sshd's files, its log."""
    init: subprocess.Popen[str] | None = None
    env: dict[str, str] = field(default_factory=dict)
    """What a session there finds in its environment, once sshd has been started anew."""
    loses: int = 0
    """How many of 100 packets it loses in each direction."""

    @property
    def home(self) -> Path:
        """Its root's home: the same path here and there."""
        return self.folder / "home"

    @property
    def pid(self) -> int:
        """Of its first process, as it is numbered here."""
        assert self.init is not None
        return child(self.init)

    @property
    def up(self) -> bool:
        return self.init is not None and self.init.poll() is None

    # --- being switched on and off -----------------------------------------------------------

    def boot(self) -> None:
        """Switch it on: home and keys as they were, no processes of before."""
        for name in ("home", "etc"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._etc()
        script = (
            "set -e; mount --make-rprivate /; mount -t tmpfs none /run; mkdir /run/sshd /run/lock;"
            " mount -t tmpfs none /dev/shm;"
            f" for f in hosts passwd; do mount --bind {self._q('etc')}/$f /etc/$f; done;"
            f" mount --bind {self._q('etc')}/boot_id /proc/sys/kernel/random/boot_id;"
            f" hostname {self.name}; ip link set lo up; cd /;"
            " echo up; while read -r line; do :; done")
        self.init = first_process(script, self.folder / "boot.log")
        self.rig.plug(self)
        self.start_sshd()

    def off(self) -> None:
        """Switch it off, as a power cut does: every process of it is gone, and so is its link."""
        if self.init is None:
            return
        end(self.init)
        self.init = None
        with contextlib.suppress(AssertionError):
            self.rig.switch(f"link delete port{self.number}")

    def reboot(self) -> None:
        self.off()
        self.boot()

    def fresh(self) -> None:
        """As it was at first: nothing in its home, nothing running, the key it had, its link."""
        if not self.up:
            self.boot()
        self.mend()
        # All processes of the namespace, once it is certain that it is not this one.
        here = Path("/proc/self/ns/pid").readlink()
        self.run(["sh", "-c", f'[ "$(readlink /proc/self/ns/pid)" != "{here}" ] && kill -9 -1'],
                 check=False)
        shutil.rmtree(self.home)
        self.home.mkdir()
        self.env = {}
        self.set_shell("/bin/bash")
        shutil.copyfile(self.folder / "host_key.first", self.folder / "host_key")
        self.start_sshd()

    # --- doing things there ------------------------------------------------------------------

    def enter(self, argv: Sequence[str]) -> list[str]:
        """The argument list that runs `argv` there, without ssh."""
        return ["nsenter", f"--target={self.pid}", "--net", "--uts", "--mount", "--pid",
                "env", f"HOME={self.home}", *argv]

    def run(self, argv: Sequence[str], check: bool = True, timeout: float = 60.0
            ) -> subprocess.CompletedProcess[str]:
        """Run a program there, without ssh, and wait for it."""
        return subprocess.run(self.enter(argv), check=check, capture_output=True, text=True,
                              timeout=timeout, stdin=subprocess.DEVNULL)

    def processes(self) -> dict[int, str]:
        """What runs there beside its first process and sshd: pid there → command line."""
        listed = self.run(["ps", "-e", "-ww", "-o", "pid=,ppid=,args="]).stdout.splitlines()
        found = {}
        for line in listed:
            pid, _, args = line.split(None, 2)
            if not (pid == "1" or args.startswith(("sshd", "/usr/sbin/sshd", "ps -e"))):
                found[int(pid)] = args
        return found

    # --- what can go wrong ---------------------------------------------------------------------

    def cut(self) -> None:
        """Pull its cable: packets vanish without a word, in both directions."""
        self.rig.switch(f"link set port{self.number} nomaster")

    def mend(self) -> None:
        """Put the cable back, and lose no packets any more."""
        self.rig.switch(f"link set port{self.number} master br0")
        if self.loses:
            self.run(["nft", "flush", "ruleset"])
            self.loses = 0

    def lose(self, percent: int) -> None:
        """Lose so many of 100 packets, at random, in each direction. Needs `nft`."""
        dropped = f"numgen random mod 100 < {percent} counter drop"
        self.run(["nft", "table inet loss { "
                  f"chain to {{ type filter hook input priority 0; {dropped}; }}; "
                  f"chain from {{ type filter hook output priority 0; {dropped}; }}; }}"])
        self.loses = percent

    def lost(self) -> int:
        """How many packets were lost so."""
        told = self.run(["nft", "list", "ruleset"]).stdout
        return sum(map(int, re.findall(r"counter packets (\d+)", told)))

    def set_shell(self, shell: str) -> None:
        """Which program a login runs."""
        (self.folder / "etc" / "passwd").write_text(
            f"root:x:0:0:root:{self.home}:{shell}\nnobody:x:65534:65534::/nonexistent:/bin/false\n"
            "sshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n")

    def change_key(self) -> None:
        """Another host key, as a machine has that was set up anew; nobody here is told."""
        _make_key(self.folder / "host_key")
        self.start_sshd()

    def start_sshd(self, *options: str) -> None:
        """Start sshd, with these lines of sshd_config before the usual ones; sessions that are
        open stay."""
        self.stop_sshd()
        lines = [*options, f"ListenAddress {self.address}:{_PORT}",
                 f"HostKey {self.folder}/host_key", f"PidFile {self.folder}/sshd.pid",
                 f"AuthorizedKeysFile {self.rig.folder}/key.pub", "StrictModes no", "UsePAM no",
                 "PasswordAuthentication no", "KbdInteractiveAuthentication no", "UseDNS no",
                 "PermitRootLogin yes", "MaxStartups 100", "MaxSessions 100", "LogLevel VERBOSE",
                 "Subsystem sftp internal-sftp"]
        env = {"OMP_NUM_THREADS": "1"} | self.env
        lines.append("SetEnv " + " ".join(f'"{k}={v}"' for k, v in env.items()))
        (self.folder / "sshd_config").write_text("\n".join(lines) + "\n")
        (self.folder / "sshd.pid").unlink(missing_ok=True)
        self.run([shutil.which("sshd", path=PATH) or "sshd", "-f",
                  str(self.folder / "sshd_config"), "-E", str(self.folder / "sshd.log")])
        end = time.monotonic() + patience()
        while not (self.folder / "sshd.pid").is_file():
            assert time.monotonic() < end, (self.folder / "sshd.log").read_text()
            time.sleep(0.005)

    def stop_sshd(self) -> None:
        """No new connections; open ones stay."""
        with contextlib.suppress(FileNotFoundError):
            listening = (self.folder / "sshd.pid").read_text().strip()
            self.run(["kill", "-9", listening], check=False)
            (self.folder / "sshd.pid").unlink()
        # A process that was killed keeps its port until it has gone.
        wait_for(lambda: not self._listens())

    def _listens(self) -> bool:
        """Whether a process there waits for connections of ssh."""
        lines = Path(f"/proc/{self.pid}/net/tcp").read_text().splitlines()[1:]
        return any(local.endswith(f":{_PORT:04X}") and state == "0A"  # TCP_LISTEN
                   for _, local, _, state, *_ in map(str.split, lines))

    def end_connections(self) -> None:
        """Kill what sshd has started for each connection: the channels break, and what was
        started detached stays."""
        self.run(["pkill", "-9", "-f", "^sshd: root"], check=False)

    def _q(self, name: str) -> str:
        return shlex.quote(str(self.folder / name))

    def _etc(self) -> None:
        # 127.0.1.1 for the own name is what Debian and Ubuntu write.
        lines = ["127.0.0.1 localhost", f"127.0.1.1 {self.name}"]
        lines += [f"{n.address} {n.name}" for n in self.rig.nodes if n is not self]
        (self.folder / "etc" / "hosts").write_text("\n".join(lines) + "\n")
        (self.folder / "etc" / "boot_id").write_text(f"{uuid.uuid4()}\n")
        self.set_shell("/bin/bash")


class Rig:
    """`count` nodes, gpu1, gpu2, …, switched on. `close` takes everything away again."""

    def __init__(self, count: int, folder: Path) -> None:
        self.folder = folder
        self.nodes: list[Node] = []
        self.python = sys.executable
        """The interpreter that has the program, here and, as it lies on a shared file system,
        there."""
        self.link = f"rig{os.getpid()}"[:12] + _letters(next(_MADE))
        _OPEN.append(self)
        self._switch: subprocess.Popen[str] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        # sshd asks for nothing of others' to be writable above keys and home.
        folder.chmod(0o700)
        try:
            self._up(count)
        except BaseException:
            self.close()
            raise

    def _up(self, count: int) -> None:
        _make_key(self.folder / "key")
        self._switch = first_process("ip link set lo up; echo up; while read -r line; do :; done",
                                     self.folder / "switch.log")
        self.switch("link add br0 type bridge forward_delay 0 stp_state 0", "link set br0 up")
        subnet = _free_subnet()
        self.here = f"{subnet}.254"
        _ip(f"link add {self.link} type veth peer name here netns {child(self._switch)}",
            f"address add {self.here}/24 dev {self.link}", f"link set {self.link} up")
        self.switch("link set here master br0", "link set here up")
        self.nodes = [Node(self, i, f"gpu{i}", f"{subnet}.{i}", self.folder / f"gpu{i}")
                      for i in range(1, count + 1)]
        known = []
        for node in self.nodes:
            node.folder.mkdir(exist_ok=True)
            _make_key(node.folder / "host_key")
            shutil.copyfile(node.folder / "host_key", node.folder / "host_key.first")
            (node.folder / "host_key.first").chmod(0o600)
            kind, key, *_ = (node.folder / "host_key.pub").read_text().split()
            known.append(f"{node.address} {kind} {key}\n")
        (self.folder / "known_hosts").write_text("".join(known))
        self.write_config()
        self.bin.mkdir(exist_ok=True)
        wrapper = self.bin / "ssh"
        # ssh looks for its configuration in the home that /etc/passwd names, whatever HOME says.
        wrapper.write_text(f"#!/bin/sh\nexec {shutil.which('ssh')} -F "
                           f"{shlex.quote(str(self.config))} \"$@\"\n")
        wrapper.chmod(0o755)
        for node in self.nodes:
            node.boot()

    @property
    def bin(self) -> Path:
        """First on the PATH: the system's `ssh`, with `config`."""
        return self.folder / "bin"

    @property
    def config(self) -> Path:
        """What a person would have as ~/.ssh/config."""
        return self.folder / "ssh_config"

    def write_config(self, extra: str = "", delays: Mapping[str, float] | None = None) -> None:
        """Write the person's ssh configuration: `extra` before the rest; `delays`: seconds that
        a packet takes to a node, each way, on connections of ssh."""
        parts = [extra]
        relay = Path(__file__).with_name("relay.py")
        for node in self.nodes:
            delay = (delays or {}).get(node.name)
            parts.append(f"Host {node.name}\n  HostName {node.address}\n  Port {_PORT}\n" + (
                f"  ProxyCommand {shlex.quote(sys.executable)} -S {shlex.quote(str(relay))} "
                f"%h %p {delay}\n" if delay else ""))
        parts.append(f"Host *\n  User root\n  IdentityFile {self.folder}/key\n"
                     f"  IdentitiesOnly yes\n  UserKnownHostsFile {self.folder}/known_hosts\n"
                     "  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n")
        self.config.write_text("\n".join(parts))

    def environment(self) -> dict[str, str]:
        """What a program here needs to find the nodes by their names."""
        return {"PATH": f"{self.bin}:{os.environ.get('PATH', os.defpath)}"}

    def ssh(self, node: str, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command line there as a person would."""
        return subprocess.run([str(self.bin / "ssh"), "-oBatchMode=yes", node, command],
                              capture_output=True, text=True, timeout=600, check=False,
                              stdin=subprocess.DEVNULL)

    def fresh(self) -> None:
        """As at first, for the next test."""
        self.write_config()
        for node in self.nodes:
            node.fresh()

    def plug(self, node: Node) -> None:
        """Connect a node that was switched on to the switch."""
        assert self._switch is not None
        port = f"port{node.number}"
        # The kernel takes a network away some time after its last process.
        with contextlib.suppress(AssertionError):
            self.switch(f"link delete {port}")
        # Always the same hardware address: others would ask the one of before for a while.
        _ip(f"link add e0 address 02:00:00:00:00:{node.number:02x} netns {node.pid} "
            f"type veth peer name {port} netns {child(self._switch)}")
        self.switch(f"link set {port} master br0", f"link set {port} up")
        _ip(f"address add {node.address}/24 dev e0", "link set e0 up", inside=node.pid)

    def switch(self, *commands: str) -> None:
        """Commands of `ip` in the switch."""
        assert self._switch is not None
        _ip(*commands, inside=child(self._switch))

    def close(self) -> None:
        """Take everything away: nodes, links, connections that ssh keeps open."""
        for node in self.nodes:
            node.off()
        if self._switch is not None:
            end(self._switch)
            self._switch = None
        for pid in _ssh_with(self.config):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self in _OPEN:
            _OPEN.remove(self)


_OPEN: list[Rig] = []
_MADE = itertools.count()
"""Numbers the rigs of this program: the kernel takes a link away some time after its rig."""


def first_process(script: str, log: Path) -> subprocess.Popen[str]:
    """A new set of namespaces whose first process runs `script`, which says "up" and then waits
    for its standard input to end."""
    with log.open("a") as file:
        process = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child",
             "--mount-proc", "bash", "-c", script],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True,
            env={"PATH": PATH, "HOME": "/root"}, preexec_fn=_end_with_us)
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said == "up\n", f"the namespaces did not come up: {log.read_text()}"
    return process


def _end_with_us() -> None:
    """Killed with the thread that started it, which in tests is the main one."""
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def child(process: subprocess.Popen[str]) -> int:
    """The first process of a set of namespaces, as it is numbered here."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


def end(process: subprocess.Popen[str]) -> None:
    """Kill all processes of a set of namespaces, and wait until the last is gone: until then they
    may write files."""
    first = os.pidfd_open(child(process)) if process.poll() is None else None
    process.kill()  # unshare, which takes its child with it, some time later
    process.wait()
    if first is not None:  # the kernel ends all others before this one
        select.select([first], [], [])
        os.close(first)
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(OSError):
            pipe.close()


def _ip(*commands: str, inside: int | None = None) -> None:
    """Commands of `ip`, in one go; `inside` the network of a process."""
    enter = ["nsenter", f"--target={inside}", "--net"] if inside is not None else []
    done = subprocess.run([*enter, "ip", "-batch", "-"], input="\n".join(commands) + "\n",
                          capture_output=True, text=True, env={"PATH": PATH})
    assert done.returncode == 0, f"ip {'; '.join(commands)}: {done.stderr}"


def _free_subnet() -> str:
    """The first three numbers of a network that nothing here uses: several programs may build
    nodes on one machine."""
    taken = subprocess.run(["ip", "-4", "-o", "address"], capture_output=True, text=True,
                           env={"PATH": PATH}).stdout
    for step in range(250):
        number = (os.getpid() + step) % 250
        if f" 10.213.{number}." not in taken:
            return f"10.213.{number}"
    raise AssertionError("every network of 10.213 is taken")


def _make_key(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(".pub").unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)],
                   check=True, capture_output=True)


def _ssh_with(config: Path) -> list[int]:
    """Processes of ssh that were started with this configuration: those kept open for the next
    connection stay behind their program."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            if os.fsencode(config) in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def _letters(number: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[number % 26]


def answers(address: str, port: int = _PORT, timeout: float = 1.0) -> bool:
    """Whether something listens there."""
    try:
        socket.create_connection((address, port), timeout).close()
    except OSError:
        return False
    return True
