"""Reading a spec: from TOML, from `--set key=value`, from the dict that plan.json holds.

All problems are collected, not only the first; each names the key, its value and what is expected,
and suggests what a misspelt key may have meant. Standard library only: a rank imports this.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpu_engine.common.errors import Problem, SpecError, UserError
from gpu_engine.common.files import open_file, read_bounded, read_inside, reason
from gpu_engine.common.paths import read_own
from gpu_engine.common.values import ANY, convert, describe, in_toml, parse, show
from gpu_engine.spec.host_names import SLURM, BadName, HostDevices, glued, parse_all
from gpu_engine.spec.schema import (
    LONGEST_NAME,
    ONE_OF,
    SECTIONS,
    TABLES,
    Key,
    RunSpec,
    keys,
    known_keys,
)
from gpu_engine.spec.typed_command import split

_MOST = 1 << 20
"""Bytes of a file; a larger one is no spec."""
_TEXTS = re.compile(
    r"\"{3}(?:\\.|[^\\])*?(?:\"{3,5}|\Z)|'{3}.*?(?:'{3,5}|\Z)|"
    r"\"(?:\\.|[^\"\\\n])*\"?|'[^'\n]*'?|#[^\n]*", re.DOTALL)
_DEEP = re.compile(r"(?<![\w-])(?:[\w-]+\s*\.\s*){50}")
"""A key with very many parts, outside of texts: tomllib's time grows with their square."""


def from_dict(data: Mapping[str, Any]) -> RunSpec:
    """Check a nested dict, as TOML gives it, and make a spec of it. Raises SpecError with every
    problem that was found."""
    spec, problems = _read(data)
    for left, right in ONE_OF:
        if _get(data, left) is not None and _get(data, right) is not None:
            problems.append(Problem(left, _get(data, left), f"give this or {right}, not both"))
    if spec.devices.hosts is not None:
        try:
            fixed = [str(e) for e in parse_all(spec.devices.hosts) if e.ids and not e.partition]
        except BadName as err:
            problems.append(Problem("devices.hosts", spec.devices.hosts, str(err)))
        else:
            if fixed and spec.devices.pick:
                problems.append(Problem(
                    "devices.pick", spec.devices.pick, f"devices.hosts names devices ({fixed[0]}), "
                    f"and this chooses them: give one of the two, or the hosts without devices"))
    if problems:
        raise SpecError(problems)
    return spec


def from_dict_leniently(data: object) -> RunSpec:
    """Make a spec of the dict in a plan.json, which another version may have written: an unknown
    key is ignored, and a value that does not fit is replaced by the default."""
    known = {name: {k: v for k, v in value.items() if f"{name}.{k}" in keys()}
             if isinstance(value, dict) else value
             for name, value in data.items() if name in SECTIONS or name == "name"} \
        if isinstance(data, dict) else {}
    return _read(known)[0]


def load(path: Path) -> RunSpec:
    """Read a preset file. Raises SpecError for what is wrong in it, UserError if it can't be
    read."""
    return from_dict(read_toml(path))


def read_toml(path: Path, run: Path | None = None, *, own: bool = False) -> dict[str, Any]:
    """Read a TOML file as a dict; `run`: the run folder that it is in; `own`: it is the person's
    own configuration, see `read_own`. Raises UserError that names the file, and the place in it."""
    import tomllib

    try:
        text = _content(path, run, own).decode("utf-8-sig")
        if _DEEP.search(_TEXTS.sub("x", text)):
            raise ValueError("a key has more than 50 parts")
        return tomllib.loads(text)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as err:
        raise UserError(f"{path}: cannot be read: {reason(err)}") from None
    except UnicodeDecodeError as err:
        raise UserError(f"{path}: cannot be read: {err}") from None
    except ValueError as err:  # a number of 5,000 digits is no TOMLDecodeError
        raise UserError(f"{path}: not valid TOML: {err}") from None
    except RecursionError:
        raise UserError(f"{path}: nested too deeply") from None


