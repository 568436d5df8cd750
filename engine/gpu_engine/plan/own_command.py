"""A person's own command as the plan sees it: placeholders filled, nothing put through a shell; and
what stands before the program in it. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import Problem
from gpu_engine.spec.schema import RunSpec, keys, known_keys

HOOK = str(Path(__file__).parents[1] / "observe" / "hook")
"""The folder whose sitecustomize lets a person's own command be seen; see observe/install.py."""

PLACEHOLDERS = {
    "batch.per_gpu": "examples in one replica's forward pass",
    "batch.global": "examples in one step over all replicas",
    "batch.size": "the batch size as typed",
    "batch.accumulate": "backward passes a step",
    "lr": "the learning rate, scaled",
    "world_size": "processes over all nodes",
    "replicas": "copies of the model over all nodes",
    "nodes": "machines",
    "node_rank": "which machine this is",
    "master_addr": "numeric address of node 0",
    "master_port": "a free port there",
    "amp": "off, bf16 or fp16",
    "epochs": "train.epochs",
    "steps": "train.steps",
    "seed": "train.seed",
    "workers": "DataLoader workers a rank",
    "run.dir": "this run's folder",
    "run.name": "this run's name",
}

_BATCH = ("batch.per_gpu", "batch.global")
TOLD_BY = {"batch.size": (*_BATCH, "batch.size"), "batch.meaning": _BATCH,
           "batch.accumulate": (*_BATCH, "batch.accumulate"), "amp.dtype": ("amp",),
           "train.lr": ("lr",), "train.lr_scale": ("lr",), "train.lr_reference_batch": ("lr",),
           "train.epochs": ("epochs",), "train.steps": ("steps",), "train.seed": ("seed",),
           "train.workers": ("workers",)}
"""The placeholders of each key of the spec: only through these does it reach a person's own
command."""
_WHATEVER_RUNS = frozenset({"train.restarts", "train.hang_timeout"})
"""Keys of [train] that the supervisor itself follows, whatever it runs."""
NEVER_TOLD = frozenset({
    "parallel.find_unused", "parallel.static_graph", "parallel.bucket_cap_mb", "parallel.backend",
    "run.python",
    *(key for key in known_keys() if key.startswith(("amp.", "train."))
      and key not in TOLD_BY and key not in _WHATEVER_RUNS)})
"""Keys without an effect on a person's own command: they configure the engine's own training, as do
all keys of [amp] and [train] that have no placeholder."""
ONLY_COMMAND = frozenset({"run.grace_most", "run.stop_signal", "run.grad_norm"})
"""Keys without an effect on a task, whose stop is the engine's own."""


def on_stop(spec: RunSpec | None) -> str:
    """What a stop does to a run, in words that follow "stop: ". None: it is one of several."""
    if spec is None:
        return "a task finishes its step and saves a checkpoint; a command of your own gets " \
            "SIGINT, as from Ctrl-C, or its run.stop_signal"
    if spec.task.command is None:
        return "the ranks finish their step and save a checkpoint"
    as_by_hand = ", as from Ctrl-C" * (spec.run.stop_signal == "SIGINT")
    return f"the command gets {spec.run.stop_signal}{as_by_hand}"


TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")


def used(command: Sequence[str] | None) -> frozenset[str]:
    """The placeholders that stand in a command."""
    if not isinstance(command, (list, tuple)):
        return frozenset()
    return frozenset(m.group(1) for arg in command if isinstance(arg, str)
                     for m in TOKEN.finditer(arg) if m.group(1) in PLACEHOLDERS)


def is_told(command: Sequence[str] | None, key: str) -> bool:
    """Whether a key of the spec has an effect on what is run: a person's own command; None: a
    task."""
    if command is None:
        return key not in ONLY_COMMAND
    return key not in NEVER_TOLD and (key not in TOLD_BY
                                      or not used(command).isdisjoint(TOLD_BY[key]))


_FOR_DEVICES = frozenset({"parallel.backend"})
"""Keys that a command is never told but that say which devices it may get: with gloo two ranks may
share a GPU."""


def unheard(command: Sequence[str], key: str, value: object = None, *, said: str = "",
            otherwise: str = "it has no placeholder; set it in your script") -> Problem:
    """The problem that `key` was set and does not reach the command. `said`: what set it, if not
    the key itself. `otherwise`: what would do for a key without a placeholder."""
    line, what = clean(shlex.join(command), 60), f"{said} " if said else ""
    where = TOLD_BY.get(key)
    cure = f"write {{{where[0]}}} where its value belongs" if where is not None else otherwise
    return Problem(key, value, f"{what}has no effect, as the command {line} is never told it: "
                               f"{cure}")


