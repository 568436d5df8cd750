"""RunSpec: everything a person chooses about a run, validated.

The keys are a public contract (presets, `--set`, other people's scripts): add, never rename.
Reading collects every problem instead of stopping at the first, names the key, the value and
what would do, and guesses what a misspelt key meant. Whether the values fit *each other and
this machine* is not asked here but in `plan.check`.
"""

from __future__ import annotations

import difflib
import json
import math
import shlex
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct, field

from gpu_engine.common.errors import Problem, SpecError, UserError

Count = Annotated[int, Meta(ge=1)]
Whole = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
NotNegative = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]

Mode = Literal["single", "dp", "ddp", "multinode"]
MODE_NAMES = {"single": "single", "dp": "DataParallel", "ddp": "DDP", "multinode": "multi-node"}


class TaskSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """What is trained: a task class (`use`) or the person's own command, never both."""

    use: str | None = None
    """`module:Class` or `path/to/file.py:Class`."""
    command: list[str] | None = None
    """Own script, unchanged: the argument list; `{batch.per_gpu}` and the like are filled in."""
    params: dict[str, Any] = field(default_factory=dict)
    """The task's own fields, by name."""


class DevicesSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Which devices: named (`ids`), or the freest at launch (`pick`)."""

    ids: list[str] | None = None
    """NVML index, GPU UUID, MIG UUID or CPU slot ("cpu:0")."""
    pick: Count | None = None
    """How many of the freest devices to take at launch."""
    share: bool = False
    """Take GPUs although another run holds them or another process computes on them."""


class ParallelSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """How the work is spread over devices and machines."""

    mode: Mode = "single"
    nodes: Count = 1
    """multinode: how many machines take part."""
    node_rank: Whole = 0
    """multinode: which of them this one is, counted from 0."""
    master_addr: str = "127.0.0.1"
    """multinode: numeric address of node 0, reachable from every node."""
    master_port: Port | None = None
    """TCP port on node 0; 0 on one machine: any free one. None: 29500 for several machines, any
    free one on a single machine."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """auto: nccl on GPUs, gloo on CPU."""
    launcher: Literal["auto", "direct", "torchrun"] = "auto"
    """auto: rank by rank on one machine, torchrun for several."""
    timeout: Positive = 300.0
    """Seconds that a collective may wait before the ranks give up."""
    bucket_cap_mb: Count | None = None
    """DDP's gradient bucket in MiB; None leaves PyTorch's own."""
    static_graph: bool = False
    """DDP: promise that every step uses the same parameters in the same order."""
    find_unused: bool = False
    """DDP: look for parameters that a step did not use (slower)."""


class BatchSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """How many examples a step sees: global = per_gpu × replicas × accumulate."""

    size: Count = 64
    meaning: Literal["global", "per_gpu"] = "global"
    """Whether `size` is what all replicas see in a step together, or one replica's share."""
    accumulate: Count = 1
    """Backward passes a step."""


class AmpSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Mixed precision."""

    dtype: Literal["off", "bf16", "fp16"] = "off"
    """fp16 comes with a GradScaler."""
    tf32: bool = False
    """Let float32 matrix products, convolutions and recurrent layers use TF32 on GPUs that have
    it; false leaves it as PyTorch or the task has it."""


class TrainSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """How long, how fast, and what is kept."""

    epochs: Count | None = None
    steps: Count | None = None
    """Optimizer steps in all; one of epochs | steps (neither: one epoch)."""
    lr: Positive = 3e-4
    lr_scale: Literal["none", "linear", "sqrt"] = "none"
    """Scale lr by the global batch over `lr_reference_batch`, or by its square root."""
    lr_reference_batch: Count | None = None
    seed: Whole = 0
    clip: NotNegative = 0.0
    """Largest gradient norm; 0 leaves gradients alone."""
    workers: Whole = 2
    """DataLoader worker processes a rank."""
    checkpoint_every: Whole = 500
    """Steps between checkpoints; 0 saves at the end alone."""
    checkpoint_async: bool = True
    """Copy what a checkpoint holds to host memory and write it while training goes on; false, or
    where there is no room for the copy: training waits until it is written."""
    keep: Annotated[int, Meta(ge=2)] = 3
    """How many of the newest checkpoints stay; at least 2, as the newest may be damaged."""
    best: str | None = None
    """Evaluation value whose best checkpoint is kept too: "loss", or "max:accuracy"."""
    eval_every: Whole = 0
    """Steps between evaluations; 0 evaluates after each epoch and at the end."""
    restarts: Whole = 0
    """Whole-run restarts from the last checkpoint after a failure."""
    on_nonfinite: Literal["stop", "skip", "continue"] = "stop"
    """What to do when the loss of a step is not a finite number."""
    hang_timeout: NotNegative = 0.0
    """Seconds that a rank may stand still after its first step before the run is ended as failed,
    with every thread's stack in the logs; longer than an evaluation or a checkpoint takes. 0: wait
    for ever."""


class HowSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """How the processes are run."""

    python: str | None = None
    """Interpreter for the ranks (needs torch alone); None: the one gpu-panel runs in."""
    grace: NotNegative = 60.0
    """Seconds between asking ranks to stop and ending them."""
    log_mb: Count = 64
    """MiB of output kept a rank in the log, and as much again of what came before."""
    grad_norm: bool = False
    """Of a person's own script: also record the norm of the gradients of each step."""


class RunSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything a person chooses about one run."""

    name: str = "run"
    task: TaskSpec = field(default_factory=TaskSpec)
    devices: DevicesSpec = field(default_factory=DevicesSpec)
    parallel: ParallelSpec = field(default_factory=ParallelSpec)
    batch: BatchSpec = field(default_factory=BatchSpec)
    amp: AmpSpec = field(default_factory=AmpSpec)
    train: TrainSpec = field(default_factory=TrainSpec)
    run: HowSpec = field(default_factory=HowSpec)


SECTIONS: dict[str, type[Struct]] = {
    "task": TaskSpec,
    "devices": DevicesSpec,
    "parallel": ParallelSpec,
    "batch": BatchSpec,
    "amp": AmpSpec,
    "train": TrainSpec,
    "run": HowSpec,
}

_ONE_OF = (("task.use", "task.command"), ("devices.ids", "devices.pick"),
           ("train.epochs", "train.steps"))
_MAX_NAME = 80


# --- reading -----------------------------------------------------------------------------------

def from_dict(data: dict[str, Any]) -> RunSpec:
    """Validate a nested dict, as TOML gives it.

    Raises SpecError with every problem found.
    """
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key == "name":
            values["name"] = _name(value, problems)
        elif key not in SECTIONS:
            problems.append(_unknown(key, ["name", *SECTIONS]))
        elif not isinstance(value, dict):
            problems.append(Problem(key, value, f"expected a section: write [{key}] and its keys"))
        else:
            values[key] = _section(key, value, problems)
    for left, right in _ONE_OF:
        if _given(data, left) and _given(data, right):
            problems.append(Problem(left, _look(data, left), f"give this or {right}, not both"))
    if problems:
        raise SpecError(problems)
    return RunSpec(**values)


def load(path: Path) -> RunSpec:
    """Read a preset file. Raises SpecError for what is in it, UserError where it can't be read."""
    return from_dict(read_toml(path))


