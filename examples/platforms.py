"""A plan as the YAML with which SkyPilot or Kubeflow starts the same run. Nothing is sent.

    python examples/platforms.py skypilot multinode > task.yaml     # then: sky launch task.yaml
    python examples/platforms.py kubeflow multinode --set parallel.nodes=4 > job.yaml

The preset and the `--set`s are those of `gpu-engine run`; a command of your own stands behind --.

SkyPilot's keys and variables: https://docs.skypilot.co/en/latest/reference/yaml-spec.html and
https://docs.skypilot.co/en/latest/running-jobs/environment-variables.html
Kubeflow's TrainJob, whose controller sets PET_MASTER_ADDR, PET_MASTER_PORT and PET_NODE_RANK in the
container: https://www.kubeflow.org/docs/components/trainer/user-guides/pytorch/
"""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpu_engine.common.errors import Problem, SpecError, UserError
from gpu_engine.devices.records import Device
from gpu_engine.plan import own_command
from gpu_engine.plan.batch import ranks_a_node
from gpu_engine.plan.build import placeholders
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.spec import modes
from gpu_engine.spec.schema import DevicesSpec, RunSpec
from gpu_engine.spec.write import differences

_HERE = "\0"
"""Where torchrun's options stand by which the nodes meet; no argument can hold it."""


def skypilot(plan: LaunchPlan, devices: Sequence[Device]) -> str:
    """The YAML for `sky launch`. `devices`: those of this machine, which the plan was made for.
    Raises SpecError for what can't be asked for, UserError for a value that YAML can't hold."""
    mine, gpus = _used(plan, devices), plan.device_type != "cpu"
    notes = [*_notes(plan), "Start it with: sky launch FILE. The folder in which you type that is "
                            "sent along (workdir)."]
    resources = {"cpus": f"{len(mine)}+"}
    if gpus:
        resources = {"accelerators": f"{accelerator(mine[0].name)}:{len(mine)}"}
        notes.append(f"The GPU here is {mine[0].name}; sky show-gpus lists the names that SkyPilot "
                     "knows.")
    # SkyPilot counts GPUs; it knows of no slots.
    each = '"$SKYPILOT_NUM_GPUS_PER_NODE"' if gpus else str(plan.local_world_size)
    meet = " ".join(['--nnodes="$SKYPILOT_NUM_NODES"', f"--nproc-per-node={each}",
                     '--node-rank="$SKYPILOT_NODE_RANK"', '--master-addr="$master_addr"',
                     f"--master-port={plan.master_port}", f"--rdzv-conf=timeout={_timeout(plan)}"])
    argv = _command(plan)
    run = " ".join(meet if word == _HERE else shlex.quote(word) for word in argv) + "\n"
    if _HERE in argv:
        run = 'master_addr=$(echo "$SKYPILOT_NODE_IPS" | head -n1)\n' + run
    return _yaml({"name": _label(plan.name), "workdir": ".", "num_nodes": plan.nodes,
                  "resources": resources, "envs": _environment(plan), "run": run}, notes)


