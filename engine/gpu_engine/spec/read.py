"""Reading a spec: from TOML, from `--set key=value`, from the dict that plan.json holds.

Reading collects every problem instead of stopping at the first, names the key, the value and what
would do, and guesses what a misspelt key meant. Standard library only: a rank imports this.
"""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpu_engine.common.errors import Problem, SpecError, UserError
from gpu_engine.common.files import open_file, reason
from gpu_engine.common.values import ANY, convert, describe, parse
from gpu_engine.spec.schema import LONGEST_NAME, ONE_OF, SECTIONS, Key, RunSpec, keys, known_keys


def from_dict(data: Mapping[str, Any]) -> RunSpec:
    """Validate a nested dict, as TOML gives it.

    Raises SpecError with every problem found.
    """
    spec, problems = _read(data)
    for left, right in ONE_OF:
        if _look(data, left) is not None and _look(data, right) is not None:
            problems.append(Problem(left, _look(data, left), f"give this or {right}, not both"))
    if problems:
        raise SpecError(problems)
    return spec


def recorded(data: object) -> RunSpec:
    """The spec out of a plan.json, which another version may have written: a key that is not
    known here is passed over, one whose value does not fit has its default."""
    return _read(data)[0] if isinstance(data, dict) else RunSpec()


def load(path: Path) -> RunSpec:
    """Read a preset file. Raises SpecError for what is in it, UserError where it can't be read."""
    return from_dict(read_toml(path))


def read_toml(path: Path) -> dict[str, Any]:
    """Read TOML as a dict. Raises UserError naming file and place."""
    import tomllib

    try:
        with open_file(path) as file:  # a FIFO there would be waited for
            return tomllib.loads(file.read().decode())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as err:
        raise UserError(f"{path}: cannot be read: {reason(err)}") from None
    except UnicodeDecodeError as err:
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

    The value is read as the key's own type asks (`values.parse`): "512" is a number for batch.size
    and a text for name; "0,1" is a list for devices.ids. Setting one side of a pair of which only
    one may be given (devices.ids | devices.pick, …) drops the other. Raises SpecError.
    """
    dotted, eq, text = assignment.partition("=")
    dotted = dotted.strip()
    if not eq or not dotted:
        raise SpecError([Problem("", None, f"--set {assignment!r}: expected key=value, "
                                           "for example batch.size=512")])
    if dotted.startswith("task.params."):
        params = data.setdefault("task", {}).setdefault("params", {})
        params[dotted.removeprefix("task.params.")] = parse(text, ANY)
        return
    key = keys().get(dotted)
    if key is None:
        raise SpecError([_unknown(dotted, [*known_keys(), "name"], value=text)])
    for pair in ONE_OF:
        if dotted in pair:
            other = pair[1] if dotted == pair[0] else pair[0]
            data.get(key.section, {}).pop(other.partition(".")[2], None)
    part = data.setdefault(key.section, {}) if key.section else data
    part[key.name] = parse(text, key.kind)


# --- helpers -----------------------------------------------------------------------------------

def _read(data: Mapping[str, Any]) -> tuple[RunSpec, list[Problem]]:
    """What of `data` fits, and what does not."""
    problems: list[Problem] = []
    parts: dict[str, Any] = {}
    for name, value in data.items():
        if name == "name":
            parts["name"] = _name(value, problems)
        elif name not in SECTIONS:
            problems.append(_unknown(name, ["name", *SECTIONS]))
        elif not isinstance(value, dict):
            problems.append(Problem(name, value,
                                    f"expected a section: write [{name}] and its keys"))
        else:
            parts[name] = _section(name, value, problems)
    return RunSpec(**parts), problems


def _section(section: str, given: Mapping[str, Any], problems: list[Problem]) -> Any:
    """The section's record with what of `given` fits."""
    fitting = {}
    for name, value in given.items():
        key = keys().get(f"{section}.{name}")
        if key is None:
            near = [k for k in known_keys() if k.startswith(section + ".")]
            problems.append(_unknown(f"{section}.{name}", near, value=value))
            continue
        try:
            fitting[name] = _value(key, value)
        except ValueError:
            problems.append(Problem(key.dotted, value, _would_do(key, value)))
    return SECTIONS[section](**fitting)


def _value(key: Key, value: Any) -> Any:
    """Raises ValueError where it does not fit."""
    if isinstance(value, str) and key.kind.without_none.name in ("list", "dict"):
        raise ValueError  # in a file a list is written as one; what is typed was parsed before
    if key.dotted == "devices.ids" and isinstance(value, list):
        value = [str(v) if type(v) is int else v for v in value]
    return convert(value, key.kind)


def _name(value: Any, problems: list[Problem]) -> str:
    ok = isinstance(value, str) and value.strip() and len(value) <= LONGEST_NAME
    if not ok or any(not c.isprintable() for c in value):
        problems.append(Problem("name", value, "expected a short text in one line, "
                                               f"at most {LONGEST_NAME} characters"))
        return RunSpec().name
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


def _would_do(key: Key, value: Any) -> str:
    """What would do for a key, in words."""
    if key.dotted == "task.command" and isinstance(value, str):
        return _of_command(value)
    choices = [text for text, _ in key.kind.without_none.choices]
    near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
    return f"expected {describe(key.kind)}" + (f"; did you mean {near[0]}?" if near else "")


def _of_command(text: str) -> str:
    """What is wrong with a command that is one text, as it was typed or in a file."""
    for end, missing in (("", ""), ('"', 'the quote " is not closed'),
                         ("'", "the quote ' is not closed")):
        try:
            parts = shlex.split(text + end)
        except ValueError as err:
            if "escaped" in str(err):
                break
            continue
        return missing or f"expected a list of texts: {json.dumps(parts)}"
    return "ends in a backslash with nothing behind it"


def _look(data: Mapping[str, Any], dotted: str) -> Any:
    section, _, name = dotted.partition(".")
    part = data.get(section)
    return part.get(name) if isinstance(part, dict) else None
