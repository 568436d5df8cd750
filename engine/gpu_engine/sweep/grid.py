"""The members of a sweep: every combination of the values that a person has typed
(`train.lr=1e-3,3e-4`), or so many that are drawn from them and from ranges (`log:1e-5..1e-2`), and
each of them once for every seed. Pure."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation

from gpu_engine.common import units
from gpu_engine.common.clean import MASK, clean, shown_set, shown_words
from gpu_engine.common.errors import Problem, SpecError
from gpu_engine.plan import own_command
from gpu_engine.spec import modes
from gpu_engine.spec.read import apply_sets, from_dict, spelled_out
from gpu_engine.spec.schema import LONGEST_NAME, ONE_OF, RunSpec, keys
from gpu_engine.spec.write import to_dict
from gpu_engine.sweep import table
from gpu_engine.sweep.rungs import FIRST

MOST = 1000
"""Members of a sweep."""
_SEED = "train.seed"
_FLAG = re.compile(r"-+[A-Za-z_]")
_WORD = re.compile(r"[A-Za-z_][\w.-]*")
_LONGEST_VALUE = 20
"""Characters of a value in a member's name."""


_END = r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
_RANGE = re.compile(rf"(log:)?{_END}\.\.{_END}(?::{_END})?")
_LIKE_RANGE = re.compile(r"\s*[+-]?[\d.]+(?:e[+-]?\d+)?\s*\.\.", re.IGNORECASE)
_LIKE_DRAWN = re.compile(rf"{_LIKE_RANGE.pattern}|\s*log\s*:|.*\w\s*\.\.\s*[\w.+-]",
                         re.IGNORECASE)
