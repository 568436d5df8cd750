"""What each command prints with --json, as types, and the schemas that follow from these.

The commands' own texts are checked against the types by the type checker, and against the schemas
by tests/cli/test_outputs.py.
"""

from __future__ import annotations

import json
from typing import Any, Literal, NotRequired, Required, TypedDict, get_type_hints

import msgspec

from gpu_engine.common.errors import UserError, meant
from gpu_engine.devices.availability import Availability
from gpu_engine.devices.records import Device, HostSample, Inventory, Sample
from gpu_engine.diagnose.hangs import Hang
from gpu_engine.diagnose.steps import Parts
from gpu_engine.diagnose.verdicts import Verdict
from gpu_engine.doctor.machine import Finding
from gpu_engine.events.rank_view import RankView
from gpu_engine.events.schema import KINDS
from gpu_engine.events.view import Progress
from gpu_engine.export.exporter import Exported
from gpu_engine.launching.fit import Trial
from gpu_engine.notify.config import To
from gpu_engine.plan.batch import Batch
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.remote.reach.hosts import Host
from gpu_engine.remote.reach.protocol import Chosen, Looked, Piece, Told, Welcome
from gpu_engine.remote.run.removal import Outcome
from gpu_engine.report.usage import Sum
from gpu_engine.runs.compare import RunFacts
from gpu_engine.runs.job import Job
from gpu_engine.runs.notes import Notes
from gpu_engine.runs.state import State
from gpu_engine.settings.schema import Setting
from gpu_engine.spec import json_schema
from gpu_engine.spec.catalog import TaskField, TaskInfo
from gpu_engine.spec.schema import RunSpec
from gpu_engine.sweep.study import SoFar
from gpu_engine.sweep.table import One, Point


class Checked(TypedDict):
    ok: bool
    state: State
    ranks: list[dict[str, Any]]
    reductions: list[dict[str, Any]]
    products: list[dict[str, Any]]
    pairs: list[dict[str, Any]]
    doubts: list[str]
    env: dict[str, str]


class CheckedHost(TypedDict):
    host: Host
    opened: float | None
    welcome: dict[str, Any] | None
    inventory: Inventory | None
    clock: float | None
    problems: list[str]
    ok: bool


class Weights(TypedDict):
    step: int
    checkpoint: str
    tensors: int
    bytes: int
    warnings: list[str]


class Change(TypedDict):
    """A key of a shipped preset that a person's own of its name has otherwise."""

    key: str
    shipped: str | None
    own: str | None


class Preset(TypedDict):
    name: str
    path: str
    shipped: bool | None
    mode: str | None
    problem: str | None
    description: str
    changes: list[Change] | None


class Begun(TypedDict):
    kind: Literal["run"]
    id: str
    path: str
    name: str
    chosen: str | None
    warnings: list[str]


class Best(TypedDict):
    name: str
    value: float


class Listed(TypedDict):
    """What is told of a run beside its state."""

    path: str
    notes: Notes
    task: str
    mode: str
    seconds: float | None
    steps: int | None
    loss: float | None
    best: Best | None
    slurm: NotRequired[Job]


class Waiting(TypedDict):
    place: int
    id: str
    name: str
    devices: str
    reason: str | None
    priority: int
    submitted: float
    begin: float | None
    after: str | None
    host: str
    path: str


class Sweep(TypedDict):
    id: str
    name: str
    begun: float
    keys: list[str]
    members: int
    counts: dict[str, int]


_typed_dict: Any = TypedDict  # as a function that makes a type of what is not known before


def _with(record: Any, *others: Any, total: bool = True, **more: Any) -> Any:
    """The type of an object that has the fields of these records and `more`; None: without that
    one. Not `total`: it may lack any that is not Required."""
    hints = {name: hint for cls in (record, *others)
             for name, hint in get_type_hints(cls, include_extras=True).items()} | more
    return _typed_dict(record.__name__, {name: hint for name, hint in hints.items()
                                         if hint is not None}, total=total)


def _of(title: str, /, **fields: Any) -> Any:
    return _typed_dict(title, fields)


_TEXT, _NUMBER = str | None, float | None
_PLAN = _with(LaunchPlan, total=False, version=int, replicas=int)
_SPENT = _with(Parts, rank=None, workers=None, on_device=None, clock=str,
               shares=dict[str, _NUMBER])