def check_heard(spec: RunSpec) -> list[Problem]:
    """A problem for each key that was set, to another value than its default, and does not reach
    the spec's task or own command: one rule for whatever sets it, be it --set, a preset or the
    form."""
    command = spec.task.command
    if command is not None and not command:
        return []
    values = ((key, getattr(getattr(spec, key.section), key.name)) for key in keys().values()
              if key.section)
    return [Problem(key.dotted, value, "has no effect on a task, only on a command of your own: "
                                       "leave it out") if command is None
            else unheard(command, key.dotted, value) for key, value in values
            if value != key.default and not _reaches(command, key.dotted, spec.train.lr_scale)]


def left_out(data: Mapping[str, Any], only: Container[str] | None = None) -> dict[str, Any]:
    """A spec's nested dict without the keys that do not reach its task or own command: those of
    what was there before it. `only`: of these keys alone."""
    task, train = data.get("task"), data.get("train")
    command = task.get("command") if isinstance(task, Mapping) else None
    if not isinstance(command, (list, tuple)) or not command:
        command = None
    scale = train.get("lr_scale", "none") if isinstance(train, Mapping) else "none"

    def stays(key: str) -> bool:
        return _reaches(command, key, scale) or (only is not None and key not in only)

    return {section: {name: value for name, value in part.items() if stays(f"{section}.{name}")}
            if isinstance(part, Mapping) else part for section, part in data.items()}


def _reaches(command: Sequence[str] | None, key: str, lr_scale: object) -> bool:
    """Whether a key has an effect: on what is run, or on the devices that it may get. A batch has
    one on a learning rate that is scaled by it."""
    if command is not None and key == "task.params":
        return False
    scaled = lr_scale != "none" and key.startswith("batch.") and is_told(command, "train.lr")
    return scaled or key in _FOR_DEVICES or is_told(command, key)


def check(command: Sequence[str]) -> list[Problem]:
    """Unknown placeholders and arguments that no process can take."""
    out = []
    for arg in command:
        if "\0" in arg:
            out.append(Problem("task.command", arg, "an argument can't hold a NUL character"))
        for match in TOKEN.finditer(arg):
            name = match.group(1)
            if name is not None and name not in PLACEHOLDERS:
                out.append(Problem("task.command", "{" + name + "}",
                                   "there is no such placeholder ({{ writes a brace); there are "
                                   + ", ".join(PLACEHOLDERS)))
    return out


def fill(command: Sequence[str], values: Mapping[str, object]) -> tuple[str, ...]:
    """The argument list with placeholders replaced; `{{` and `}}` are braces. A name that `values`
    lacks is left as it stands (the run folder, before launch)."""
    def one(match: re.Match[str]) -> str:
        if match.group() in ("{{", "}}"):
            return match.group()[0]
        name = match.group(1)
        return str(values[name]) if name in values else match.group()

    return tuple(TOKEN.sub(one, arg) for arg in command)


_SHELLS = ("bash", "sh", "zsh", "dash", "ksh", "fish")
SELF_LAUNCHERS = frozenset({
    "torchrun", "accelerate", "accelerate-launch", "deepspeed", "fabric", "lightning", "composer",
    "horovodrun", "mpirun", "mpiexec", "mpiexec.hydra", "srun", "jsrun", "torchx",
    "tune", "llamafactory-cli", "lmf", "axolotl", "swift", "yolo", "colossalai",
    *_SHELLS})
_MODULES = frozenset({
    "torch.distributed.run", "torch.distributed.launch", "accelerate", "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli", "deepspeed", "deepspeed.launcher.runner", "composer",
    "composer.cli.launcher", "lightning", "lightning.fabric.cli", "horovod.runner.launch",
    "torchtune._cli.tune", "llamafactory.cli", "axolotl.cli.main", "swift.cli.main",
    "colossalai.cli"})
"""The same as modules."""


def launches_itself(command: Sequence[str]) -> bool:
    """Whether the command starts its own ranks, so that it is run once and unchanged."""
    return launcher(command) is not None


def launcher(command: Sequence[str]) -> str | None:
    """What starts the command's own ranks: "torchrun", "accelerate.commands.launch", "train.sh";
    None: nothing does. Wrappers before it (`env X=1`, `uv run`) and options of its Python are
    looked through."""
    behind = program(command)
    module, script = module_or_script(behind) if behind and is_python(behind[0]) else \
        (None, behind)
    if module is not None:
        return module if module in _MODULES else None
    name = name_of(script[0]) if script else ""
    return name if name in SELF_LAUNCHERS or in_shell(command) else None