def kubeflow(plan: LaunchPlan, devices: Sequence[Device]) -> str:
    """The YAML for `kubectl apply`, as `skypilot`."""
    mine, gpus = _used(plan, devices), plan.device_type != "cpu"
    notes = [*_notes(plan), "Start it with: kubectl apply -f FILE. Code and data must be in the "
                            "runtime's image, or in spec.trainer.image."]
    if gpus:
        notes.append(f"The GPU here is {mine[0].name}; a node selector in the runtime chooses one.")
    resource = {"nvidia.com/gpu" if gpus else "cpu": str(len(mine))}
    meet = [f"--nnodes={plan.nodes}", f"--nproc-per-node={plan.local_world_size}",
            "--node-rank=$(PET_NODE_RANK)", "--master-addr=$(PET_MASTER_ADDR)",
            "--master-port=$(PET_MASTER_PORT)", f"--rdzv-conf=timeout={_timeout(plan)}"]
    command = [each for word in _command(plan)
               for each in (meet if word == _HERE else [_literal(word)])]
    trainer: dict[str, _Value] = {
        "numNodes": plan.nodes, "numProcPerNode": plan.local_world_size,
        "resourcesPerNode": {"requests": resource, "limits": resource},
        "env": [{"name": k, "value": _literal(v)} for k, v in _environment(plan).items()],
        "command": command}
    return _yaml({
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
        "metadata": {"name": _label(plan.name)},
        "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer}}, notes)


def _literal(word: str) -> str:
    """`word` as Kubernetes leaves it alone: it replaces $(NAME) in commands and in values of the
    environment, and reads $$ as one dollar sign."""
    return word.replace("$", "$$")


def _timeout(plan: LaunchPlan) -> int:
    """Seconds that torchrun waits for the other nodes."""
    return max(int(plan.spec.parallel.timeout), 1)


def refuse(spec: RunSpec) -> None:
    """Raise SpecError for what no platform can be asked for, before this machine is looked at."""
    problems = []
    if spec.devices.hosts is not None:
        problems.append(Problem("devices.hosts", spec.devices.hosts,
                                "a platform chooses the machines itself; name devices of this one "
                                "(devices.pick) and parallel.nodes"))
    told = spec.parallel.node_devices
    if told and len(set(told)) > 1:
        problems.append(Problem("parallel.node_devices", told,
                                "all nodes of a platform's job have the same number of devices"))
    command = spec.task.command or []
    if "run.dir" in own_command.used(command):
        problems.append(Problem("task.command", "{run.dir}",
                                "there is no run folder on a platform; name a folder there"))
    if spec.parallel.nodes > 1 and "node_rank" in own_command.used(command):
        problems.append(Problem("task.command", "{node_rank}",
                                "every node gets the same command; torchrun tells it the node's "
                                "number in GROUP_RANK"))
    if problems:
        raise SpecError(problems)


def _used(plan: LaunchPlan, devices: Sequence[Device]) -> list[Device]:
    """The devices of the plan, each once. Raises SpecError for what can't be asked for."""
    refuse(plan.spec)
    used = {d.id for r in plan.ranks for d in r.devices}
    mine, ids = [d for d in devices if d.id in used], plan.spec.devices.ids
    problems = []
    if any(d.is_slice for d in mine):
        problems.append(Problem("devices.ids", ids, "slices of a GPU can't be asked for there; "
                                                    "choose whole GPUs"))
    if len({d.name for d in mine if not d.is_cpu}) > 1:
        problems.append(Problem("devices.ids", ids, "a job has GPUs of one model; here are "
                                + ", ".join(sorted({d.name for d in mine}))))
    if modes.get(plan.mode).process_a_device and len(mine) < plan.local_world_size:
        problems.append(Problem("devices.ids", ids, "each rank gets a GPU of its own there; name "
                                                    "each once"))
    if problems:
        raise SpecError(problems)
    return mine


def _command(plan: LaunchPlan) -> Sequence[str]:
    """The argument list of each node, as `command_line.lines` but without the names of this
    machine's presets and devices; of ranks that several nodes share with `_HERE` in it."""
    spec, command = plan.spec, plan.spec.task.command
    python = spec.run.python or "python"
    if command is None and plan.nodes == 1:
        return (python, "-m", "gpu_engine", "run", *_sets(_placed(plan)))
    if command is None:
        argv: Sequence[str] = (python, "-m", "gpu_engine.worker", *_sets(_placed(plan)))
    else:
        argv = own_command.fill(command, placeholders(plan))
        if not modes.get(plan.mode).process_a_device or own_command.launches_itself(command):
            return argv
    if plan.nodes == 1:
        each = ranks_a_node(spec, plan.local_world_size)[0]
        return own_command.under_torchrun(argv, ("--standalone", f"--nproc-per-node={each}"))
    return own_command.under_torchrun(argv, (_HERE,))


def _placed(plan: LaunchPlan) -> RunSpec:
    """The spec without this machine's device ids and its place among the nodes."""
    spec, fresh = plan.spec, RunSpec().parallel
    used = [d.id for r in plan.ranks for d in r.devices]
    share = spec.devices.share
    if plan.device_type == "cpu":
        devices = DevicesSpec(ids=used, share=share)
    elif plan.nodes == 1:
        devices = DevicesSpec(pick=len(used), share=share)
    else:
        devices = DevicesSpec()
    return replace(spec, devices=devices, parallel=replace(
        spec.parallel, node_rank=fresh.node_rank, master_addr=fresh.master_addr,
        master_port=fresh.master_port, node_devices=None))


def _sets(spec: RunSpec) -> list[str]:
    return [word for one in differences(RunSpec(), spec) for word in ("--set", one)]


def _environment(plan: LaunchPlan) -> dict[str, str]:
    """Output at once, the number of threads that the plan gives the command, and run.env."""
    threads = {k: v for p in plan.processes for k, v in p.env.items() if k == "OMP_NUM_THREADS"}
    own = plan.spec.task.command is not None
    return {"PYTHONUNBUFFERED": "1"} | (threads if own else {}) | plan.spec.run.env


def _notes(plan: LaunchPlan) -> list[str]:
    spec = plan.spec
    notes = [f"{plan.name}: {plan.mode}, {plan.nodes} "
             f"{'node' if plan.nodes == 1 else 'nodes'}, world size {plan.world_size}",
             *plan.sentences()]
    if spec.task.command is None:
        notes.append("The image there needs torch and gpu-panel. Runs and checkpoints are kept "
                     "below GPU_PANEL_HOME; set it to a disk that lasts.")
    else:
        notes.append("The command runs as it is: gpu-panel need not be there, and does not "
                     "observe it.")
    if plan.device_type != "cpu":
        used = ", ".join(d.id for r in plan.ranks for d in r.devices)
        notes.append(f"Planned with GPU {used}; which ones are used is the platform's choice.")
    else:
        notes.append("Planned on CPU slots: no GPU is asked for. Ranks are not bound to cores of "
                     "their own there.")
    alone = spec.task.command is not None or plan.nodes > 1
    kept = [f"train.{k}" for k in ("restarts", "hang_timeout") if getattr(spec.train, k)]
    if alone and kept:
        notes.append(f"Not done there, as no supervisor of gpu-panel runs: {', '.join(kept)}.")
    return notes


def _label(name: str) -> str:
    """A name that both platforms take: a DNS label of at most 40 characters, as Kubernetes adds
    to it."""
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower())
    parts = "-".join(p for p in plain.split("-") if p)
    label = parts if parts[:1].isalpha() else f"run-{parts}"
    return label[:40].rstrip("-")


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


# --- YAML ---------------------------------------------------------------------------------------

_PLAIN = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[a-z_]+", re.IGNORECASE)
_Value = str | int | Mapping[str, "_Value"] | Sequence["_Value"]


def _yaml(document: Mapping[str, _Value], notes: Sequence[str]) -> str:
    """`document` as YAML that every parser reads back as it was, below `notes` as comments. Texts
    and keys are in double quotes or, if of several plain lines, a block: none becomes syntax."""
    out = [line for note in notes for line in textwrap.wrap(
        "".join(c if c.isprintable() else " " for c in note), 96, initial_indent="# ",
        subsequent_indent="#   ", break_long_words=False)]
    return "\n".join([*out, *_mapping(document, "")]) + "\n"


def _mapping(document: Mapping[str, _Value], indent: str) -> list[str]:
    lines: list[str] = []
    for key, value in document.items():
        head = f"{indent}{key if _PLAIN.fullmatch(key) else _flow(key)}:"
        if isinstance(value, Mapping) and value:
            lines += [head, *_mapping(value, indent + "  ")]
        elif isinstance(value, str) and re.fullmatch(r"([!-~][ -~]*\n)+", value):
            lines += [f"{head} |", *(f"{indent}  {line}" for line in value.splitlines())]
        else:
            lines.append(f"{head} {_flow(value)}")
    return lines


def _flow(value: _Value) -> str:
    """A value on one line. Raises UserError for bytes that are no text (a lone surrogate)."""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(k)}: {_flow(v)}" for k, v in value.items()) + "}"
    if not isinstance(value, str):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if re.search("[\ud800-\udfff]", value):
        raise UserError(f"{value!a} holds bytes that are not UTF-8, which YAML can't hold")
    return '"' + re.sub(r'[^ !#-\[\]-~]', lambda c: f"\\U{ord(c[0]):08x}", value) + '"'


def main(words: list[str]) -> str:
    """The YAML that these words of a command line ask for. Raises UserError."""
    from gpu_engine.cli.spec_options import choose_spec
    from gpu_engine.launching.launcher import prepare

    cut = words.index("--") if "--" in words else len(words)
    ours, command = words[:cut], words[cut + 1:]
    sets = [ours[at + 1] for at, word in enumerate(ours[:-1]) if word == "--set"]
    presets = [word for at, word in enumerate(ours[1:]) if word != "--set" and ours[at] != "--set"]
    written = {"skypilot": skypilot, "kubeflow": kubeflow}.get(ours[0] if ours else "")
    if written is None or len(presets) > 1:
        raise UserError("expected skypilot or kubeflow, then a preset and --set KEY=VALUE")
    choice = choose_spec(presets[0] if presets else None, sets, command or None)
    refuse(choice.spec)
    prepared = prepare(choice.spec, base=choice.base, for_here=False)
    return written(prepared.plan, prepared.inventory.devices)


if __name__ == "__main__":
    try:
        sys.stdout.write(main(sys.argv[1:]))
    except UserError as err:
        sys.exit(f"{err.title}: {err}")
