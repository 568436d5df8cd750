"""The batch script with which Slurm runs a spec. Pure: asks neither Slurm nor the machine.

Slurm starts each rank itself, by `srun` and not by torchrun: its warning before the time limit then
reaches every rank, which saves and stops (see `worker/start.py`), and no agent between them ends
the ranks while they save. What a person chose is in the script as quoted words only.
"""

from __future__ import annotations

import math
import re
import shlex
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpu_engine.common.errors import Problem, SpecError, UserError
from gpu_engine.devices.records import Device, Inventory
from gpu_engine.plan.batch import Layout
from gpu_engine.plan.build import arguments
from gpu_engine.plan.check import Checked, check
from gpu_engine.plan.records import WORKER
from gpu_engine.runs.job import Request
from gpu_engine.spec import modes
from gpu_engine.spec.schema import RunSpec

WARNING = 120
"""Seconds before the time limit at which Slurm warns the ranks, so that they save."""
_OURS = frozenset((
    "nodes", "gpus", "gpus-per-node", "ntasks", "ntasks-per-node", "gpus-per-task",
    "ntasks-per-gpu", "requeue", "no-requeue", "open-mode", "signal", "clusters", "array", "wrap",
    "export", "parsable", "wait", "test-only"))
"""Options of sbatch that `-o` can't give."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the job runs, which is the same on all its nodes."""

    python: str
    folder: str
    """The working folder."""
    home: str
    """gpu-panel's own folder, on a disk that all nodes share."""


def job_of(spec: RunSpec, nodes: int | None, per_node: int | None,
           options: Sequence[str] = ()) -> Request:
    """What to ask for: `nodes` and `per_node` as given, else as the spec says, else 1. `options`:
    KEY=VALUE or KEY each. Raises UserError."""
    ids, mode = spec.devices.ids, modes.get(spec.parallel.mode)
    told = len(ids) if ids else spec.devices.pick
    for text in options:
        _require_option(text)
    return Request(nodes or mode.nodes(spec.parallel.nodes), per_node or told or 1, tuple(options))


def _require_option(text: str) -> None:
    key, equals, value = text.partition("=")
    if not re.fullmatch(r"[a-z][a-z0-9-]+", key):
        raise UserError(f"-o {text!r}: expected an option of sbatch by its long name, without --, "
                        "such as account=vision or exclusive")
    if key in _OURS:
        raise UserError(f"-o {text!r}: the script depends on its own; --nodes and --gpus say how "
                        "many, --set run.env.NAME=… adds to the environment")
    if equals and (not value or not value.isprintable() or set(value) & set("'\"\\")):
        raise UserError(f"-o {text!r}: expected a value without quotes, backslashes and control "
                        "characters")


def batch_script(spec: RunSpec, job: Request, place: Place, run: str | None = None) -> str:
    """The text of the script. Raises SpecError with all that does not fit, and UserError for a
    text that can't stand in a script.

    run: the path of the run folder that the job was given when it was submitted. None: the ranks
    make one.
    """
    spec = placed(spec, job).spec
    words = [place.python, WORKER, *arguments(spec, None)]
    env = [f"{name}={shlex.quote(text)}" for name, text in spec.run.env.items()]
    for word in (*words, *env, place.folder, place.home, run or ""):
        _refuse_control_characters(word)
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", spec.name).strip("-") or "run"
    options: dict[str, str | None] = {"job-name": name}
    tasks = job.per_node if modes.get(spec.parallel.mode).process_a_device else 1
    options |= {"nodes": str(job.nodes), "ntasks-per-node": str(tasks)}
    if not _on_cpu(spec):
        options["gpus-per-node"] = str(job.per_node)
    limit, grace = spec.run.limit, max(math.ceil(spec.run.grace), 1)
    if limit is not None and any(o.partition("=")[0] == "time" for o in job.options):
        # A job has one time, at whose end it either goes back to the queue or is over.
        raise SpecError([Problem("run.limit", limit, "is the time of a job of Slurm, and --time "
                                 "(-o time=…) another one: leave one out")])
    if limit is None:
        options |= {"signal": f"USR1@{WARNING}", "requeue": None}
    else:  # Slurm's own limit ends it; that counts from the start of the job, in minutes
        options |= {"signal": f"USR1@{grace}", "no-requeue": None,
                    "time": str(math.ceil((limit + grace) / 60))}
    options |= {"open-mode": "append"}
    for key, equals, value in (text.partition("=") for text in job.options):
        options[key] = value if equals else None
    head = [f"#SBATCH --{k}" + ("" if v is None else f"={shlex.quote(v)}")
            for k, v in options.items()]
    text = _TEMPLATE if job.nodes > 1 else _TEMPLATE.replace(_MEET, _ALONE)
    if run is not None:
        text = text.replace(_OF_ITS_OWN, _GIVEN).replace(_RANKS, _RANKS_WITH_LOGS)
    values = {"@HEAD@": "\n".join(head), "@FOLDER@": shlex.quote(place.folder),
              "@HOME@": shlex.quote(place.home), "@PYTHON@": shlex.quote(place.python),
              "@ENV@": "".join(f"export {one}\n" for one in env),
              "@UP@": "" if limit is None else _UP, "@TASKS@": str(tasks),
              "@RUN@": shlex.quote(run or ""),
              "@LOGS@": shlex.quote(pattern(run or "", "ranks/%5t.log")),
              "@WORDS@": shlex.join(words)}
    # Each once: a value that looks like a marker stays as it is.
    return re.sub("|".join(values), lambda m: values[m.group()], text)