def _content(path: Path, run: Path | None, own: bool) -> bytes:
    if own:
        return read_own(path, _MOST)
    if run is not None:
        return read_inside(run, path.relative_to(run).as_posix(), _MOST)
    with open_file(path) as file:  # a FIFO there would be waited for
        return read_bounded(file, _MOST)


def apply_sets(data: dict[str, Any], assignments: Iterable[str]) -> None:
    """Apply several `key=value` to a nested dict, in place, as `--set` does. If they name another
    task, the parameters of the task before are removed first. Raises SpecError, also where they
    name two keys of which one may be given, or devices of this machine where the dict has
    `devices.hosts`: which was meant is not guessed. `devices.hosts` without `devices.pick` means
    all devices of these hosts, unless one of several is to be chosen."""
    given = list(map(spelled_out, assignments))
    problems = _contradictions(data, given)
    if problems:
        raise SpecError(problems)
    uses = [a.partition("=")[2] for a in given if a.partition("=")[0].strip() == "task.use"]
    if uses and uses[-1] != _get(data, "task.use"):
        task = data.get("task")
        if isinstance(task, dict):
            task.pop("params", None)
    typed = {a.partition("=")[0].strip() for a in given}
    pick = _get(data, "devices.pick")
    for assignment in given:
        apply_set(data, assignment)
    if "devices.hosts" in typed and "devices.pick" not in typed and pick and not _several(data):
        del data["devices"]["pick"]


def _several(data: Mapping[str, Any]) -> bool:
    """Whether `devices.hosts` stands for hosts of which one is chosen, or for nodes of Slurm, which
    chooses their GPUs."""
    hosts = _get(data, "devices.hosts")
    return isinstance(hosts, list) and any(
        HostDevices(name).several or (name == SLURM and not ids.startswith("cpu:"))
        for name, _, ids in (str(host).partition(":") for host in hosts))


def _contradictions(data: Mapping[str, Any], assignments: Iterable[str]) -> list[Problem]:
    texts = {key.strip(): text for key, _, text in (a.partition("=") for a in assignments)}
    out = [Problem(left, texts[left], f"give this or {right}, not both")
           for left, right in ONE_OF if left in texts and right in texts]
    hosts = _get(data, "devices.hosts")
    chosen = _several(data) or _get(data, "devices.pick")
    here = [key for key in ("devices.ids", *(() if chosen else ("devices.pick",))) if key in texts]
    if hosts and here and "devices.hosts" not in texts:
        named = show(hosts)
        out.append(Problem(here[0], texts[here[0]], f"devices.hosts = {named} is set, and this "
                           "means devices of the machine in front of you. Name the devices of "
                           "hosts as in devices.hosts=gpu1:0,1, those of this machine as in "
                           "devices.hosts=local:0,1"))
    return out


_OTHER_NAMES = {"learning_rate": "train.lr", "batch_size": "batch.size",
                "num_workers": "train.workers"}
"""Names that keys have elsewhere."""
_OTHER_WORDS = {"amp.dtype": {"fp32": "off", "float32": "off", "none": "off", "no": "off",
                              "bfloat16": "bf16", "float16": "fp16"}}
"""Words for a key's values that mean the same elsewhere."""


def in_our_words(key: Key, value: Any) -> Any:
    """A choice written otherwise as the schema writes it: "BF16" as "bf16", "fp32" as "off". Any
    other value as it is."""
    if not isinstance(value, str):
        return value
    choices = {text.lower(): text for text, _ in key.kind.without_none.choices}
    return (_OTHER_WORDS.get(key.dotted, {}) | choices).get(value.lower(), value)


def spelled_out(assignment: str) -> str:
    """`lr=1e-3` as `train.lr=1e-3`: with the section of the one key that has this name. Any other
    text as it is."""
    short, eq, text = assignment.partition("=")
    short = short.strip()
    full = [] if short in keys() else [k.dotted for k in keys().values() if k.name == short]
    full = full or [k for name, k in _OTHER_NAMES.items() if name == short]
    return f"{full[0]}={text}" if eq and len(full) == 1 else assignment


