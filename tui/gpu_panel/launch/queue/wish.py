"""What a person wants a run to wait for, from texts to what the engine takes. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gpu_engine.common.errors import Problem, SpecError, UserError
from gpu_engine.queue.submit import When
from gpu_engine.queue.words import moment
from gpu_engine.spec.schema import RunSpec
from gpu_engine.sweep import values
from gpu_engine.sweep.grid import Member, members, varied

DEVICES, COUNT, FREE, AFTER, BEGIN, PRIORITY, FREE_FOR, VARY, REPEAT = FIELDS = (
    "devices", "count", "free", "after", "begin", "priority", "free-for", "vary", "repeat")


class Wrong(Exception):
    """What was typed into a field does not fit; says why."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(why)
        self.field = field


@dataclass(frozen=True, slots=True)
class Wish:
    """The texts of the dialog's fields."""

    any: bool = False
    """Any `count` devices, not those that are ticked."""
    count: str = "1"
    free: str = ""
    """GiB that must be free on each of any devices; empty: not asked."""
    after: str = ""
    """The id of the run that has to complete first; empty: none."""
    begin: str = ""
    priority: str = ""
    free_for: str = ""
    vary: str = ""
    """A sweep over these values: "train.lr=1e-3,3e-4 batch.size=64,128"; empty: one run."""
    repeat: str = ""
    """How often each combination runs, with other seeds."""

    def spec(self, spec: RunSpec) -> RunSpec:
        """`spec` on the devices that the person wants. Raises Wrong."""
        if not self.any:
            return replace(spec, devices=replace(spec.devices, pick=None, free_gib=None))
        pick = _whole(COUNT, self.count, "1")
        if pick < 1:
            raise Wrong(COUNT, f"{pick}: give 1 or more")
        free = _number(FREE, self.free, "") if self.free.strip() else None
        if free is not None and free <= 0:
            raise Wrong(FREE, f"{self.free.strip()}: give more than 0 GiB, or nothing")
        return replace(spec, devices=replace(spec.devices, ids=None, pick=pick, free_gib=free))

    def when(self, now: float) -> When:
        """When it may start. `now`: Unix seconds. Raises Wrong."""
        begin = None
        if self.begin.strip():
            try:
                begin = moment(self.begin, now)
            except UserError as err:
                raise Wrong(BEGIN, str(err).removeprefix("--begin ")) from None
        return When(self.after or None, begin, _whole(PRIORITY, self.priority, "0"),
                    _number(FREE_FOR, self.free_for, "0"))

    def words(self) -> list[str]:
        """The options of `gpu-engine run` that ask for the same, apart from the devices."""
        given = (("--after", self.after), ("--begin", self.begin), ("--priority", self.priority),
                 ("--free-for", self.free_for), ("--repeat", self.repeat),
                 *(("--grid", text) for text in self.vary.split()))
        return ["--queue", *(word for name, text in given if text.strip()
                             for word in (name, text.strip()))]

    def members(self, spec: RunSpec) -> list[Member]:
        """The runs of the sweep; none if there is just one run. Raises Wrong."""
        repeat = _whole(REPEAT, self.repeat, "1")
        if repeat < 1:
            raise Wrong(REPEAT, f"{repeat}: give 1 or more")
        if not self.vary.strip() and repeat == 1:
            return []
        try:
            axes = [values.parse(text) for text in self.vary.split()]
            return members(spec, axes, repeat)
        except SpecError as err:
            raise Wrong(VARY, str(err.problems[0])) from None
        except UserError as err:
            raise Wrong(VARY, str(err)) from None


def to_vary(spec: RunSpec) -> str:
    """What is mostly varied, to type values behind it: "train.lr=", or "lr=" for an option."""
    command = spec.task.command
    if command is None or "{lr}" in command:
        return "train.lr="
    name = varied(command)
    return f"{name}=" if name else ""


def field_of(error: UserError) -> tuple[str | None, str]:
    """The field that an error of the engine is about, if it is about one; and what it says."""
    if isinstance(error, SpecError):
        first = error.problems[0]
        return _field_of_key(first), str(first.message if _field_of_key(first) else first)
    text = str(error)
    for field in (AFTER, FREE_FOR):
        if text.startswith(f"--{field} "):
            return field, text.removeprefix(f"--{field} ")
    return None, text


def _field_of_key(problem: Problem) -> str | None:
    return {"devices.pick": COUNT, "devices.free_gib": FREE}.get(
        problem.key, DEVICES if problem.key.startswith("devices.") else None)


def _whole(field: str, text: str, otherwise: str) -> int:
    try:
        return int(text.strip() or otherwise)
    except ValueError:
        raise Wrong(field, f"{text.strip()}: give a whole number") from None


def _number(field: str, text: str, otherwise: str) -> float:
    try:
        found = float(text.strip() or otherwise)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise Wrong(field, f"{text.strip()}: give a number")
    return found
