"""A job as a TrainJob of Kubeflow Trainer.

Its controller sets PET_MASTER_ADDR, PET_MASTER_PORT and PET_NODE_RANK in the container:
https://www.kubeflow.org/docs/components/trainer/user-guides/pytorch/
"""

from __future__ import annotations

from gpu_engine.plan.platforms.job import Job
from gpu_engine.plan.platforms.yaml_text import Value, dump


def text(job: Job) -> str:
    """The YAML for `kubectl apply`. Raises UserError for a value that YAML can't hold."""
    notes = [*job.notes, "Start it with: kubectl apply -f FILE. Code and data must be in the "
                         "runtime's image, or in spec.trainer.image."]
    if job.model is not None:
        notes.append(f"The GPU here is {job.model}; a node selector in the runtime chooses one.")
    resource = {"nvidia.com/gpu": str(job.gpus)} if job.gpus else {"cpu": str(job.slots)}
    trainer: dict[str, Value] = {
        "numNodes": job.nodes, "numProcPerNode": job.processes,
        "resourcesPerNode": {"requests": resource, "limits": resource},
        "env": [{"name": k, "value": _literal(v)} for k, v in (job.env or {}).items()],
        "command": _command(job)}
    return dump({
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
        "metadata": {"name": job.name},
        "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer}}, notes)


def _command(job: Job) -> list[str]:
    """The argument list of the container; no shell reads it."""
    options = [f"--nnodes={job.nodes}", f"--nproc-per-node={job.processes}",
               "--node-rank=$(PET_NODE_RANK)", "--master-addr=$(PET_MASTER_ADDR)",
               "--master-port=$(PET_MASTER_PORT)", f"--rdzv-conf=timeout={job.timeout}"]
    return [*map(_literal, job.before), *(options if job.meets else ()),
            *map(_literal, job.behind)]


def _literal(word: str) -> str:
    """`word` as Kubernetes leaves it alone: it replaces $(NAME) in commands and in values of the
    environment, and reads $$ as one dollar sign."""
    return word.replace("$", "$$")