OUTPUTS = {
    "check": Checked,
    "compare": _of("Compared", runs=list[RunFacts], differences=dict[str, list[_TEXT]]),
    "curve": _of("Curve", id=str, value=str, least=_NUMBER, greatest=_NUMBER, last=_NUMBER,
                 recorded=int, exact=bool, points=list[tuple[int, float]]),
    "describe": (task := _with(TaskInfo, whole=None, file=str, fields=list[_with(
        TaskField, total=False, required=None, kind=None, choices=list[str])]), list[task]),
    "devices": (_with(Inventory, visible_variable=None, hidden=None, host=HostSample,
                      devices=(listed := list[_with(Sample, Device, Availability, device=None)])),
                list[_of("Machine", host=str, state=str, reason=_TEXT, waiting=int, free=int,
                         freest=bool, devices=listed)],
                _with(Welcome, kind=Literal["machine"]), _with(Looked, kind=Literal["look"])),
    "doctor": _of("Doctor", ok=bool, findings=list[_with(Finding, check=str)]),
    "errors": _of("Errors", errors=list[_of("Error", what=_TEXT, value=Any, why=str,
                                            remedy=_TEXT)]),
    "export": (Weights, list[Exported], Chosen),
    "follow": (_with(Told, kind=Literal["state"]), _with(State, kind=Literal["ended"]),
               _with(Piece, data=None, kind=Literal["piece"], text=str)),
    "fit": _of("Fit", largest=int | None, knee=int | None, trials=list[Trial],
               proposal=Batch | None),
    "hosts": _of("Hosts", hosts=list[Host], file=str),
    "hosts check": list[CheckedHost],
    "note": _with(Notes, id=str),
    "notify": (_of("Notify", file=str, to=list[_with(To, url=None, command=None, token=None,
                                                     where=str)]),
               list[_of("Sent", name=str, kind=str, sent=bool, problem=_TEXT)]),
    "plan": (_PLAN, list[_of("Member", index=int, name=str, values=dict[str, str], seed=int,
                             plan=_PLAN)]),
    "presets": (list[Preset], RunSpec),
    "queue": list[Waiting],
    "run": (_of("Started", id=str, path=str), _of("Submitted", id=str, runs=list[str]),
            Begun, _of("Now", kind=Literal["state"], state=str),
            _with(State, kind=Literal["ended"]),
            *(_with(cls, total=False, values=None, kind=Required[Literal[kind]],
                    rank=Required[int]) for kind, cls in KINDS.items())),
    "runs": list[_with(State, Listed)],
    "runs rm": list[_with(Outcome, id=str)],
    "settings": _of("Settings", path=str, keys=dict[str, str], settings=list[_with(
        Setting, kind=None, env=None, value=Any, source=str)]),
    "show": _of("Shown", state=State, path=str, progress=Progress, notes=Notes, hang=Hang | None,
                ranks=list[_with(RankView, step_times=None, spans=None)], plan=dict[str, Any],
                slurm=NotRequired[Job], diagnosis=_of(
                    "Diagnosis", verdicts=list[Verdict], ranks=list[_of(
                        "RankTimes", rank=int, last=_SPENT, run=_SPENT)])),
    "stacks": list[_of("Stacks", rank=int, text=_TEXT, problem=_TEXT)],
    "stop": _of("Stop", id=str, state=str, reason=_TEXT),
    "sweep": list[Sweep],
    "sweep show": _of("Table", id=str, name=str, begun=float, members=int, by=str,
                      search=SoFar | None,
                      points=list[_with(Point, members=None, counts=dict[str, int],
                                        runs=list[str])],
                      runs=list[_with(One, extents=None, rungs=None, why=None, best=_NUMBER,
                                      last=_NUMBER, cause=_TEXT)]),
    "trace": list[_of("Traced", rank=int, path=_TEXT, problem=_TEXT)],
    "usage": _of("Usage", since=float, until=float, rows=list[_with(
        Sum, name=None, device_seconds=float, user=NotRequired[str], run=NotRequired[str],
        device=NotRequired[str])])}
"""The type of what each command prints, or a tuple of several; of `run` and `resume`, of a
line. errors: of one that fails."""


def schema(name: str) -> object:
    """The schema of what the command `name` prints, "preset": of presets; "list": the names.
    Raises UserError."""
    if name == "preset":
        return json_schema.preset()
    if name == "list":
        return ["preset", *OUTPUTS]
    if name not in OUTPUTS:
        raise UserError(f"--schema {name}: {meant(name, ('preset', *OUTPUTS))}")
    types = OUTPUTS[name]
    any_of, known = msgspec.json.schema_components(
        types if isinstance(types, tuple) else [types], ref_template="#/$defs/{name}")
    # A number that is not finite is a text: `events.writer.json_safe`.
    return {"$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": f"gpu-engine {name} --json", "anyOf": list(any_of), "$defs": json.loads(
                json.dumps(known).replace('"type": "number"', '"type": ["number", "string"]'))}