def read_toml(path: Path) -> dict[str, Any]:
    """Read TOML as a dict. Raises UserError naming file and place."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as err:
        raise UserError(f"{path}: cannot be read: {err}") from None
    except tomllib.TOMLDecodeError as err:
        raise UserError(f"{path}: not valid TOML: {err}") from None
    except RecursionError:
        raise UserError(f"{path}: nested too deeply to be a preset") from None


def apply_sets(data: dict[str, Any], assignments: Iterable[str]) -> None:
    """Apply several `key=value` to a nested dict, in place, as `--set` does.

    Naming another task drops the parameters that were meant for the one before. Raises
    SpecError.
    """
    given = list(assignments)
    uses = [a.partition("=")[2] for a in given if a.partition("=")[0].strip() == "task.use"]
    if uses and uses[-1] != _look(data, "task.use"):
        task = data.get("task")
        if isinstance(task, dict):
            task.pop("params", None)
    for assignment in given:
        apply_set(data, assignment)


def apply_set(data: dict[str, Any], assignment: str) -> None:
    """Apply one `key=value` to a nested dict, in place.

    The value is read as the key's own type asks: "512" is a number for batch.size and a string
    for name; "0,1" is a list for devices.ids. Setting one side of a pair of which only one may
    be given (devices.ids | devices.pick, …) drops the other. Raises SpecError.
    """
    key, eq, text = assignment.partition("=")
    key = key.strip()
    if not eq or not key:
        raise SpecError([Problem("", None, f"--set {assignment!r}: expected key=value, "
                                           "for example batch.size=512")])
    section, _, name = key.partition(".")
    if key == "name":
        data["name"] = text
        return
    if section not in SECTIONS:
        raise SpecError([_unknown(key, [*known_keys(), "name"], value=text)])
    if section == "task" and name.startswith("params."):
        data.setdefault("task", {}).setdefault("params", {})[name[7:]] = _toml_value(text)
        return
    hints = _types(section)
    if name not in hints:
        raise SpecError([_unknown(key, known_keys(), value=text)])
    for pair in _ONE_OF:
        if key in pair:
            other = pair[1] if key == pair[0] else pair[0]
            data.get(section, {}).pop(other.partition(".")[2], None)
    data.setdefault(section, {})[name] = _read_text(text, hints[name])


def known_keys() -> list[str]:
    """Every dotted key, in the order of the sections."""
    return [f"{s}.{f}" for s, struct in SECTIONS.items() for f in struct.__struct_fields__]


# --- writing -----------------------------------------------------------------------------------

def to_dict(spec: RunSpec, *, defaults: bool = True) -> dict[str, Any]:
    """The spec as a nested dict of plain values without None; `defaults=False` leaves out
    what equals the default."""
    out: dict[str, Any] = {"name": spec.name}
    for section, struct in SECTIONS.items():
        base = struct()
        part = getattr(spec, section)
        kept = {
            name: _plain(value)
            for name in struct.__struct_fields__
            if (value := getattr(part, name)) is not None
            and (defaults or value != getattr(base, name))
            and value != {}
        }
        if kept:
            out[section] = kept
    return out


def differences(base: RunSpec, spec: RunSpec) -> list[str]:
    """The `key=value` assignments that make `base` into `spec` under `apply_set`."""
    out = []
    if base.name != spec.name:
        out.append(f"name={spec.name}")
    for section, struct in SECTIONS.items():
        old, new = getattr(base, section), getattr(spec, section)
        for name in struct.__struct_fields__:
            before, after = getattr(old, name), getattr(new, name)
            if name == "params":
                out += [f"task.params.{k}={_set_text(v, free=True)}" for k, v in after.items()
                        if before.get(k, ...) != v]
            elif before != after and after is not None:
                out.append(f"{section}.{name}={_set_text(after)}")
    return out


def to_toml(spec: RunSpec) -> str:
    """The whole spec as TOML."""
    import tomlkit

    return tomlkit.dumps(to_dict(spec))


# --- helpers -----------------------------------------------------------------------------------

@cache
def _types(section: str) -> dict[str, Any]:
    """The type of each key of a section. Kept, as to work them out costs more than to read a spec,
    and the panel reads one at every key."""
    return get_type_hints(SECTIONS[section], include_extras=True)


def _section(name: str, given: dict[str, Any], problems: list[Problem]) -> Struct | None:
    struct = SECTIONS[name]
    hints = _types(name)
    values = {}
    for key, value in given.items():
        if key not in hints:
            near = [f"{name}.{f}" for f in hints]
            problems.append(_unknown(f"{name}.{key}", near, value=value))
            continue
        if (name, key) == ("devices", "ids") and isinstance(value, list):
            value = [str(v) if type(v) is int else v for v in value]
        try:
            values[key] = _finite(msgspec.convert(value, hints[key]))
        except msgspec.ValidationError as err:
            wanted = _would_do(hints[key], value, err)
            if (name, key) == ("task", "command") and isinstance(value, str):
                wanted = _of_command(value)
            problems.append(Problem(f"{name}.{key}", value, wanted))
    return struct(**values)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise msgspec.ValidationError("not finite")
    return value


def _name(value: Any, problems: list[Problem]) -> str:
    ok = isinstance(value, str) and value.strip() and len(value) <= _MAX_NAME
    if not ok or any(not c.isprintable() for c in value):
        problems.append(Problem("name", value, "expected a short text in one line, "
                                               f"at most {_MAX_NAME} characters"))
        return "run"
    return value


def _unknown(key: str, known: list[str], *, value: Any = None) -> Problem:
    last = key.rpartition(".")[2]
    near = [k for k in known_keys() if k.rpartition(".")[2] == last]  # right word, wrong section
    near = near[:1] or difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if near:
        return Problem(key, value, f"there is no such key; did you mean {near[0]}?")
    section = key.partition(".")[0]
    inside = [k.partition(".")[2] for k in known if k.startswith(section + ".")]
    choices = inside or known
    return Problem(key, value, "there is no such key; there are " + ", ".join(choices))


def _of_command(text: str) -> str:
    """What is wrong with a command that is one text, as it was typed or in a file."""
    for end, missing in (("", ""), ('"', 'the quote " is not closed'),
                         ("'", "the quote ' is not closed")):
        try:
            words = shlex.split(text + end)
        except ValueError as err:
            if "escaped" in str(err):
                break
            continue
        return missing or f"expected a list of texts: {json.dumps(words)}"
    return "ends in a backslash with nothing behind it"


def _would_do(hint: Any, value: Any, err: Exception) -> str:
    """What would do for a field of type `hint`, in words."""
    choices = _choices(hint)
    if choices:
        near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
        guess = f"; did you mean {near[0]}?" if near else ""
        return "expected one of " + ", ".join(choices) + guess
    core, meta = _core(hint)
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false",
             list: "a list of texts", dict: "a table"}.get(core)
    if words is None:
        return str(err)
    bounds = []
    for m in meta:
        if m.ge is not None:
            bounds.append(f"at least {m.ge}")
        if m.gt is not None:
            bounds.append(f"greater than {m.gt}")
        if m.le is not None:
            bounds.append(f"at most {m.le}")
    return f"expected {words}" + (" " + " and ".join(bounds) if bounds else "")


def _choices(hint: Any) -> list[str]:
    core, _ = _core(hint)
    return [str(a) for a in get_args(core)] if get_origin(core) is Literal else []


def _core(hint: Any) -> tuple[Any, list[Meta]]:
    """Strip `| None` and Annotated: the plain type and its bounds."""
    metas: list[Meta] = []
    while True:
        if get_origin(hint) is Annotated:
            hint, *extra = get_args(hint)
            metas += [m for m in extra if isinstance(m, Meta)]
            continue
        args = [a for a in get_args(hint) if a is not type(None)]
        if len(args) == 1 and type(None) in get_args(hint):
            hint = args[0]
            continue
        if get_origin(hint) in (list, dict):
            hint = get_origin(hint)
        return hint, metas


def _read_text(text: str, hint: Any) -> Any:
    core, _ = _core(hint)
    if core is str or get_origin(core) is Literal:
        return text
    if core is list:
        value = _toml_value(text)
        if isinstance(value, list):
            return value
        return [part.strip() for part in text.split(",") if part.strip()]
    return _toml_value(text)


def _toml_value(text: str) -> Any:
    """`text` as a TOML value, or as the string it is where that does not parse."""
    try:
        parsed = tomllib.loads(f"v = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return parsed["v"] if set(parsed) == {"v"} else text


def _set_text(value: Any, *, free: bool = False) -> str:
    """`value` as `apply_set` reads it back; `free`: into a field without a known type."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A free string that would read back as something else needs TOML's quotes.
        return _quote(value) if free and _toml_value(value) != value else value
    if isinstance(value, list | tuple):
        plain = all(isinstance(v, str) and v and v == v.strip() and "," not in v for v in value)
        if plain and value and not free and _toml_value(",".join(value)) != list(value):
            return ",".join(value)
        inner = (_quote(v) if isinstance(v, str) else _set_text(v) for v in value)
        return "[" + ", ".join(inner) + "]"
    if isinstance(value, dict):
        inner = (f"{_quote(k)} = {_quote(v) if isinstance(v, str) else _set_text(v)}"
                 for k, v in value.items())
        return "{" + ", ".join(inner) + "}"
    return repr(value) if isinstance(value, float) else str(value)


def _quote(text: str) -> str:
    import json

    # JSON's escapes are TOML's, but for DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _look(data: dict[str, Any], key: str) -> Any:
    section, _, name = key.partition(".")
    part = data.get(section)
    return part.get(name) if isinstance(part, dict) else None


def _given(data: dict[str, Any], key: str) -> bool:
    return _look(data, key) is not None
