"""Which rank of how many this process is: read from whichever launcher started it.

Standard library only, pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from gpu_engine.errors import UserError


@dataclass(frozen=True)
class Identity:
    """This process among the others."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    master_addr: str | None = None
    master_port: int | None = None
    source: str = "alone"
    """Who said so: arguments, torchrun, srun, mpirun or alone."""


def identify(env: Mapping[str, str], *, init_method: str | None = None, rank: int | None = None,
             world_size: int | None = None) -> Identity:
    """Rank and world size: from the arguments, else from torchrun's, srun's or mpirun's
    variables, else alone. Raises UserError where they contradict each other or lack a part."""
    if init_method is not None or rank is not None or world_size is not None:
        return _from_arguments(env, init_method, rank, world_size)
    if "RANK" in env and "WORLD_SIZE" in env:
        who = _make(env, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    # An sbatch script's own shell has SLURM_PROCID too; only inside a step do ranks exist.
    elif "SLURM_PROCID" in env and "SLURM_STEP_ID" in env:
        size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
        who = _make(env, "srun", "SLURM_PROCID", size, "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE")
    elif "OMPI_COMM_WORLD_RANK" in env:
        who = _make(env, "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                    "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    elif "PMI_RANK" in env:
        who = _make(env, "mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    else:
        return Identity(master_addr=env.get("MASTER_ADDR"), master_port=_port(env))
    if who.world_size > 1 and (who.master_addr is None or who.master_port is None):
        raise UserError(f"started by {who.source} as rank {who.rank} of {who.world_size}, but "
                        "MASTER_ADDR and MASTER_PORT don't say where the ranks meet")
    return who


def first_host(nodelist: str) -> str:
    """The first host of Slurm's compressed list: "gpu[03-05,9],login1" → "gpu03"."""
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", nodelist)
    if match is None:
        raise UserError(f"not a list of hosts: {nodelist!r}")
    return (match[1] + (match[2] or "") + (match[3] or "")).strip()


def _make(env: Mapping[str, str], source: str, rank: str, size: str, local: str,
          local_size: str) -> Identity:
    r, w = _number(env, rank), _number(env, size)
    if r is None or w is None or not 0 <= r < w:
        raise UserError(f"{rank}={env.get(rank)} and {size}={env.get(size)} "
                        "don't name a rank among a number of ranks")
    addr, port = env.get("MASTER_ADDR"), _port(env)
    lr, lw = _number(env, local), _number(env, local_size)
    lw = w if lw is None else lw
    if source == "srun":
        nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_NODELIST")
        addr = addr or (first_host(nodes) if nodes else None)
        # One port a job, the same on every node, without asking anybody.
        port = port or 20000 + (_number(env, "SLURM_JOB_ID") or 0) % 20000
    elif source == "mpirun" and lw == w:
        addr, port = addr or "127.0.0.1", port or 29500
    return Identity(r, w, r % lw if lr is None else lr, lw, addr, port, source)


def _from_arguments(env: Mapping[str, str], init_method: str | None, rank: int | None,
                    world_size: int | None) -> Identity:
    if init_method is None or rank is None or world_size is None:
        raise UserError("--init-method, --rank and --world-size go together")
    url = urlsplit(init_method)
    if url.scheme != "tcp" or not url.hostname or not url.port:
        raise UserError(f"--init-method {init_method}: expected tcp://host:port")
    if not 0 <= rank < world_size:
        raise UserError(f"--rank {rank} --world-size {world_size}: the rank must be "
                        f"between 0 and {world_size - 1}")
    local = _number(env, "LOCAL_RANK")
    local_size = _number(env, "LOCAL_WORLD_SIZE")
    return Identity(rank, world_size, rank if local is None else local,
                    world_size if local_size is None else local_size,
                    url.hostname, url.port, "arguments")


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name)
    # Slurm writes "4(x2)" for the same figure on several nodes.
    match = re.match(r"\d+", text) if text else None
    return int(match[0]) if match else None


def _port(env: Mapping[str, str]) -> int | None:
    return _number(env, "MASTER_PORT")
