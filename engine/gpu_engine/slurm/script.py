"""The batch script with which Slurm runs a spec. Pure: asks neither Slurm nor the machine.

It has one line: on each node our supervisor in the foreground (`on_node`). What a person
chose is in the script as quoted words only.
"""

from __future__ import annotations

import math
import re
import shlex
import unicodedata
from collections.abc import Mapping
from dataclasses import replace

from gpu_engine.common.errors import Problem, SpecError, UserError
from gpu_engine.common.programs import own_program
from gpu_engine.devices.records import Device, Inventory
from gpu_engine.plan.build import arguments
from gpu_engine.plan.check import Checked, check
from gpu_engine.runs.job import Request
from gpu_engine.spec import modes
from gpu_engine.spec.host_names import SLURM, parse_all
from gpu_engine.spec.schema import RunSpec

_HOSTS = "devices.hosts"
WARNING = 120
"""Seconds before the time limit at which Slurm warns the ranks, so that they save, unless
`-o signal=USR1@N` says otherwise."""
_BEGINNING = 600
"""Seconds from the start of the job to its first step that are allowed for."""
OF_THE_JOB = "-"
"""Stands for the run folder that is called after the job's number."""
_OURS = frozenset((
    "nodes", "gpus", "gpus-per-node", "ntasks", "ntasks-per-node", "gpus-per-task",
    "ntasks-per-gpu", "requeue", "no-requeue", "open-mode", "clusters", "array", "wrap", "export",
    "parsable", "wait", "test-only", "chdir", "input", "help", "usage", "version"))
"""Options of sbatch that `-o` can't give."""


def asked_of(spec: RunSpec) -> Request:
    """What a spec whose devices.hosts name Slurm asks of it. Raises SpecError, UserError."""
    entries, run = parse_all(spec.devices.hosts or ()), spec.run
    names = [entry.host for entry in entries]
    if names != [SLURM]:
        raise SpecError([Problem(_HOSTS, spec.devices.hosts,
                                 "a run is on Slurm's nodes or on hosts, not on both")])
    entry, cpu = entries[0], on_cpu(spec)
    if entry.ids and not cpu and entry.partition is None:
        raise SpecError([Problem(_HOSTS, spec.devices.hosts,
                                 "Slurm chooses the devices: say how many (-n 2)")])
    if cpu and spec.devices.pick:
        raise SpecError([Problem("devices.pick", spec.devices.pick,
                                 f"{entry} says how many already")])
    options = {"partition": entry.partition} if entry.partition else {}
    for key, value in (options | run.sbatch).items():
        _require_option(key, value)
    given = _seconds(run.sbatch.get("time", ""))
    if given is not None and 0 < given <= _warning(run.sbatch):  # 0 is no limit
        raise SpecError([Problem(
            "run.sbatch.time", run.sbatch["time"],
            f"Slurm warns the ranks {_warning(run.sbatch)} s before, so that they save: they would "
            "stop at once, each time; give more time, or -o signal=USR1@N, N seconds before")])
    if entry.partition and run.sbatch.get("partition", entry.partition) != entry.partition:
        raise SpecError([Problem("run.sbatch.partition", run.sbatch["partition"],
                                 f"devices.hosts={entry} names another; leave one out")])
    return Request(spec.parallel.nodes, len(entry.ids) if cpu else spec.devices.pick or 1, tuple(
        f"{key}={value}" if value else key for key, value in (options | run.sbatch).items()))


def _require_option(key: str, value: str) -> None:
    """Raises SpecError."""
    why = None
    if not re.fullmatch(r"[a-z][a-z0-9-]+", key):
        why = "expected an option of sbatch by its long name, without --, such as account=vision " \
            "or exclusive"
    elif key in _OURS:
        why = "the script depends on its own; --nodes and -n say how many, --set run.env.NAME=… " \
            "adds to the environment"
    elif key == "signal" and not re.fullmatch(r"USR1@\d{1,5}", value):
        why = "the script depends on this signal; expected USR1@N, N seconds before the time limit"
    elif not value.isprintable() or set(value) & set("'\"\\"):
        why = "expected a value without quotes, backslashes and control characters"
    if why is not None:
        raise SpecError([Problem(f"run.sbatch.{key}", value, why)])


def _warning(options: Mapping[str, str | None]) -> int:
    """In seconds."""
    return int((options.get("signal") or f"@{WARNING}").partition("@")[2])