def pattern(folder: str, name: str) -> str:
    """A file name for Slurm, in which only `name` has placeholders such as %t. Raises UserError:
    Slurm takes no backslash for itself."""
    if "\\" in folder:
        raise UserError(f"{folder}: Slurm can't write into a folder with a backslash in its name")
    return f"{folder.replace('%', '%%')}/{name}"


def placed(spec: RunSpec, job: Request) -> Checked:
    """`spec` without what Slurm decides: nodes, their devices and where the ranks meet. Raises
    SpecError."""
    p, fresh, mode = spec.parallel, RunSpec().parallel, modes.get(spec.parallel.mode)
    problems = []
    if spec.devices.hosts is not None:
        problems.append(Problem("devices.hosts", spec.devices.hosts,
                                "Slurm chooses the hosts; leave it out"))
    if spec.task.command is not None:
        problems.append(Problem("task.command", None,
                                "a batch script is written for tasks; for a command of your own, "
                                "give srun the line that gpu-engine plan prints"))
    if job.nodes > 1 and not mode.process_a_device:
        problems.append(Problem("parallel.mode", mode.name,
                                f"is one process, and {job.nodes} nodes are asked for; take ddp"))
    if problems:
        raise SpecError(problems)
    ids = ["cpu:0"] if _on_cpu(spec) else None
    spec = replace(spec, devices=replace(spec.devices, ids=ids, pick=None), parallel=replace(
        p, nodes=job.nodes if mode.several_nodes else p.nodes, node_rank=fresh.node_rank,
        node_devices=None, master_addr=fresh.master_addr, master_port=fresh.master_port))
    ranks = mode.local_processes(job.per_node)
    kind = "cpu" if ids else "gpu"
    devices = tuple(Device(f"cpu:{i}" if ids else str(i), kind, kind, index=i)
                    for i in range(1 if mode.process_a_device else job.per_node))
    layout = Layout(0, 0, 1, ranks * job.nodes, ranks, 0, job.nodes, "", 0, "srun")
    checked = check(spec, Inventory(devices, "cpu" if ids else "nvml"), layout)
    if not mode.process_a_device and mode.most_devices and job.per_node > mode.most_devices:
        checked = replace(checked, problems=(*checked.problems, Problem(
            "parallel.mode", mode.name,
            f"trains on {mode.most_devices} and {job.per_node} are asked for; take ddp")))
    if checked.problems:
        raise SpecError(checked.problems)
    return checked


def _on_cpu(spec: RunSpec) -> bool:
    return bool(spec.devices.ids) and all(i.startswith("cpu:") for i in spec.devices.ids or ())


def _refuse_control_characters(text: str) -> None:
    for char in text:
        if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp"):
            raise UserError(f"{text!r}: holds the character {char!r}, which can't stand in a batch "
                            "script")


