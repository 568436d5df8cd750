"""A real Slurm on this machine: its controller and two nodes of one processor each, in namespaces
of their own. Its commands reach it through wrappers in a folder for the PATH. Needs root.

The process numbers of its jobs are their own, as on other machines; the disk is shared.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from ..conftest import in_vain, patience
from ..nodes import rig

DAEMONS = ("slurmctld", "slurmd")
COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "sacct", "sinfo", "srun")
_PATH = os.defpath + ":/usr/local/sbin:/usr/sbin:/sbin"
_ADDRESS = "10.214.0.1"


def why_not() -> str | None:
    """Why there can be no Slurm here, in words; None if there can."""
    absent = [name for name in (*DAEMONS, *COMMANDS) if not shutil.which(name, path=_PATH)]
    if absent:
        return f"Slurm is not installed: no {', '.join(absent)} (slurmctld, slurmd, slurm-client)"
    return rig.why_not()


class Cluster:
    """Slurm with the nodes n1 and n2, all idle. `close` takes it away with its jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.conf = folder / "slurm.conf"
        for name in ("bin", "state"):
            (folder / name).mkdir()
        self.conf.write_text(_conf(folder))
        conf = shlex.quote(str(self.conf))
        script = ("set -e; mount --make-rprivate /; hostname head; ip link set lo up;"
                  f" ip link add s0 address 02:00:00:00:00:01 type veth peer name s1;"
                  f" ip address add {_ADDRESS}/24 dev s0; ip link set s0 up; ip link set s1 up;"
                  f" echo '{_ADDRESS} head' > {conf}.hosts; mount --bind {conf}.hosts /etc/hosts;"
                  f" export SLURM_CONF={conf}; slurmctld -i -c; slurmd -N n1; slurmd -N n2;"
                  " echo up; while read -r line; do :; done")
        self._init = rig.first_process(script, folder / "boot.log")
        enter = f"nsenter --target={rig.child(self._init)} --net --uts --mount"
        for name in COMMANDS:
            wrapper, real = self.bin / name, shutil.which(name, path=_PATH)
            wrapper.write_text(  # a job has this PATH too
                f"#!/bin/sh\nexport SLURM_CONF={conf}\n[ \"$(uname -n)\" != head ] || exec {real} "
                f"\"$@\"\nexec {enter} --wd=\"$PWD\" {real} \"$@\"\n")
            wrapper.chmod(0o755)
        self.until(self.idle)

    def idle(self) -> bool:
        """Whether both nodes are free."""
        return self.ask("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2"

    def ask(self, *argv: str) -> str:
        """The output of one of Slurm's commands."""
        done = subprocess.run([str(self.bin / argv[0]), *argv[1:]], capture_output=True, text=True,
                              check=False, timeout=patience(), stdin=subprocess.DEVNULL)
        return done.stdout

    def state(self, job: int) -> str:
        """Slurm's word for a job that it still knows."""
        return self.ask("squeue", "-h", "--states=all", "-j", str(job), "-o", "%T").strip()

    def fill(self) -> int:
        """A job of somebody else's that keeps all nodes; returns its number once it runs."""
        said = self.ask("sbatch", "--parsable", "-N2", "--exclusive", "--output=/dev/null",
                        "--chdir=/", "--wrap=sleep 3600")
        self.until(lambda: self.state(int(said)) == "RUNNING")
        return int(said)

    def daemon(self, name: str) -> int:
        """The pid here of the controller, or of a node's daemon: "slurmd -N n1"."""
        for path in Path("/proc").iterdir():
            if path.name.isdigit():
                try:
                    words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    where = (path / "environ").read_bytes()
                except OSError:
                    continue
                if words.startswith(name) and f"SLURM_CONF={self.conf}".encode() in where:
                    return int(path.name)
        raise AssertionError(f"no {name}")

    def stop_controller(self) -> None:
        """End slurmctld, which saves what it knows."""
        pid = self.daemon("slurmctld")
        os.kill(pid, signal.SIGTERM)
        self.until(lambda: not Path(f"/proc/{pid}").exists())

    def begin(self, command: str) -> None:
        """Start a daemon that was ended."""
        enter = ["nsenter", f"--target={rig.child(self._init)}", "--pid", "--net",
                 "--uts", "--mount"]
        subprocess.run([*enter, *command.split()], check=True, stdin=subprocess.DEVNULL,
                       env={"PATH": _PATH, "SLURM_CONF": str(self.conf)})

    def cancel_all(self) -> None:
        """No job waits or runs."""
        self.ask("scancel", "--user=root")
        self.until(lambda: not self.ask("squeue", "-h"))

    def until(self, condition: Callable[[], bool], seconds: float | None = None) -> None:
        """Wait for it."""
        end = time.monotonic() + (seconds or patience())
        while not condition():
            assert time.monotonic() < end, f"{in_vain(condition, patience())}\n{self.log()}"
            time.sleep(0.05)

    def log(self) -> str:
        """What its daemons have said."""
        return "\n".join(path.read_text(errors="replace")
                         for path in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        """Kill everything of it."""
        rig.end(self._init)


def _conf(folder: Path) -> str:
    nodes = "\n".join(f"NodeName=n{i} NodeHostname=head NodeAddr={_ADDRESS} Port={17000 + i} CPUs=1"
                      for i in (1, 2))
    return f"""\
ClusterName=trial
SlurmctldHost=head({_ADDRESS})
SlurmUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,builtin_interval=1,sched_interval=1,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
MessageTimeout=100
MinJobAge=3600
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9
"""
