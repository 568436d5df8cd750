"""The nodes of the Slurm job within which this program was started, as hosts: nobody has to write
them down. They are reached by `srun` inside the job (`man srun`, --jobid and --overlap)."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from functools import cache

from gpu_engine.common.ask_program import answer
from gpu_engine.remote.reach.records import BadName, Host, check_name

_TIMEOUT = 10.0


def hosts_of_job(env: Mapping[str, str] | None = None) -> dict[str, Host]:
    """The job's nodes by name, in Slurm's order, without the one that this is; none outside a job,
    and where Slurm can't be asked. `env`: where Slurm's variables are looked up; None: os.environ.
    """
    env = os.environ if env is None else env
    job, listed = env.get("SLURM_JOB_ID", ""), env.get("SLURM_JOB_NODELIST", "")
    if not job.isdecimal() or not listed:
        return {}
    here = socket.gethostname()
    own = {env.get("SLURMD_NODENAME"), here, here.partition(".")[0]}
    return {name: Host(name, python=sys.executable, label=f"node of job {job}", via=(
        "srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={name}"))
        for name in _names(listed) if name not in own}


@cache
def _names(listed: str) -> tuple[str, ...]:
    """"gpu[01-03,07]" → gpu01, gpu02, gpu03, gpu07."""
    said = answer(["scontrol", "show", "hostnames", listed], _TIMEOUT)
    return tuple(filter(_is_name, (said or "").split()))


def _is_name(text: str) -> bool:
    try:
        check_name(text)
    except BadName:
        return False
    return True