"""What is no range either, where values are drawn: `nan..1`, `0x10..0x20`."""
_MOST_STEPS = 10 ** 9
_DRAWS = 100
"""How often a combination that was drawn already is drawn again, for each try."""


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers to draw from, both ends included: `32..512:32`, `log:1e-5..1e-2`."""

    low: Decimal
    high: Decimal
    step: Decimal | None = None
    log: bool = False
    """Whether each power of ten is as likely as another."""

    @property
    def whole(self) -> bool:
        """Whether it was written in whole numbers, and means such."""
        ends = (self.low, self.high, self.step or self.low)
        return all(end.as_tuple().exponent == 0 for end in ends)

    def amiss(self) -> str | None:
        """What is wrong with it; None: nothing."""
        if odd := next((n for n in (self.low, self.high, self.step)
                        if n and float(n) in (0.0, math.inf, -math.inf)), None):
            return f"{odd} is beyond what numbers can be: at most some 1e308, at least some 1e-308"
        if self.low == self.high:
            return f"the range has one number: write {self.low}"
        if not self.low < self.high:
            return f"a range goes from the lower to the higher number: {self.high}..{self.low}"
        if self.log and self.low <= 0:
            return "a range in powers begins above 0: log:1e-5..1e-2"
        if self.step is not None and (self.log or self.step <= 0):
            return "a step is a number above 0, and a range in powers (log:) has none"
        if self.step is not None and self.steps > _MOST_STEPS:
            return f"has more than {_MOST_STEPS:,} steps: leave the step out"
        return None

    def draw(self, chance: random.Random) -> str:
        """A number of it, as `text` gives it."""
        if self.step is not None:
            return self.text(float(self.low + chance.randint(0, self.steps) * self.step))
        if self.whole and not self.log:
            return str(chance.randint(int(self.low), int(self.high)))
        low, high = float(self.low), float(self.high)
        if self.log:
            return self.text(math.exp(chance.uniform(math.log(low), math.log(high))))
        return self.text(chance.uniform(low, high))

    @property
    def steps(self) -> int:
        """How many steps it has, if it has any."""
        return int((self.high - self.low) / (self.step or 1))

    def text(self, number: float) -> str:
        """A number of it as text that `--set` takes: of one that is not whole four digits, and as
        many more as both ends have in common."""
        if self.step is not None:
            return str(self.low + round((Decimal(number) - self.low) / self.step) * self.step)
        if self.whole:
            return str(round(number))
        largest = max(abs(self.low), abs(self.high))
        digits = 4 + max((largest / (self.high - self.low)).adjusted(), 0)
        found = f"{number:.{digits}g}"
        # What is rounded stays within the ends.
        return str(min(max(self.low, Decimal(found)), self.high)) \
            if not self.low <= Decimal(found) <= self.high else found


@dataclass(frozen=True, slots=True)
class Axis:
    """One key that varies, with its values in order, each as text that `--set` takes."""

    key: str
    values: tuple[str, ...]
    range: Range | None = None
    """What its values are drawn from, in place of `values`, which has its text."""

    def draw(self, chance: random.Random) -> str:
        """One of its values."""
        return chance.choice(self.values) if self.range is None else self.range.draw(chance)


def parse(text: str) -> Axis:
    """The axis in `KEY=v1,v2,…`. A comma between brackets belongs to a value. Raises
    SpecError."""
    key, equals, rest = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise SpecError([Problem("", None, f"--grid {text!r}: expected KEY=VALUE,VALUE, for "
                                           "example lr=1e-3,3e-4")])
    pieces, depth = [""], 0
    for char in rest:
        depth = max(0, depth + (char in "[({") - (char in "])}"))
        if char == "," and not depth:
            pieces.append("")
        else:
            pieces[-1] += char
    values = tuple(piece.strip() for piece in pieces)
    if not all(values):
        raise SpecError([Problem(key, rest, "a value is missing")])
    match = _RANGE.fullmatch(rest.strip())
    if match is None or "..." in rest:  # which of three dots is a point can't be told
        return Axis(key, values)
    log, low, high, step = match.groups()
    return Axis(key, values, Range(Decimal(low), Decimal(high), Decimal(step) if step else None,
                                   log is not None))


@dataclass(frozen=True, slots=True)
class Member:
    """One run of a sweep, before it is submitted."""

    index: int
    """From 1, in the order of the grid: the last key varies fastest, then the seed."""
    values: dict[str, str]
    """Each key that varies → its value, as people see it: `shown`."""
    repeat: int | None
    """Which of the runs with these values it is, from 1; None: there is only one."""
    spec: RunSpec
    axes: dict[str, str] = field(default_factory=dict)
    """Where its values were drawn: `told` of what they were drawn from."""


def members(spec: RunSpec, axes: Sequence[Axis], repeat: int = 1, tries: int | None = None
            ) -> list[Member]:
    """All members of a sweep over `axes`, each `repeat` times with other seeds. `tries`: so many
    combinations that are drawn, by the spec's own seed; None: all. What is no key varies the value
    of the option of that name in the spec's own command. Raises SpecError with everything that is
    wrong with the grid; whether each member can run here is not looked at."""
    chosen = points(spec, axes, repeat, tries)
    if tries is None:
        return members_at(chosen, spec, axes, repeat)
    drawn = members_at(chosen, trained_by(spec, repeat), axes, repeat)
    return [replace(member, axes=told(axes)) for member in drawn]


def trained_by(spec: RunSpec, repeat: int) -> RunSpec:
    """The spec of the members whose values are drawn: without the seed where that only draws, as a
    command that is never told it would be refused for having it."""
    command = spec.task.command
    if command is None or repeat > 1 or own_command.is_told(command, _SEED):
        return spec
    return replace(spec, train=replace(spec.train, seed=RunSpec().train.seed))


def points(spec: RunSpec, axes: Sequence[Axis], repeat: int = 1, tries: int | None = None
           ) -> list[tuple[str, ...]]:
    """The combinations of `members`. Raises as that."""
    if problems := _problems(spec, axes, repeat, tries):
        raise SpecError(problems)
    return list(itertools.product(*(axis.values for axis in axes))) if tries is None \
        else _drawn(axes, tries, spec.train.seed)


def members_at(points: Sequence[Sequence[str]], spec: RunSpec, axes: Sequence[Axis], repeat: int,
               *, before: int = 0, of: int | None = None) -> list[Member]:
    """The members with these combinations of values. `before`: how many members the sweep has
    already, of the `of` that it will have; None: these are all. Raises SpecError."""
    found, seeds = list[Member](), range(repeat)
    names = [axis.key for axis in axes]
    short = dict(zip(names, table.short(names), strict=True))
    for chosen in points:
        values = {axis.key: value for axis, value in zip(axes, chosen, strict=True)}
        seen = {axis.key: shown(axis, value) for axis, value in zip(axes, chosen, strict=True)}
        point = _with_values(spec, values)
        for number in seeds:
            one = point
            if repeat > 1:
                one = replace(one, train=replace(one.train, seed=one.train.seed + number))
            again = number + 1 if repeat > 1 else None
            name = _name(spec.name, {short[k]: v for k, v in seen.items()}, again)
            found.append(Member(before + len(found) + 1, seen, again, replace(one, name=name)))
    if problems := [*unheard([m.spec for m in found], axes, repeat),
                    *_compared(found, of or len(found))]:
        raise SpecError(problems)
    return found


def _drawn(axes: Sequence[Axis], tries: int, seed: int) -> list[tuple[str, ...]]:
    """So many different combinations. Raises SpecError where there are not so many."""
    chance, found = random.Random(seed), dict[tuple[str, ...], None]()
    for _ in range(tries * _DRAWS):
        found[tuple(axis.draw(chance) for axis in axes)] = None
        if len(found) == tries:
            return list(found)
    many = units.counted(len(found), "different combination")
    raise SpecError([Problem("", None, f"--tries {tries}: only {many} could be drawn; take --tries "
                                       f"{len(found)}"
                             + ("" if any(a.range for a in axes) else ", or leave it out"))])


def shown(axis: Axis, value: str) -> str:
    """A value for people, in names, tables and `--json`; of secrets which of the axis it is, as
    runs with different ones are not the same: "***2"."""
    seen = shown_set(f"{axis.key}={value}").removeprefix(f"{axis.key}=")
    return f"{MASK}{axis.values.index(value) + 1}" if seen == MASK else seen


def told(axes: Iterable[Axis]) -> dict[str, str]:
    """Each key → what its values are taken from, as people may see it."""
    return {axis.key: ",".join(shown(axis, value) for value in axis.values) for axis in axes}


def options(command: Sequence[str]) -> dict[str, tuple[int, str]]:
    """The options of a command that have a value, as `--lr 0.1`, `--lr=0.1`, `lr=0.1` and Hydra's
    `+lr=0.1` do: name → which argument has it, and what stands before it there. Of several the
    last. What follows a flag is no value if it begins as an option does: `--amp --lr 3`."""
    found: dict[str, tuple[int, str]] = {}
    for at, arg in enumerate(command):
        option, equals, _ = arg.partition("=")
        name = option.lstrip("-+" if equals else "-")
        if not _WORD.fullmatch(name):
            continue
        if equals:
            found[name] = at, option + equals
        elif option != name and at + 1 < len(command) and not _FLAG.match(command[at + 1]):
            found[name] = at + 1, ""
    return found


def _problems(spec: RunSpec, axes: Sequence[Axis], repeat: int, tries: int | None
              ) -> list[Problem]:
    """What is wrong with the keys, and with the number of members."""
    names, out = [axis.key for axis in axes], list[Problem]()
    for key in dict.fromkeys(names):
        if names.count(key) > 1:
            out.append(Problem(key, None, "varied twice: give all its values in one --grid"))
        if key == "name":
            out.append(Problem(key, None, "can't vary: each member's name follows from its values"))
        elif not _is_key(key) and _option(spec, key) is None:
            out.append(_unknown(key, spec))
        elif not _is_key(key) and (several := _several(spec, key)):
            out.append(Problem(key, None, several))
    for axis in axes:
        seen = dict[object, str]()
        for value in axis.values:
            meant = _number(value)
            if meant in seen:
                out.append(Problem(axis.key, shown(axis, value), "is the same as "
                                   f"{shown(axis, seen[meant])}, and so would the runs be: "
                                   "leave it out; --repeat 2 varies the seed"))
            seen[meant] = value
    for left, right in ONE_OF:
        if left in names and right in names:
            out.append(Problem(left, None, f"vary this or {right}, not both"))
    if repeat < 1:
        out.append(Problem("", None, f"--repeat {repeat}: give a number from 1"))
    elif repeat > 1 and _SEED in names:
        out.append(Problem(_SEED, None, "--repeat varies it too: leave one of the two out"))
    for axis in axes:
        like = _LIKE_RANGE if tries is None else _LIKE_DRAWN
        if axis.range is None and (odd := next(filter(like.match, axis.values), None)):
            out.append(Problem(axis.key, odd, "is no range; those are written log:1e-5..1e-2, "
                                              "32..512:32, 0.1..0.5, and stand alone"))
    for axis in axes:
        if axis.range is not None and (why := axis.range.amiss() or (
                "is a range: say how many values to try, --tries 40" if tries is None else None)):
            out.append(Problem(axis.key, ",".join(axis.values), why))
    for axis in axes if tries is not None and not out else ():
        for value in axis.values if axis.range is None else ():  # it may not be drawn for long
            try:
                _with_values(spec, {axis.key: value})
            except SpecError as err:  # of another key: it may go with what else is drawn
                out += [problem for problem in err.problems if problem.key == axis.key]
    sizes = [len(axis.values) for axis in axes] if tries is None else [tries]
    many = math.prod(sizes) * max(repeat, 1)
    if many > MOST:
        sizes += [repeat] if repeat > 1 else []
        out.append(Problem("", None, f"{' × '.join(map(str, sizes))} are {many:,} runs; a sweep "
                                     f"has at most {MOST:,}"))
    return out


def _number(value: str) -> object:
    """What 0.1 and 1e-1 have in common; another text itself."""
    try:
        found = Decimal(value)
    except InvalidOperation:
        return value
    return found if found.is_finite() else value


def _several(spec: RunSpec, key: str) -> str | None:
    """Why it is not known what of the command is the value of its option `key`, of which one word
    would be varied: the word behind it is of the same kind, as in `--layers 1 2 3`. A folder or
    file behind a number or name is an argument of its own."""
    place = _option(spec, key)
    if place is None or place[1]:
        return None
    option, value, *rest = list(spec.task.command or ())[place[0] - 1:]
    if not rest or _FLAG.match(rest[0]) or _kind(value) != _kind(rest[0]):
        return None
    behind = itertools.takewhile(lambda word: not _FLAG.match(word), rest)
    option, value, *_ = words = shown_words([option, value, *behind])
    return f"{clean(' '.join(words), 60)} of the command may be several " \
           f"values, of which one would vary: if {value} is its only one, write " \
           f"{option}={value}; else start each by itself, with run --queue"


def _kind(word: str) -> str:
    """Whether a word is a number, a file (or KEY=VALUE), or a name."""
    return "number" if isinstance(_number(word), Decimal) else \
        "name" if re.fullmatch(r"[\w-]+", word) else "file"


def _unknown(key: str, spec: RunSpec) -> Problem:
    command = spec.task.command or ()
    if f"--{key}" in command and key not in options(command):
        return Problem(key, None, f"--{key} of the command is a flag, and has no value to vary")
    if "." not in key and spec.task.command and _WORD.fullmatch(key) \
            and key not in own_command.used(command):
        ours = f", or --{key} {{{key}}}" if key in own_command.PLACEHOLDERS else ""
        return Problem(key, None, "there is no such key; to vary an argument of the command, "
                                  f"have it say --{key} VALUE{ours}")
    try:
        apply_sets({}, [f"{key}=0"])
    except SpecError as err:
        return replace(err.problems[0], value=None)
    whole = spelled_out(f"{key}=").removesuffix("=")
    return Problem(key, None, "can't vary" if whole == key
                   else f"there is no such key; did you mean {whole}?")


def _with_values(spec: RunSpec, values: dict[str, str]) -> RunSpec:
    """The spec with these values. Raises SpecError."""
    data = to_dict(spec, defaults=False)
    own = {key: place for key in values
           if not _is_key(key) and (place := _option(spec, key)) is not None}
    for key, (at, before) in own.items():  # braces would be a placeholder
        value = values[key].replace("{", "{{").replace("}", "}}")
        data["task"]["command"][at] = before + value
    apply_sets(data, [f"{k}={v}" for k, v in values.items() if k not in own])
    made = from_dict(data)
    most = modes.get(made.parallel.mode).most_devices
    if "parallel.mode" not in values or most is None:
        return made
    # Modes are compared on the same devices: one that uses fewer takes the first of them.
    ids, pick = made.devices.ids, made.devices.pick
    return replace(made, devices=replace(made.devices, ids=ids and ids[:most],
                                         pick=pick and min(pick, most)))


def _is_key(key: str) -> bool:
    return key in keys() or key.startswith("task.params.")


def _option(spec: RunSpec, key: str) -> tuple[int, str] | None:
    """Where the command has the value of its option `key`, and what stands before it there; None
    also where a placeholder of ours is the value."""
    command = spec.task.command or ()
    places = {name.replace("-", "_"): place for name, place in options(command).items()}
    place = places.get(key.replace("-", "_"))
    if place is None or any(m.group(1) in own_command.PLACEHOLDERS
                            for m in own_command.TOKEN.finditer(command[place[0]])):
        return None
    return place


def unheard(specs: Iterable[RunSpec], axes: Sequence[Axis], repeat: int) -> list[Problem]:
    """Keys that do not reach the command that a member runs: all of them would train alike."""
    varied = [(axis.key, axis.key) for axis in axes]
    varied += [(_SEED, f"--repeat {repeat}")] if repeat > 1 else []
    out: dict[str, Problem] = {}
    for spec in specs:
        command = spec.task.command
        if command is None:
            continue
        for key, said in varied:
            if key in out or not _is_key(key) or (
                    own_command.is_told(command, key) and key in keys()):
                continue
            out[key] = own_command.unheard(
                command, key, said="" if said == key else said,
                otherwise="it has no placeholder. Give the command an option, as --width 64, and "
                          "vary that: --grid width=64,128")
    return list(out.values())


def _compared(found: Sequence[Member], of: int) -> list[Problem]:
    """What keeps the `of` members from being compared before their end, if they are to be."""
    run, out = found[0].spec.run, list[Problem]()
    if not run.stop_worse and run.halving is None:
        return out
    key, least = ("run.halving", run.halving) if run.halving else ("run.stop_worse", FIRST + 1)
    if run.halving and run.stop_worse:
        out.append(Problem(key, least, "does not go with run.stop_worse: choose one of them"))
    if of < least:
        out.append(Problem(key, None, f"compares {least} runs or more, and here are {of}"))
    command = found[0].spec.task.command
    if command and any(not m.spec.run.limit and not m.spec.train.steps for m in found):
        out.append(Problem("run.limit", None, f"{key} needs to know how long a run of a command "
                                              "takes: give it a limit, --limit 5m"))
    if isinstance(run.metrics, dict) and not run.best and "loss" not in run.metrics:
        name = next(iter(run.metrics), "NAME")
        out.append(Problem("run.best", None, f"{key} needs to know which value decides: --set "
                                             f"run.best=min:{name}, or max:{name}"))
    return out


def _name(base: str, values: dict[str, str], repeat: int | None) -> str:
    """"vgg lr=3e-4 size=128 #2", at most as long as a name may be."""
    words = [f"{key}={clean(value, _LONGEST_VALUE)}" for key, value in values.items()]
    words += [f"#{repeat}"] if repeat is not None else []
    text = "".join(f" {word}" for word in words)
    return clean(base[:max(12, LONGEST_NAME - len(text))] + text, LONGEST_NAME)