def apply_set(data: dict[str, Any], assignment: str) -> None:
    """Apply one `key=value` to a nested dict, in place. Raises SpecError.

    The value is parsed by the key's type (`values.parse`); task.command is split as a shell splits
    it, as are the variables of run.env and the options of run.sbatch. `run.env.NAME` sets one of
    them, `run.metrics.NAME` one pattern, `run.sbatch.NAME` one option. A key may be named without
    its section (`spelled_out`). Setting one of two keys of `ONE_OF` removes the other.
    """
    dotted, eq, text = spelled_out(assignment).partition("=")
    dotted = dotted.strip()
    if not eq or not dotted:
        raise SpecError([Problem("", None, f"--set {assignment!r}: expected key=value, "
                                           "for example batch.size=512")])
    if dotted.startswith("task.params."):
        params = data.setdefault("task", {}).setdefault("params", {})
        params[dotted.removeprefix("task.params.")] = parse(text, ANY)
        return
    table = next((t for t in TABLES if dotted.startswith(f"{t}.")), None)
    if table is not None:
        part, name = data.setdefault("run", {}), table.removeprefix("run.")
        if not isinstance(part.get(name), dict):  # run.metrics may be "auto"
            part[name] = {}
        part[name][dotted.removeprefix(f"{table}.")] = text
        return
    key = keys().get(dotted)
    if key is None:
        raise SpecError([unknown_key(dotted, [*known_keys(), "name"], value=text, typed=True)])
    for pair in ONE_OF:
        if dotted in pair:
            other = pair[1] if dotted == pair[0] else pair[0]
            data.get(key.section, {}).pop(other.partition(".")[2], None)
    value = _command(text) if dotted == "task.command" else _variables(text, key) \
        if dotted in ("run.env", "run.sbatch") else parse(text, key.kind)
    if dotted == "devices.hosts" and isinstance(value, list) and not text.lstrip().startswith("["):
        value = glued(map(str, value))  # the commas between a host's devices are its own
    part = data.setdefault(key.section, {}) if key.section else data
    part[key.name] = in_our_words(key, value)


# --- helpers -----------------------------------------------------------------------------------

def _read(data: Mapping[str, Any]) -> tuple[RunSpec, list[Problem]]:
    """The spec made of what is right in `data`, and a problem for everything that is not."""
    problems: list[Problem] = []
    parts: dict[str, Any] = {}
    for name, value in data.items():
        if name == "name":
            parts["name"] = _name(value, problems)
        elif name not in SECTIONS:
            problems.append(unknown_key(name, ["name", *SECTIONS]))
        elif not isinstance(value, dict):
            problems.append(Problem(name, value,
                                    f"expected a section: write [{name}] and its keys"))
        else:
            parts[name] = _section(name, value, problems)
    return RunSpec(**parts), problems


def _section(section: str, given: Mapping[str, Any], problems: list[Problem]) -> Any:
    """The section's record, made of what is right in `given`."""
    fitting = {}
    for name, value in given.items():
        key = keys().get(f"{section}.{name}")
        if key is None:
            near = [k for k in known_keys() if k.startswith(section + ".")]
            problems.append(unknown_key(f"{section}.{name}", near, value=value))
            continue
        try:
            fitting[name] = _value(key, value)
        except ValueError:
            problems.append(Problem(key.dotted, value, _expected(key, value)))
    return SECTIONS[section](**fitting)


def _value(key: Key, value: Any) -> Any:
    """`value` as a value of `key`. Raises ValueError if it does not fit."""
    if isinstance(value, str) and key.kind.without_none.name in ("list", "dict"):
        raise ValueError  # a file must hold a real list; typed text was parsed before
    if key.dotted == "devices.ids" and isinstance(value, list):
        value = [str(v) if type(v) is int else v for v in value]
    if key.dotted in ("run.env", "run.sbatch") and isinstance(value, dict):
        value = {k: in_toml(v) if isinstance(v, (int, float)) else v for k, v in value.items()}
    if not _shallow(value, 32):
        raise ValueError
    return convert(in_our_words(key, value), key.kind)