_MEET = """\
# A numeric address that other nodes can reach: a node's own name often means 127.0.1.1 on it.
address() {
    getent ahosts "$1" | awk '$1 !~ /^(127[.]|0[.]0[.]0[.]0$|::1?$|fe80:)/ { print $1; exit }'
}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
[ -n "$head" ] || fail "scontrol names no node for this job (nodes: $SLURM_JOB_NODELIST)"
MASTER_ADDR=$(address "$head")
if [ -z "$MASTER_ADDR" ]; then
    known=$(scontrol show node "$head" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p' | head -n 1)
    [ -z "$known" ] || MASTER_ADDR=$(address "$known")
fi
[ -n "$MASTER_ADDR" ] || fail "the first node, $head, has no address that others can reach"
"""
_ALONE = "MASTER_ADDR=127.0.0.1\n"
_OF_ITS_OWN = """\
# The run's folder is known by the job's number, so that a requeued job goes on in it.
run=slurm-$SLURM_JOB_ID
path=$GPU_PANEL_HOME/runs/$run
state=$path/state.json
if [ "${SLURM_RESTART_COUNT:-0}" -eq 0 ] && [ -e "$state" ]; then
    fail "$path is the run of an earlier job with this number; rename it"
fi
"""
_GIVEN = """\
run=@RUN@
path=$run
state=$path/state.json
[ -e "$state" ] || fail "the run folder $path is missing on $(hostname)"
"""
_UP = """\
if [ -z "$cancelled" ] && [ ! -e "$asked" ] && stopped; then
    echo "time was up: stopped and saved"
    exit 0
fi
"""
_RANKS = "srun --kill-on-bad-exit=1 --distribution=block"
_RANKS_WITH_LOGS = f"{_RANKS} --open-mode=append --output=@LOGS@"
_TEMPLATE = """\
#!/bin/bash
@HEAD@

fail() { echo "gpu-panel: $1" >&2; exit 2; }

cancelled=
trap 'cancelled=1' TERM INT

cd -- @FOLDER@ || fail "the working folder is missing on $(hostname)"
export GPU_PANEL_HOME=@HOME@
@ENV@""" + _MEET + """\
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE  # what a shell inherits would come first
export GPU_PANEL_SLURM_JOB=$SLURM_JOB_ID
export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
# srun does not take over --cpus-per-task from sbatch since Slurm 22.05.
[ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
# Where Slurm binds no cores, each rank would have as many threads as the node has cores.
if [ -z "$OMP_NUM_THREADS" ]; then
    threads=${SLURM_CPUS_PER_TASK:-$((${SLURM_CPUS_ON_NODE:-1} / @TASKS@))}
    export OMP_NUM_THREADS=$((threads > 0 ? threads : 1))
fi

""" + _OF_ITS_OWN + """\
# gpu-engine stop leaves this file: the job does not go back to the queue.
asked="$path/stop"
if [ -e "$asked" ]; then
    echo "the run was stopped: not started again"
    exit 0
fi
before=$(cat "$state" 2>/dev/null)

""" + _RANKS + """ @WORDS@ --folder "$run" &
srun=$!
wait "$srun"
code=$?
while [ -n "$cancelled" ] && kill -0 "$srun" 2>/dev/null; do wait "$srun"; code=$?; done
[ $code -ne 0 ] || exit 0

# Ranks that were warned have saved and stopped: the job goes back to the queue. Not if a person
# has stopped or cancelled it, nor if the state is still that of the previous attempt.
stopped() {
    [ $code -eq 75 ] && return 0
    [ "$(cat "$state" 2>/dev/null)" != "$before" ] && @PYTHON@ -c \\
        'import json, sys; sys.exit(json.load(open(sys.argv[1]))["state"] != "stopped")' "$state"
}
@UP@if [ -z "$cancelled" ] && [ ! -e "$asked" ] && stopped \\
        && [ "$(squeue -h -j "$SLURM_JOB_ID" -o %T)" = RUNNING ]; then
    echo "stopped and saved: job $SLURM_JOB_ID goes back to the queue"
    scontrol requeue "$SLURM_JOB_ID" && exit 0
fi
exit $code
"""