def in_shell(command: Sequence[str]) -> bool:
    """Whether the command is a shell's, which starts others."""
    name = name_of((program(command) or [""])[0])
    return name in _SHELLS or name.endswith(".sh")


_FIRST = re.compile(r"\s*(?:(?!PATH=)[A-Za-z_]\w*=\S*\s+|exec\s+)*((?:python|pypy)[\d.]*)(?=\s)")


def python_of_text(command: Sequence[str]) -> re.Match[str] | None:
    """The Python (group 1) with which begins what a shell is given to run, as in `sh -c 'python
    train.py'`; None: it begins with something else, which may change what "python" is."""
    return _FIRST.match(command[2]) if len(command) > 2 and name_of(command[0]) in _SHELLS \
        and command[1] == "-c" else None


@dataclass(frozen=True)
class Said:
    """What a command's own words say of devices and ranks."""

    devices: tuple[tuple[str, str, str], ...] = ()
    """Devices that it takes whatever its environment lists: the variable that lists them, as it is
    written ("CUDA_VISIBLE_DEVICES=2,3", "--gpu_ids 2,3"), and their names, with commas."""
    ranks: tuple[str, int] | None = None
    """How many ranks its launcher starts on this machine, with the option as it is written."""
    in_all: bool = False
    """Whether that is their number on all machines, as accelerate counts."""


_LISTS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_LAUNCHERS = re.compile(
    r"(torchrun|torch\.distributed|accelerate|deepspeed|tune|colossalai|yolo)\b.*")


def said(command: Sequence[str]) -> Said:
    """What the words of a command, and those that it has a shell run (`sh -c`), say."""
    sets, words = unwrapped(command)
    if words and name_of(words[0]) in _SHELLS:
        sets = words = [w for text in words[1:] for w in text.replace(";", " ").split()]
    listed = [(n, f"{n}={value}", value.strip("'\""))
              for n, _, value in (w.partition("=") for w in sets) if n in _LISTS]
    starts, ranks, in_all = None, None, False
    for word, following in zip(words, [*words[1:], ""]) if launches_itself(command) else ():
        if starts is None and (starts := _LAUNCHERS.fullmatch(name_of(word))) \
                and starts[1].startswith("torch"):  # of which 1 is the default
            ranks = f"{name_of(word)} without --nproc-per-node", 1
        if starts is None:
            continue
        if word.endswith(".py"):  # what follows is the script's
            break
        name, eq, value = word.partition("=")
        value, written = (value, word) if eq else (following, f"{word} {following}")
        option = starts[1], name.replace("_", "-")
        if option[1] in ("--nproc-per-node", "--num-processes"):
            ranks, in_all = (written, int(value)) if value.isdecimal() else None, \
                option[1] == "--num-processes"
        elif value != "all" and option in (("accelerate", "--gpu-ids"), ("yolo", "device")):
            listed.append((_LISTS[0], written, value))
        # deepspeed takes CUDA_VISIBLE_DEVICES away for these (deepspeed/launcher/runner.py).
        elif option == ("deepspeed", "--include"):
            listed.append((_LISTS[0], written, value.rpartition(":")[2]))
        elif option == ("deepspeed", "--num-gpus") and value.isdecimal():
            listed.append((_LISTS[0], written, ",".join(map(str, range(int(value))))))
    return Said(tuple(listed), ranks, in_all)


def timed_out(command: Sequence[str]) -> str | None:
    """The `timeout -k 5 6` that a command begins with, which exits with 124 once that time is up;
    None: it begins with something else."""
    line = " ".join([name_of(command[0]), *command[1:]])
    told = re.match(r"timeout( -\S+| [A-Z]+| [\d.]+[smhd]?)+(?= )", line)
    return told and told[0]


def script(command: Sequence[str]) -> str | None:
    """The file that the command has an interpreter run: `train.py` of `python -u train.py`. None:
    there is none, or its place is not known, as a wrapper may change the folder."""
    behind = program(command)
    if not behind:
        return None
    if is_python(behind[0]):
        words = module_or_script(behind)[1] if module_or_script(behind)[0] is None else []
    else:
        words = behind[1:] if name_of(behind[0]) in _SHELLS else []
    if not words or words[0].startswith("-") or TOKEN.search(words[0]):
        return None
    before = command[:list(command).index(behind[0])] if behind[0] in command else command[:1]
    return None if any(word.startswith("-") for word in before) or any(
        name_of(word) in ("apptainer", "singularity") for word in before) else words[0]


