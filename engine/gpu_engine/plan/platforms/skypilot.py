"""A job as a SkyPilot task.

Its variables and keys: https://docs.skypilot.co/en/latest/running-jobs/environment-variables.html
and https://docs.skypilot.co/en/latest/reference/yaml-spec.html
"""

from __future__ import annotations

import re
import shlex

from gpu_engine.plan.platforms.job import Job
from gpu_engine.plan.platforms.yaml_text import Script, Value, dump


def text(job: Job) -> str:
    """The YAML for `sky launch`. Raises UserError for a value that YAML can't hold."""
    notes = [*job.notes, "Start it with: sky launch FILE. The folder in which you type that is "
                         "sent along (workdir)."]
    resources: dict[str, Value] = {"cpus": f"{job.slots}+"}
    if job.model is not None:
        resources = {"accelerators": f"{accelerator(job.model)}:{job.gpus}"}
        notes.append(f"The GPU here is {job.model}; sky show-gpus lists the names that SkyPilot "
                     "knows.")
    return dump({
        "name": job.name, "workdir": ".", "num_nodes": job.nodes, "resources": resources,
        "envs": job.env or {}, "run": Script(script(job))}, notes)


def script(job: Job) -> str:
    """What bash runs on each node."""
    if not job.meets:
        return shlex.join(job.before) + "\n"
    # SkyPilot counts GPUs; it knows of no slots.
    each = '"$SKYPILOT_NUM_GPUS_PER_NODE"' if job.gpus else str(job.processes)
    options = ['--nnodes="$SKYPILOT_NUM_NODES"', f"--nproc-per-node={each}",
               '--node-rank="$SKYPILOT_NODE_RANK"', '--master-addr="$master_addr"',
               f"--master-port={job.port}", f"--rdzv-conf=timeout={job.timeout}"]
    return ('master_addr=$(echo "$SKYPILOT_NODE_IPS" | head -n1)\n'
            + " ".join([shlex.join(job.before), *options, shlex.join(job.behind)]) + "\n")


_DRIVERS = re.compile(r"NVIDIA|Tesla|GeForce|Graphics|Generation|Device", re.IGNORECASE)
_BUILD = re.compile(r"\b(SXM\d*|PCIE?|HBM\d\w*|NVL)\b", re.IGNORECASE)
_SIZE = re.compile(r"\b(\d+)\s?GB\b", re.IGNORECASE)
_SIZED = {("A100", "80"), ("V100", "32")}
"""Models that SkyPilot names with their memory; all others have one size there."""


def accelerator(model: str) -> str:
    """SkyPilot's name for a GPU that its driver calls `model`: "NVIDIA A100-SXM4-80GB" is
    "A100-80GB"."""
    size = _SIZE.search(model)
    bare = _SIZE.sub(" ", _BUILD.sub(" ", _DRIVERS.sub(" ", model)))
    words = re.findall(r"[A-Za-z0-9]+", bare)
    if words[:1] == ["RTX"] and len(words) > 1:
        words[:2] = ["RTX" + words[1]]
    name = "-".join(words) or "GPU"
    return f"{name}-{size[1]}GB" if size and (name, size[1]) in _SIZED else name
