"""Which rank this process is, and of how many, according to the launcher that started it.

Pure, standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from gpu_engine.common.errors import UserError
from gpu_engine.spec.modes import MEETING_PORT


@dataclass(frozen=True)
class Identity:
    """A process's place among all ranks."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    master_addr: str | None = None
    master_port: int | None = None
    source: str = "alone"
    """Where this was read from: arguments, torchrun, srun, mpirun or alone."""
    node: int = 0
    """The node rank: the number of this machine."""
    nodes: int = 1


def identify(env: Mapping[str, str], *, init_method: str | None = None, rank: int | None = None,
             world_size: int | None = None) -> Identity:
    """Rank and world size, from the arguments, else from the environment variables of torchrun,
    srun or mpirun; without any of them, a single rank. Raises UserError if they contradict each
    other or are incomplete."""
    if init_method is not None or rank is not None or world_size is not None:
        return _from_arguments(env, init_method, rank, world_size)
    if "RANK" in env and "WORLD_SIZE" in env:
        who = _from_variables(env, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK",
                              "LOCAL_WORLD_SIZE")
    # The shell of an sbatch script has SLURM_PROCID too, but ranks exist only inside a step.
    elif "SLURM_PROCID" in env and "SLURM_STEP_ID" in env:
        size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
        who = _from_variables(env, "srun", "SLURM_PROCID", size, "SLURM_LOCALID", "")
    elif "OMPI_COMM_WORLD_RANK" in env:
        who = _from_variables(env, "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                              "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    elif "PMI_RANK" in env:
        who = _from_variables(env, "mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
                              "MPI_LOCALNRANKS")
    else:
        return Identity(master_addr=env.get("MASTER_ADDR"), master_port=_port(env))
    if who.world_size > 1 and (who.master_addr is None or who.master_port is None):
        raise UserError(f"started by {who.source} as rank {who.rank} of {who.world_size}, but "
                        "MASTER_ADDR and MASTER_PORT don't say where the ranks meet")
    return who


def first_host(nodelist: str) -> str:
    """The first host of Slurm's compressed list: "gpu[03-05,9],login1" → "gpu03". Raises
    UserError for a text that is no such list."""
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", nodelist)
    if match is None:
        raise UserError(f"not a list of hosts: {nodelist!r}")
    return (match[1] + (match[2] or "") + (match[3] or "")).strip()


def _from_variables(env: Mapping[str, str], source: str, rank: str, size: str, local: str,
                    local_size: str) -> Identity:
    r, w = _number(env, rank), _number(env, size)
    if r is None or w is None or not 0 <= r < w:
        raise UserError(f"{rank}={env.get(rank)} and {size}={env.get(size)} "
                        "don't name a rank among a number of ranks")
    addr, port = env.get("MASTER_ADDR"), _port(env)
    lr, lw = _number(env, local), _number(env, local_size)
    if source == "srun":
        lw = _slurm_local_size(env, w)
        nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_NODELIST")
        addr = addr or (first_host(nodes) if nodes else None)
        # Every node works out the same port from the number of the job.
        port = port or 20000 + (_number(env, "SLURM_JOB_ID") or 0) % 20000
    elif source == "mpirun" and lw == w:
        addr, port = addr or "127.0.0.1", port or MEETING_PORT
    lw = max(w if lw is None else lw, 1)
    node, nodes = _number(env, _NODE.get(source, ("", ""))[0]), None
    if node is not None:
        nodes = _number(env, _NODE[source][1])
    return Identity(r, w, r % lw if lr is None else lr, lw, addr, port, source,
                    r // lw if node is None else node, nodes or -(-w // lw))


_NODE = {"torchrun": ("GROUP_RANK", "GROUP_WORLD_SIZE"),
         "srun": ("SLURM_NODEID", "SLURM_STEP_NUM_NODES")}
"""The variables in which a launcher gives the node rank and the number of nodes."""


def _slurm_local_size(env: Mapping[str, str], size: int) -> int | None:
    """How many ranks of this step run on this machine. The lists that srun gives for all machines
    come first, as --ntasks-per-node may be missing or differ from what Slurm really started."""
    node = _number(env, "SLURM_NODEID")
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        each = expand_counts(env.get(name, ""))
        # The second list is the job's. It fits if the step is as large as the job.
        if sum(each) == size and (len(each) == 1 or node is not None) and (node or 0) < len(each):
            return each[node or 0]
    return _number(env, "SLURM_NTASKS_PER_NODE")


def expand_counts(text: str) -> list[int]:
    """Slurm's compressed counts: "2(x3),1" → [2, 2, 2, 1]; [] if the text is something else."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            return []
        found += [int(match[1])] * int(match[2] or 1)
    return found


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
    local_size = max(_number(env, "LOCAL_WORLD_SIZE") or world_size, 1)
    return Identity(rank, world_size, rank if local is None else local, local_size, url.hostname,
                    url.port, "arguments", rank // local_size, -(-world_size // local_size))


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name)
    # Slurm may write "4(x2)" for the same number on several nodes.
    match = re.match(r"\d+", text) if text else None
    return int(match[0]) if match else None


def _port(env: Mapping[str, str]) -> int | None:
    return _number(env, "MASTER_PORT")