def _shallow(value: object, levels: int) -> bool:
    """Whether nothing is nested deeper in `value` than so many levels."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_shallow(v, levels - 1) for v in inner)


def _name(value: Any, problems: list[Problem]) -> str:
    ok = isinstance(value, str) and value.strip() and len(value) <= LONGEST_NAME
    if not ok or any(not c.isprintable() for c in value):
        problems.append(Problem("name", value, "expected a short text in one line, "
                                               f"at most {LONGEST_NAME} characters"))
        return RunSpec().name
    return value


def _command(text: str) -> object:
    """The words of a command; the text itself if it can't be split, of which making the spec then
    says why."""
    listed = parse(text, keys()["task.command"].kind) if text.lstrip().startswith("[") else None
    if isinstance(listed, list) and all(isinstance(word, str) for word in listed):
        return listed
    try:
        return split(text)
    except ValueError:
        return text


def _variables(text: str, key: Key) -> object:
    """Variables as a shell takes them before a command, `A=1 B="two words"`, or as a table of TOML;
    of sbatch's options some have no value. The text itself if it is neither, of which making the
    spec then says what is wrong."""
    if text.lstrip().startswith("{"):
        return parse(text, key.kind)
    try:
        pairs = [word.partition("=") for word in shlex.split(text)]
    except ValueError:
        return text
    whole = key.dotted == "run.sbatch" or all(eq for _, eq, _ in pairs)
    return {name: value for name, _, value in pairs} if whole else text


def unknown_key(key: str, known: list[str], *, value: Any = None, typed: bool = False) -> Problem:
    """What is wrong with a key that is none of `known`, and which may be meant. `typed`: it was
    given as `key=value`, and the value is its text."""
    import difflib

    section, _, last = key.rpartition(".")
    inside = [k for k in keys().values() if k.section == last]
    if inside and section not in SECTIONS:  # a section's name in the place of a key's
        meant = next((k for k in inside if typed and _takes(k, value)), inside[0])
        given = f"={value}" if typed and _takes(meant, value) else ""
        return Problem(key, value, f"there is no such key; did you mean {meant.dotted}{given}?",
                       f"{meant.dotted}{given}")
    # The right word in the wrong section, or a word of elsewhere.
    near = [k for k in known_keys() if k.rpartition(".")[2] == last or k == _OTHER_NAMES.get(last)]
    names = {k.rpartition(".")[2]: k for k in known}
    near = near[:1] or [names[n] for n in difflib.get_close_matches(last, names, n=1, cutoff=0.6)]
    if near:
        return Problem(key, value, f"there is no such key; did you mean {near[0]}?", near[0])
    near = [names[n] for n in difflib.get_close_matches(last, names, n=3, cutoff=0.4)]
    return Problem(key, value, "there is no such key; "
                   + (f"the nearest are {', '.join(near)}; " if near else "")
                   + "docs/spec.md and gpu-engine presets --keys list them all")


def _takes(key: Key, text: str) -> bool:
    """Whether this text is a value of `key`."""
    try:
        convert(parse(text, key.kind), key.kind)
    except ValueError:
        return False
    return True


def _expected(key: Key, value: Any) -> str:
    """What is expected of a key's value, in words."""
    if key.dotted == "task.command" and isinstance(value, str):
        try:
            return f"expected a list of texts: {json.dumps(split(value))}"
        except ValueError as err:
            return str(err)
    if key.dotted == "run.env":
        return 'expected variables and their texts, as in {NCCL_DEBUG = "INFO"} or NCCL_DEBUG=INFO'
    if key.dotted == "run.sbatch":
        return "expected options of sbatch, as in account=vision exclusive"
    import difflib

    choices = [text for text, _ in key.kind.without_none.choices]
    near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
    return f"expected {describe(key.kind)}" + (f"; did you mean {near[0]}?" if near else "")


def _get(data: Mapping[str, Any], dotted: str) -> Any:
    section, _, name = dotted.partition(".")
    part = data.get(section)
    return part.get(name) if isinstance(part, dict) else None