def _seconds(time: str) -> int | None:
    """A time as sbatch reads it: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; None: it is none of these,
    such as "UNLIMITED"."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time)
    if found is None:
        return None
    days, first, second, third = (int(text or 0) for text in found.groups())
    if found[1] is None and found[4] is None:
        return 60 * first + second
    return ((24 * days + first) * 60 + second) * 60 + third


def batch_script(spec: RunSpec, folder: str, home: str, run: str | None = None) -> str:
    """The text of the script. Raises SpecError with all that does not fit, and UserError for a
    text that can't stand in a script.

    folder, home: the working folder, and gpu-panel's own, on disks that all nodes share.

    run: the path of the run folder that the job was given when it was submitted, with the spec in
    it. None: the job makes one.
    """
    planned = placed(spec).spec
    words = [*own_program("gpu_engine.on_node", run or OF_THE_JOB),
             *(arguments(spec, None) if run is None else ())]
    for word in (*words, folder, home):
        for char in word:
            if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp"):
                raise UserError(f"{word!r}: holds the character {char!r}, which can't stand in a "
                                "batch script")
    head = [f"#SBATCH --{k}" + ("" if v is None else f"={shlex.quote(v)}")
            for k, v in _asked(planned, asked_of(spec)).items()]
    values = {"@HEAD@": "\n".join(head), "@FOLDER@": shlex.quote(folder),
              "@HOME@": shlex.quote(home), "@WORDS@": shlex.join(words)}
    # Each once: a value that looks like a marker stays as it is.
    return re.sub("|".join(values), lambda m: values[m.group()], _TEMPLATE)


def _asked(spec: RunSpec, job: Request) -> dict[str, str | None]:
    """The options of sbatch."""
    asked: dict[str, str | None] = {
        "job-name": re.sub(r"[^A-Za-z0-9_.-]", "-", spec.name).strip("-") or "run",
        "nodes": str(job.nodes), "ntasks-per-node": "1"}
    if not on_cpu(spec):
        asked["gpus-per-node"] = str(job.per_node)
    given = {key: value if equals else None
             for key, equals, value in (text.partition("=") for text in job.options)}
    if not {"cpus-per-task", "cpus-per-gpu"} & set(given):
        # A task has one core unless it asks for more: for each rank, and each process that loads
        # its data.
        asked["cpus-per-task"] = str(job.per_node * (1 if on_cpu(spec) else 1 + spec.train.workers))
    if (limit := spec.run.limit) is not None:  # the supervisor ends it, some time after the start
        seconds = limit + spec.run.grace + _warning(given) + _BEGINNING
        asked["time"] = str(math.ceil(seconds / 60))
    return asked | {"signal": f"USR1@{WARNING}", "requeue": None, "open-mode": "append"} | given


def pattern(folder: str, name: str) -> str:
    """A file name for Slurm, in which only `name` has placeholders such as %t. Raises UserError:
    Slurm takes no backslash for itself."""
    if "\\" in folder:
        raise UserError(f"{folder}: Slurm can't write into a folder with a backslash in its name")
    return f"{folder.replace('%', '%%')}/{name}"


def placed(spec: RunSpec) -> Checked:
    """`spec` as it is checked before the job waits, and without what Slurm decides: nodes, their
    devices and where the ranks meet. Raises SpecError."""
    job, p, fresh, cpu = asked_of(spec), spec.parallel, RunSpec().parallel, on_cpu(spec)
    several = job.nodes > 1
    # Those of a node are known when the job begins: these stand for them.
    kind = "cpu" if cpu else "gpu"
    devices = tuple(Device(f"cpu:{i}" if cpu else str(i), kind, kind, index=i)
                    for i in range(job.per_node))
    spec = replace(
        spec, devices=replace(spec.devices, ids=[d.id for d in devices], pick=None, hosts=None),
        run=replace(spec.run, sbatch={}), parallel=replace(
            p, mode=modes.over_hosts(job.nodes, p.mode),
            nodes=job.nodes if several else fresh.nodes, node_rank=fresh.node_rank,
            node_devices=[job.per_node] * job.nodes if several else None,
            # An address stands for the first node's: this machine is none of them.
            master_addr="192.0.2.1" if several else fresh.master_addr,
            master_port=fresh.master_port if several else p.master_port))
    checked = check(spec, Inventory(devices, "cpu" if cpu else "nvml"))
    if checked.problems:
        raise SpecError(checked.problems)
    return checked


def on_cpu(spec: RunSpec) -> bool:
    """Whether the run is on CPU slots."""
    named = spec.devices.ids or [i for e in parse_all(spec.devices.hosts or ()) for i in e.ids]
    return bool(named) and all(i.startswith("cpu:") for i in named)


_TEMPLATE = """\
#!/bin/bash
@HEAD@

cd -- @FOLDER@ || { echo "gpu-panel: the working folder is missing on $(hostname)" >&2; exit 2; }
export GPU_PANEL_HOME=@HOME@ GPU_PANEL_SLURM_JOB=$SLURM_JOB_ID
# srun does not take over --cpus-per-task from sbatch since Slurm 22.05.
[ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
exec srun --ntasks-per-node=1 --kill-on-bad-exit=1 @WORDS@
"""