def under_torchrun(command: Sequence[str], options: Sequence[str]) -> tuple[str, ...]:
    """The same command started by torchrun with `options`, by the command's own interpreter."""
    head, rest = command[0], list(command[1:])
    if not is_python(head):
        return ("torchrun", *options, "--no-python", *_guarded([head, *rest]))
    run = (head, "-m", "torch.distributed.run", *options)
    if rest[:1] == ["-m"]:
        return (*run, "-m", *_guarded(rest[1:]))
    if rest and not rest[0].startswith("-"):
        return (*run, *_guarded(rest))
    # Interpreter switches have no place in torchrun's line.
    return (*run, "--no-python", *_guarded([head, *rest]))


def _guarded(script: Sequence[str]) -> list[str]:
    """A script and its arguments behind `--` where it has options: torchrun's parser takes
    `--log` for an abbreviation of its own `--log-dir` even behind the script's name."""
    return ["--", *script] if any(a.startswith("--") for a in script[1:]) else list(script)


# --- what stands before the program: `env X=1`, `uv run`, `nohup`, `python -u` -------------------

_WRAPPER = re.compile("env|uvx|nohup|setsid|time|nice|ionice|stdbuf|chrt|timeout|taskset|numactl|"
                      "xvfb-run")
"""Programs whose arguments end in another command;"""
_WITH_VERB = re.compile("uv|conda|mamba|micromamba|poetry|pdm|pipenv|rye|hatch|pixi|apptainer|"
                        "singularity|nsys")
"""and those of which only that of these verbs does."""
_VERB = re.compile("run|exec|profile")
_VALUE = re.compile("--with|-w|--from|--extra|--group|--package|-n|--name|-e|--env")
"""Options of these with a word that may be called as a launcher is, as a package or environment."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


def name_of(word: str) -> str:
    """A program's name without its folder."""
    return PurePath(word).name


def is_python(word: str) -> bool:
    """Whether a command's first word is a Python interpreter."""
    return re.fullmatch(r"(python|pypy)[\d.]*", name_of(word)) is not None


def program(command: Sequence[str]) -> list[str]:
    """The command behind all wrappers; empty where there is none."""
    return unwrapped(command)[1]


def behind_plain_wrappers(command: Sequence[str]) -> list[str]:
    """The command behind wrappers that leave it its Python (`env X=1`, `nohup`, `timeout 9`); empty
    where another one may be meant (`uv run`)."""
    words = program(command) if command and _WRAPPER.fullmatch(name_of(command[0])) else command
    before = command[:len(command) - len(words)]
    choose = any(w == "uvx" or _WITH_VERB.fullmatch(w) for w in map(name_of, before))
    return [] if choose else list(words)


def unwrapped(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """The variables that are set before a command (`env X=1`), and the command behind all wrappers,
    which begins with the first word that is a Python, a launcher, a shell or a script."""
    words = list(command)
    first = name_of(words[0]) if words else ""
    if not (_WRAPPER.fullmatch(first) or _WITH_VERB.fullmatch(first)):
        return [], words
    runs, names = True, set[str]()
    for at, word in enumerate(words):
        name = name_of(word)
        names.add(name)
        runs = bool(runs or _VERB.fullmatch(name)) and not _WITH_VERB.fullmatch(name)
        if not runs or _VALUE.fullmatch(words[max(at - 1, 0)]):
            continue
        module = word in ("-m", "--module") and "uv" in names
        if module or is_python(word) or name in SELF_LAUNCHERS or word.endswith((".py", ".sh")):
            before, rest = words[:at], words[at:]
            if module or word.endswith(".py"):
                rest = ["python", *(["-m", *rest[1:]] if module else rest)]
            break
    else:
        before, rest = words, []
    return [word for word in before if _ASSIGNMENT.fullmatch(word)], rest


def module_or_script(command: Sequence[str]) -> tuple[str | None, list[str]]:
    """What a Python command runs, its own options left out: (module of -m, its arguments), or
    (None, the script and its arguments)."""
    words = list(command[1:])
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                words[:1] = []
            continue
        for at, letter in enumerate(word[1:], 1):
            more = word[at + 1:]
            if letter == "m":
                return (more, words) if more else (words[0] if words else "", words[1:])
            if letter == "c":
                return None, []
            if letter in "WX":
                if not more:
                    words[:1] = []
                break
    return None, words
