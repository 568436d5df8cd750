"""Run folders as somebody might send them, or leave them where they are looked at.

`CASES` has a function for each: it gets a run folder that is good, and makes it hostile.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import pickle
import shutil
import socket
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gpu_engine.common import procs
from gpu_engine.plan.records import Code, Interpreter, Process, ResumeFrom, Sending
from gpu_engine.remote.run.parts import Base, Part
from gpu_engine.runs import digest, environment, job, notes, sweep, trust, waiting
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import AttemptRecord, Cause, RankProcess, State
from gpu_engine.spec.write import to_toml

from .. import event_lines
from ..plans import plan

T0 = 1_790_000_000.0
SECRET = "nobody else may read this"
EVIL = "\x1b]52;c;aGk=\x07\x1b]0;owned\x07\x9d0;owned\x9c\x9b31m\x1b[2J\u202ereversed\u2066\x00\r\b"
"""What a terminal would obey: clipboard, title, both in C1 too, colour, erase, bidi, NUL."""
LONE = "half a pair: \ud800"
"""JSON may hold it; no encoding can write it."""
WRONG: tuple[object, ...] = (None, -1, 1e308, EVIL, [], [[1]], {}, {"a": 1}, True)
"""Instead of any value."""
GOOD = "900d"
"""The id of a good run beside them."""
DIGITS = "5,000 digits"
"""Stands for a number that has so many: Python itself refuses to write it."""
STEP = "checkpoints/step-00000010"


@dataclass
class World:
    """What hostile folders point at, all of it below `root` and outside of the home. Nothing of it
    may change."""

    root: Path
    victim: tuple[int, int | None] = (0, None)
    """Pid and start time of a process that has nothing to do with any run."""
    locks: list[int] = field(default_factory=list)
    """Descriptors of locks that are held, so that a run looks alive."""

    @property
    def runs(self) -> Path:
        """The runs folder."""
        return self.root / "home" / "runs"

    @property
    def outside(self) -> Path:
        """Files and folders of the person that no run has to do with."""
        return self.root / "outside"

    @property
    def marker(self) -> Path:
        """Is made by whatever is executed."""
        return self.root / "executed"

    @property
    def touch(self) -> list[str]:
        """A command that leaves the marker."""
        return ["sh", "-c", f"touch '{self.marker}'", "x"]

    def make(self) -> None:
        """Make what stands outside."""
        self.outside.mkdir()
        (self.outside / "bashrc").write_text(f"# {SECRET}\nexport A=1\n")
        (self.outside / "shared").write_text("export A=1\n")
        shutil.copytree(_template(self) / "checkpoints", self.outside / "checkpoints")
        (self.outside / "checkpoints" / "keep.txt").write_text(SECRET)
        (self.outside / "ranks").mkdir()
        (self.outside / "ranks" / "00000.log").write_text(f"{SECRET}\n")
        program = self.outside / "program"
        program.write_text(f"#!/bin/sh\ntouch '{self.marker}'\n")
        program.chmod(0o755)

    def close(self) -> None:
        """Let go of the locks."""
        while self.locks:
            os.close(self.locks.pop())


Case = Callable[[Path, World], None]
"""Of the run folder and the world around it."""
CASES: dict[str, Case] = {}
"""What is hostile about a folder → makes it so."""


def case(function: Case) -> Case:
    """Its docstring, or its name, says what is hostile."""
    CASES[(function.__doc__ or function.__name__.replace("_", " ")).strip().rstrip(".")] = function
    return function


# --- good folders ---------------------------------------------------------------------------------

def write(path: Path, value: object) -> None:
    """As JSON, also what JSON should not hold."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(as_json(value))


def as_json(value: object) -> str:
    """The value as JSON, NaN and infinities too, on one line."""
    return json.dumps(value).replace(json.dumps(DIGITS), "1" * 5000)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def state_of(name: str = "toy", state: str = "failed") -> dict[str, Any]:
    """A state with every field set."""
    return State(
        state, "0000", name, T0, T0 + 1, T0 + 61, 2, 2**22 - 3, 17, procs.boot_id(),
        (RankProcess(0, 2**22 - 3, 18, 1), RankProcess(1, 2**22 - 3, 19, -9)), 1, "rank 0: boom",
        Cause("boom\nand more", 0, "RuntimeError", "Traceback of it\n  line", "a"),
        (AttemptRecord(1, T0 + 1, T0 + 30, "failed", "boom", ("train.lr=1",), 0),
         AttemptRecord(2, T0 + 31, T0 + 61, "failed", "boom", ("train.lr=2",), 1)),
        None, ("train.lr=3",)).to_dict()


def plan_of(folder: Path) -> dict[str, Any]:
    """A plan with every field set."""
    spec = {"name": "toy", "task": {"use": "gpu_engine.tasks.digits:Digits"},
            "train": {"steps": 100, "best": "min:loss"}, "devices": {"ids": ["cpu:0", "cpu:1"]}}
    processes = tuple(Process((sys.executable, "-c", "pass"), {"A": "1"}, (rank,), "rank", (0,),
                              f"ranks/{rank:05d}.log", ("B",), None) for rank in (0, 1))
    return plan(spec=spec, id="0000", cwd=str(folder), origin="key", processes=processes,
                lines=("gpu-engine run toy",), warnings=("the last batch is dropped",),
                code=Code(str(folder), 3, 4, "a1b2", (Sending("a", "/x", False, 1, 2),)),
                interpreter=Interpreter(sys.executable, "run.python", "3.12.4", "2.13.0", "13.0",
                                        None, str(folder)),
                resume_from=ResumeFrom("step-00000010", 2)).to_dict()


def events_of(rank: int) -> list[bytes]:
    """A line of every kind of event, with every field set."""
    line = partial(event_lines.line, t=T0 + 2)
    return [
        line("start", {"rank": rank, "local_rank": rank, "node": 0, "pid": 2**22 - 3, "started": 18,
                       "world_size": 2, "device": [f"CPU core {rank}"], "attempt": 2}),
        line("schedule", {"total_steps": 100, "steps_per_epoch": 50, "epochs": 2, "examples": 1437,
                          "dropped": 1, "batch": 32, "first_step": 0}),
        *(line("step", {"step": s, "n": 1, "epoch": 0, "losses": [2.0 / s], "loss": 2.0 / s,
                        "lr": 0.1, "samples_per_s": 5.0, "data_wait": 0.1, "grad_norm": 1.0,
                        "skipped": 0, "others": {"1": {"name": "Adam", "step": s, "n": 1,
                                                       "loss": 1.0, "losses": [1.0]}}})
          for s in range(1, 21)),
        line("training", {"number": 2, "step": 20, "name": "Adam", "optimizer": 1}),
        line("memory", {"rss": 1 << 30, "gpu_allocated": [1], "gpu_reserved": [2],
                        "gpu_peak": [3], "gpu_process": 4}),
        line("metric", {"step": 20, "words": 1.5}),
        line("eval", {"step": 20, "accuracy": 0.5, "loss": 1.25}),
        line("checkpoint", {"step": 10, "path": STEP, "seconds": 1.0, "bytes": 5, "blocked": 0.1}),
        line("phase", {"phase": "forward", "since": T0, "step": 20, "done": 1, "total": 2,
                       "detail": "waits for rank 1"}),
        line("warning", {"message": "the loss is not finite"}),
        line("error", {"type": "RuntimeError", "message": "boom", "traceback": "of it",
                       "phase": "forward", "step": 20, "allocated": 1, "reserved": 2,
                       "requested": 3}),
        line("end", {"outcome": "failed", "steps": 20, "seconds": 3.0}),
    ]


def manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest that fits the files of a checkpoint."""
    return {"step": 10, "metrics": {"loss": 1.0, "accuracy": 0.5}, "files": {
        p.name: {"size": p.stat().st_size, "sha256": hashlib.sha256(p.read_bytes()).hexdigest()}
        for p in folder.iterdir() if p.name != "manifest.json"}}


def finished(path: Path) -> None:
    """A run of two ranks that has failed in its second attempt, with all files that there can be
    of one on this machine."""
    for folder in (path, path / "ranks", path / STEP, path / "specs"):
        folder.mkdir(parents=True, mode=0o700)
    write(path / "state.json", state_of())
    write(path / "plan.json", plan_of(path))
    toml = to_toml(plan(spec={"name": "toy"}).spec)
    for name in ("spec.toml", "specs/00001.toml"):
        (path / name).write_text(toml)
    for name in ("lock", "supervisor.log"):
        (path / name).write_text("")
    for rank in (0, 1):
        (path / f"ranks/{rank:05d}.jsonl").write_bytes(b"".join(events_of(rank)))
        (path / f"ranks/{rank:05d}.log").write_text(f"rank {rank} says hello\n")
    (path / "ranks/00000.log.1").write_text("before\n")
    (path / "devices.jsonl").write_bytes(event_lines.line(
        "devices", {"ids": ["cpu:0", "cpu:1"], "utilization": [0.5, 0.5], "memory_used": [1, 1],
                    "temperature": [40.0, None], "power": [1.0, 2.0]}, t=T0 + 2))
    write(path / environment.FILE, asdict(environment.Environment(
        "0.1.0", "3.12.4", "2.13.0", "580", "box", "2 × CPU core", "/x", "a" * 40, 1)))
    write(path / notes.FILE, asdict(notes.Notes("mine", ("lr",), "a note\nof two lines")))
    write(path / sweep.FILE, asdict(sweep.Member("s1", "grid", 1, 1, T0, {"train.lr": "1"}, 1, 1,
                                                 1.0)))
    (path / "notify.log").write_text(f"2026-09-21 14:03:11\tfailed 2 {T0} 1\tphone\tsent\n")
    (path / STEP / "state.pt").write_bytes(b"weights")
    write(path / STEP / "manifest.json", manifest_of(path / STEP))


def on_hosts(path: Path) -> None:
    """Make it a run that went on two hosts."""
    for node, name in enumerate(("a", "b")):
        write(path / f"hosts/{name}.json", asdict(Part(
            host=name, node=node, ranks=(node,),
            spec={"name": "toy"}, folders=("/x",), code="a1b2", key="0" * 32,
            checkpoint="step-00000010", fresh=(0,), bases=(Base(0, 0),),
            run="ab12", path="/x/runs/ab12", skew=0.5, state="failed", heard=T0,
            problem="no route", since=T0)))
        (path / f"hosts/{name}.log").write_text("says the supervisor\n")
        shutil.copy(path / "devices.jsonl", path / f"hosts/{name}.devices.jsonl")
    former = read(path / "hosts/b.json")
    former["host"] = "c"
    write(path / "hosts/former/c.json", former)


def of_slurm(path: Path) -> None:
    """Make it a job of Slurm that waits."""
    write(path / job.FILE, asdict(job.Job(
        4711, "PENDING", "Priority", 1, T0, T0, "gpu[1-2]", "last words",
        job.Request(1, 2, ("account=x",)), "no answer", T0)))
    (path / job.SCRIPT).write_text("#!/bin/sh\nexit 1\n")
    change(path / "state.json", state="queued", pid=None)


def waits(path: Path) -> None:
    """Make it a run that waits for its turn."""
    write(path / waiting.FILE, asdict(waiting.Entry(
        submitted=T0, number=1.0, host=socket.gethostname(), ids=("cpu:0",), count=1,
        within=("cpu:0",), free=1, cpu=True, begin=T0, code="a1b2", root="/x", folder="/x")))
    change(path / "state.json", state="queued", pid=None, cause=None, attempts=[])


def enters_the_line(path: Path) -> None:
    """As if it had been submitted by its owner."""
    waiting.enter(path)


def runs_now(path: Path, world: World, *, locked: bool = True) -> None:
    """Make it look as if it ran: its lock is held. Not `locked`: as if its supervisor had died."""
    change(path / "state.json", state="running", ended=None, exit_code=None, cause=None,
           reason=None, pid=world.victim[0], ticks=world.victim[1])
    if locked:
        fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_EX)
        world.locks.append(fd)


def change(path: Path, **values: object) -> None:
    """Change fields of a JSON file."""
    write(path, read(path) | values)


def _template(world: World) -> Path:
    path = world.root / "template"
    if not path.exists():
        finished(path)
    return path


def good(path, world):
    """A copy of the finished run, as if it had always been called so."""
    shutil.copytree(_template(world), path)
    change(path / "state.json", id=path.name)
    change(path / "plan.json", id=path.name)


# --- files that are not what they should be -------------------------------------------------------

HERE = ("state.json", "plan.json", "spec.toml", "specs/00001.toml", "lock", "supervisor.log",
        "ranks/00000.jsonl", "ranks/00000.log", "ranks/00000.log.1",
        "devices.jsonl", "environment.json", "notes.json", "sweep.json", digest.FILE,
        "notify.log", f"{STEP}/manifest.json", f"{STEP}/state.pt")
ELSEWHERE = ("hosts/a.json", "hosts/a.log", "hosts/a.devices.jsonl", "hosts/former/c.json")
OF_SLURM = ("slurm.json", "job.sh", "stop")
WAITING = ("queue.json",)
FILES = (*HERE, *ELSEWHERE, *OF_SLURM, *WAITING)
JSON_FILES = tuple(name for name in FILES if name.endswith(".json"))
FOLDERS = ("ranks", "checkpoints", STEP, "specs", "hosts", "hosts/former")


def prepared(name: str, path: Path) -> Path:
    """The path of a file of the run, which has become one that has such a file."""
    if name.startswith("hosts"):
        on_hosts(path)
    elif name in OF_SLURM:
        of_slurm(path)
    elif name in WAITING:
        waits(path)
    elif name == digest.FILE:
        digest.make(Run(path))
    return path / name


def linked(name, path, world):
    """A file that is a link to one of the person's."""
    file = prepared(name, path)
    file.unlink(missing_ok=True)
    file.symlink_to(world.outside / "bashrc")


def moved(name, path, world):
    """A file that is a link to the same outside: all of it is as it should be, but the place."""
    file, target = prepared(name, path), world.outside / f"moved-{name.replace('/', '-')}"
    if not file.exists():
        file.touch()
    file.rename(target)
    file.symlink_to(target)


def dangling(name, path, world):
    """A file that is a link to one that would have to be made first."""
    file = prepared(name, path)
    file.unlink(missing_ok=True)
    file.symlink_to(world.outside / "made")


def hard(name, path, world):
    """A file that is a hard link to one of the person's. It may be read, as backups have such too;
    nobody may write through it."""
    file = prepared(name, path)
    file.unlink(missing_ok=True)
    file.hardlink_to(world.outside / "shared")


def fifo(name, path, world):
    file = prepared(name, path)
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def listening(name, path, world):
    """A socket."""
    file = prepared(name, path)
    file.unlink(missing_ok=True)
    here = os.getcwd()  # noqa: PTH109
    os.chdir(file.parent)  # its whole path may be too long for an address
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(file.name)
    finally:
        os.chdir(here)


def device(name, path, world):
    """/dev/zero, which has no end."""
    file = prepared(name, path)
    file.unlink(missing_ok=True)
    os.mknod(file, 0o20666, os.makedev(1, 5))


def a_folder(name, path, world):
    file = prepared(name, path)
    file.unlink(missing_ok=True)
    file.mkdir()
    (file / "x").touch()


def sparse(name, path, world):
    """A file that seems to have 16 GiB, and takes none; less, where files may be long."""
    long = name.endswith((".log", ".log.1", ".jsonl"))
    size = 1 << 22 if long else 1 << 34
    os.truncate(_there(prepared(name, path)), size)


def closed(name, path, world):
    _there(prepared(name, path)).chmod(0)


def _there(file: Path) -> Path:
    file.touch()
    return file


HARD = "a hard link to a file of the person's"
KINDS: dict[str, Callable[[str, Path, World], None]] = {
    "a link to a file of the person's": linked, "a link to a good one outside": moved,
    "a link to what does not exist": dangling, HARD: hard,
    "a FIFO": fifo, "a socket": listening, "a folder": a_folder, "huge, and nothing": sparse,
    "closed": closed}
if os.geteuid() == 0:
    KINDS["a device"] = device
for _name in FILES:
    for _what, _make in KINDS.items():
        CASES[f"{_name} is {_what}"] = partial(_make, _name)
def _text(file: Path, text: bytes) -> None:
    file.write_bytes(text)


TEXTS: dict[str, bytes] = {
    "empty": b"", "null": b"null", "a list": b"[]", "a number": b"1", "cut": b'{"state": "fai',
    "100,000 lists deep": b"[" * 100_000 + b"]" * 100_000,
    "100,000 tables deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a number of 5,000 digits": b"1" * 5000, "not UTF-8": b'{"name": "\xff\xfe\x80"}',
    "NULs": bytes(1000)}
for _name in JSON_FILES:
    for _what, _content in TEXTS.items():
        CASES[f"{_name} is {_what}"] = lambda path, world, name=_name, content=_content: _text(
            prepared(name, path), content)
for _name in ("spec.toml", "specs/00001.toml"):
    for _what, _content in {
            "100,000 lists deep": b"a = " + b"[" * 100_000, "not UTF-8": b'name = "\xff"',
            "a number of 5,000 digits": b"seed = " + b"1" * 5000,
            "full of escapes": b'name = "\\u001b]52;c;aGk=\\u0007"\n[task]\nuse = "a:b"\n'
                               b'"\\u001b]0;owned\\u0007" = "\\u001b]0;owned\\u0007"\n',
            "no TOML, and says so with an escape": b'name = "\x1b]52;c;aGk=\x07"\n',
            "a command": b'[task]\ncommand = ["sh", "-c", "touch executed"]\n'
                         b'[run]\npython = "./program"\n'}.items():
        CASES[f"{_name} is {_what}"] = lambda path, world, name=_name, content=_content: _text(
            path / name, content)


# --- values ---------------------------------------------------------------------------------------

Place = tuple[str | int, ...]


def places(value: object, above: Place = ()) -> Iterator[Place]:
    """Where all values stand in a JSON value, the whole left out."""
    inside = value.items() if isinstance(value, dict) else \
        enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield (*above, key)
        yield from places(one, (*above, key))


def replaced(value: Any, place: Place, new: object) -> Any:
    """A copy of `value` with `new` at `place`."""
    key, *rest = place
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = replaced(copy[key], tuple(rest), new) if rest else new
    return copy


def in_every_text(value: object, change: Callable[[str], str]) -> object:
    """A copy of `value` whose texts, names of fields aside, are changed."""
    if isinstance(value, dict):
        return {k: in_every_text(v, change) for k, v in value.items()}
    if isinstance(value, list):
        return [in_every_text(v, change) for v in value]
    return change(value) if isinstance(value, str) else value


def in_every_number(value: object, new: object) -> object:
    """A copy of `value` with another value in place of each number."""
    if isinstance(value, dict):
        return {k: in_every_number(v, new) for k, v in value.items()}
    if isinstance(value, list):
        return [in_every_number(v, new) for v in value]
    return new if isinstance(value, int | float) and not isinstance(value, bool) else value


_KEPT = frozenset({"failed", "queued", "completed", "rank", "ddp", "cpu", "gloo", "none", "PENDING",
                   "min:loss", "loss", "a", "b", "c", "s1", "global"})
"""Texts of which only few are allowed: with another one the file says nothing at all."""


def _spoilt(text: str, by: str) -> str:
    return text if text in _KEPT or text == socket.gethostname() else f"{by}{text}{by}"


def spoil(name: str, by: str, path: Path) -> None:
    """Put `by` around every text of a JSON file, but those of which few are allowed."""
    file = prepared(name, path)
    write(file, in_every_text(read(file), partial(_spoilt, by=by)))


for _name in JSON_FILES:
    CASES[f"{_name} has escapes in every text"] = \
        lambda path, world, name=_name: spoil(name, EVIL, path)
    CASES[f"{_name} has half a surrogate pair in every text"] = \
        lambda path, world, name=_name: spoil(name, LONE, path)
    for _value in (float("nan"), float("inf"), -float("inf"), DIGITS, -(10**30), 0.5, 1e300):
        CASES[f"{_name} has {_value} for every number"] = \
            lambda path, world, name=_name, value=_value: write(
                file := prepared(name, path), in_every_number(read(file), value))


@case
def every_file_has_escapes_in_every_text(path, world):
    """Every file has escapes in every text, and it waits in the line."""
    for name in (*HERE, *WAITING):
        if name.endswith(".json"):
            spoil(name, EVIL, path)
    enters_the_line(path)


def _events(path: Path, *lines: dict[str, Any], rank: int = 0) -> None:
    """Append events as they are, whatever they hold."""
    with (path / f"ranks/{rank:05d}.jsonl").open("a") as file:
        for line in lines:
            file.write(as_json({"t": T0 + 3} | line) + "\n")


def _good_events() -> list[dict[str, Any]]:
    return [json.loads(line) for line in events_of(0)]


@case
def events_with_escapes_in_every_text(path, world):
    """Every text of every event has escapes."""
    for event in _good_events():
        _events(path, {k: in_every_text(v, lambda text: EVIL + text + EVIL) if k != "kind" else v
                       for k, v in event.items()})


@case
def names_of_values_with_escapes(path, world):
    """Names of values in events are escapes, and formulas."""
    for kind in ("eval", "metric"):
        _events(path, {"kind": kind, "step": 20, EVIL: 1.0, f"x{EVIL}": "NaN", "a\nb": 2.0,
                       "=cmd|' /C calc'!A1": 3.0, "@SUM(1)": 1.0, "+1": 1.0, "-1": 1.0})


@case
def names_that_are_formulas(path, world):
    """Names, notes and causes begin a formula."""
    formula = "=cmd|' /C calc'!A1"
    change(path / "state.json", name=formula, reason=formula,
           cause=asdict(Cause(formula, 0, formula, formula, None)))
    change(path / "notes.json", name=formula, note=formula)
    plan = read(path / "plan.json")
    plan["name"] = plan["spec"]["name"] = formula
    write(path / "plan.json", plan)
    _events(path, {"kind": "eval", "step": 20, formula: 1.0})


@case
def events_of_wrong_types(path, world):
    """Every field of every event has every wrong type."""
    for event in _good_events():
        for place in places(event):
            _events(path, *(replaced(event, place, new) for new in WRONG))


@case
def events_of_odd_numbers(path, world):
    """Events with numbers that nobody counts to."""
    for event in _good_events():
        for new in (float("nan"), "NaN", "Infinity", "-Infinity", DIGITS, 1e308, -1e308, 2**63,
                    -(2**63), 0.1):
            _events(path, in_every_number(event, new) | {"kind": event["kind"]})


@case
def events_a_line_of_8_mib(path, world):
    """An event has a text of 8 MiB."""
    _events(path, {"kind": "warning", "message": "x" * (8 << 20)})


@case
def a_line_of_many_events(path, world):
    """A line of its events is a list of many."""
    runs_now(path, world, locked=False)  # of a lost run the last step is looked for
    for kind in ("start", "error", "step"):
        with (path / "ranks/00000.jsonl").open("ab") as file:
            file.write(b"[" + b'{"kind":"%b"},' % kind.encode() * (1 << 16) + b"1]\n")


@case
def a_log_full_of_escapes(path, world):
    """Logs, of the supervisor too, are full of escapes."""
    for name in ("ranks/00000.log", "ranks/00000.log.1", "supervisor.log", "node0.log",
                 "notify.log"):
        (path / name).write_text(f"2026\tfailed 2\t{EVIL}\t{EVIL}\n" * 10, errors="surrogatepass")


@case
def a_log_of_one_line(path, world):
    """A log is one line of 8 MiB."""
    (path / "ranks/00000.log").write_text("x" * (8 << 20))


@case
def named_logs_with_escapes(path, world):
    """Names of files in the folder are escapes."""
    for name in (f"node{EVIL}.log", "node\n1.log", "ranks/\x1b[2J.jsonl", "hosts/x"):
        with contextlib.suppress(OSError):
            (path / name.replace("\0", "")).parent.mkdir(exist_ok=True)
            (path / name.replace("\0", "")).touch()


@case
def thousand_ranks(path, world):
    """Files of 1,000 ranks."""
    for rank in range(1_000):
        (path / f"ranks/{rank:05d}.jsonl").write_bytes(b"")


@case
def ranks_of_huge_numbers(path, world):
    """Files of ranks with numbers of 200 digits, and in other digits."""
    for name in ("9" * 200, "٣", "²", "-1", "0", "00", "1e5"):
        (path / f"ranks/{name}.jsonl").write_bytes(b"".join(events_of(0)))
        (path / f"ranks/{name}.log").write_text("hello\n")


# --- folders --------------------------------------------------------------------------------------

def linked_folder(name, path, world):
    """A folder of the run that is a link to the like outside."""
    folder = prepared(name, path)
    target = world.outside / name.partition("/")[0]
    if not target.exists():
        shutil.copytree(path / name.partition("/")[0], target)
    shutil.rmtree(folder)
    folder.symlink_to(world.outside / name)


for _name in FOLDERS:
    CASES[f"{_name} is a link to a folder outside"] = partial(linked_folder, _name)
    CASES[f"{_name} is a FIFO"] = lambda path, world, name=_name: (
        shutil.rmtree(folder := prepared(name, path)), os.mkfifo(folder))


@case
def links_in_circles(path, world):
    """All of it is links in circles."""
    for name in ("ranks", "checkpoints", "specs"):
        shutil.rmtree(path / name)
        (path / name).symlink_to(name)
    for name in ("state.json", "plan.json", "notes.json"):
        (path / name).unlink()
        (path / name).symlink_to(name)


@case
def a_temporary_file_is_a_link(path, world):
    """Names of temporary files are links."""
    for name in ("notes.json", "state.json"):
        for number in (1, os.getpid()):
            (path / f".{name}.{number}.tmp").symlink_to(world.outside / "bashrc")


@case
def an_empty_folder(path, world):
    """There is nothing in it."""
    shutil.rmtree(path)
    path.mkdir()


@case
def deep_folders(path, world):
    """Folders in it are 900 deep."""
    here = os.open(path, os.O_RDONLY)
    for _ in range(900):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)


@case
def others_may_write(path, world):
    """Everybody may write to it, and it is on a host that executes something."""
    on_hosts(path)
    _via(path, world)
    path.chmod(0o777)


@case
def others_may_write_to_its_files(path, world):
    """Everybody may write to its files, and it looks as if it ran."""
    runs_now(path, world)
    for folder, _, names in os.walk(path):
        for name in names:
            Path(folder, name).chmod(0o666)
        if Path(folder) != path:
            Path(folder).chmod(0o777)


def _given_away(path: Path) -> None:
    for folder, _, names in os.walk(path):
        for name in (".", *names):
            os.chown(Path(folder, name), 12345, 12345, follow_symlinks=False)


@case
def the_name_of_the_person_in_its_path(path, world):
    """Its sweep has a name that is a path, and an id that is one."""
    change(path / "sweep.json", sweep="../../outside", name="../../outside")


# --- what would be executed -----------------------------------------------------------------------

def _via(path, world):
    for name in ("hosts/a.json", "hosts/b.json", "hosts/former/c.json"):
        part = read(path / name)
        how = {"name": part["host"], "via": world.touch, "label": None, "folder": None,
               "ssh": f"-oProxyCommand={world.touch[2]}", "python": str(world.outside / "program")}
        write(path / name, part | how | {"host": how})  # once the host itself stood there


@case
def a_host_that_executes(path, world):
    """A host is reached by a command that executes something; the run has ended."""
    on_hosts(path)
    _via(path, world)


@case
def a_host_that_executes_and_is_lost(path, world):
    """A host is reached by a command that executes something; the run is lost."""
    on_hosts(path)
    _via(path, world)
    runs_now(path, world, locked=False)


@case
def a_host_that_executes_and_is_held(path, world):
    """A host is reached by a command that executes something; the run seems to go on."""
    on_hosts(path)
    _via(path, world)
    runs_now(path, world)


@case
def a_host_of_a_hostile_name(path, world):
    """Hosts have names that are options, paths and escapes."""
    on_hosts(path)
    for number, name in enumerate(("-oProxyCommand=touch executed", "..", "a;touch executed",
                                   "$(touch executed)", f"x{EVIL}".replace("\0", ""))):
        part = read(path / "hosts/a.json")
        part["host"] = name
        part["node"] = number
        with contextlib.suppress(OSError):
            write(path / "hosts" / f"{name.replace('/', '_')}.json", part)


@case
def a_plan_that_executes(path, world):
    """Every program that the plan names executes something."""
    plan = read(path / "plan.json")
    program = str(world.outside / "program")
    plan["spec"].setdefault("run", {})["python"] = program
    plan["interpreter"]["path"] = program
    plan["cwd"] = str(world.outside)
    for process in plan["processes"]:
        process |= {"argv": world.touch, "env": {"PATH": str(world.outside),
                                                 "LD_PRELOAD": program, "PYTHONSTARTUP": program}}
    write(path / "plan.json", plan)
    (path / "spec.toml").write_text(f'[run]\npython = "{program}"\n[task]\n'
                                    f"command = {json.dumps(world.touch)}\n")


@case
def a_plan_in_a_folder_with_an_environment(path, world):
    """The folder that the plan names has a .venv and modules that execute something."""
    folder = path / "project"
    (folder / ".venv" / "bin").mkdir(parents=True)
    for name in ("python", "python3"):
        shutil.copy(world.outside / "program", folder / ".venv" / "bin" / name)
    (folder / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    for name in ("gpu_engine", "msgspec", "getpass", "torch", "sitecustomize"):
        (folder / f"{name}.py").write_text(f"open({str(world.marker)!r}, 'w')\n")
    change(path / "plan.json", cwd=str(folder))


def _payload(world: World) -> bytes:
    class Bad:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch '{world.marker}'",)

    return pickle.dumps({"model": Bad(), "step": 10}, protocol=2)


@case
def a_checkpoint_that_executes(path, world):
    """A checkpoint is a pickle that executes something, and its hash fits."""
    (path / STEP / "state.pt").write_bytes(_payload(world))
    write(path / STEP / "manifest.json", manifest_of(path / STEP))


@case
def a_checkpoint_that_executes_zipped(path, world):
    """A checkpoint as torch writes it holds a pickle that executes something."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("archive/data.pkl", _payload(world))
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    (path / STEP / "state.pt").write_bytes(packed.getvalue())
    write(path / STEP / "manifest.json", manifest_of(path / STEP))


@case
def a_manifest_that_names_files_elsewhere(path, world):
    """A manifest names files by paths that lead elsewhere."""
    digest = hashlib.sha256((world.outside / "bashrc").read_bytes()).hexdigest()
    manifest = read(path / STEP / "manifest.json")
    for name in ("../../../../../outside/bashrc", str(world.outside / "bashrc"), "..", "", "\0",
                 f"x{EVIL}", "a/b"):
        manifest["files"][name] = {"size": 1, "sha256": digest}
    write(path / STEP / "manifest.json", manifest)


@case
def checkpoints_of_hostile_names(path, world):
    """Checkpoints have names that are none."""
    for name in ("step-\x1b]0;owned\x07", "step-99999999999999999999", "step-..", "step- 1",
                 "step-٣", "step-00000011\n"):
        shutil.copytree(path / STEP, path / "checkpoints" / name)


@case
def thousand_checkpoints(path, world):
    """There are 1,000 checkpoints."""
    for step in range(100, 1100):
        (path / f"checkpoints/step-{step:08d}").mkdir()


@case
def it_waits_and_executes(path, world):
    """It waits for its turn, and executes something when that comes."""
    waits(path)
    a_plan_that_executes(path, world)
    write(world.root / "home" / "environ-x.json", {"PATH": str(world.outside)})
    change(path / "queue.json", environ=str(world.root / "home" / "environ-x.json"),
           code="../../outside", root=str(world.outside), folder=str(world.outside), ids=[],
           count=1, within=[], free=None, begin=None)


@case
def a_job_that_is_somebody_elses(path, world):
    """Its Slurm job is another one, and its reason a command."""
    of_slurm(path)
    change(path / "slurm.json", reason=f"x;touch '{world.marker}'", doubt=None, since=None)


@case
def a_job_script_that_executes(path, world):
    """Its Slurm script executes something, and its stop file is a link."""
    of_slurm(path)
    change(path / "slurm.json", doubt=None, since=None)
    (path / "job.sh").write_text((world.outside / "program").read_text())
    (path / "job.sh").chmod(0o755)
    (path / "stop").symlink_to(world.outside / "made")


@case
def started_here_with_hosts_that_execute(path, world):
    """It was started here, and its hosts are reached by a command that executes something."""
    a_host_that_executes_and_is_lost(path, world)
    trust.note_started(path)


@case
def started_here_with_hosts_of_hostile_names(path, world):
    """It was started here, and its hosts have names that are options, paths and escapes."""
    a_host_of_a_hostile_name(path, world)
    for name in ("a", "b"):
        (path / f"hosts/{name}.json").unlink()
    runs_now(path, world, locked=False)
    trust.note_started(path)


@case
def started_here_with_another_job(path, world):
    """It was started here, and the cluster of its Slurm job is an option."""
    a_job_that_is_somebody_elses(path, world)
    trust.note_started(path)


# --- whom it would end ----------------------------------------------------------------------------

@case
def a_supervisor_that_is_somebody_else(path, world):
    """Its supervisor is a process that has nothing to do with it, and its lock is held."""
    runs_now(path, world)


@case
def a_supervisor_that_is_somebody_else_with_a_closed_lock(path, world):
    """Its supervisor is a process that has nothing to do with it, and its lock can't be read."""
    runs_now(path, world, locked=False)
    (path / "lock").chmod(0)


@case
def ranks_that_are_somebody_else(path, world):
    """Its ranks are processes that have nothing to do with it, by state and by events."""
    runs_now(path, world)
    pid, ticks = world.victim
    change(path / "state.json", processes=[
        {"rank": rank, "pid": pid, "ticks": ticks, "exit": None} for rank in (0, 1)])
    for rank in (0, 1):
        _events(path, {"kind": "start", "rank": rank, "local_rank": rank, "node": 0, "pid": pid,
                       "started": ticks, "world_size": 2, "device": [], "attempt": 2}, rank=rank)


@case
def started_here_with_ranks_that_are_somebody_else(path, world):
    """It was started here, and its ranks are processes that have nothing to do with it."""
    ranks_that_are_somebody_else(path, world)
    trust.note_started(path)


@case
def a_supervisor_that_is_everybody(path, world):
    """Its supervisor and ranks are numbers that mean groups, or everybody."""
    runs_now(path, world, locked=False)
    change(path / "state.json", pid=-1, ticks=0, processes=[
        {"rank": rank, "pid": pid, "ticks": None, "exit": None}
        for rank, pid in enumerate((-1, 0, 1, 2**31, 2**70))])


# --- names of the folder itself -------------------------------------------------------------------

NAMES = {"a name of two lines": "ab\ncd", "a name of escapes": "x\x1b]0;owned\x07\x9b31m\u202ey",
         "a name that is an option": "--help", "a name of blanks": "   ",
         "a name of markup": "[bold]x", "a name that is not UTF-8": "x\udcff\udc80",
         "a name of 255 letters": "n" * 255, "a name that is a word": "last",
         "a name of a formula": "=1+1"}
"""What is hostile about a folder → its name."""

if os.geteuid() == 0:
    CASES["It is somebody else's"] = lambda path, world: _given_away(path)
    CASES["It is somebody else's, and executes something"] = lambda path, world: (
        a_host_that_executes_and_is_lost(path, world), a_plan_that_executes(path, world),
        _given_away(path))
    CASES["It is somebody else's, and looks as if it ran"] = lambda path, world: (
        ranks_that_are_somebody_else(path, world), _given_away(path))
    CASES["Its ranks' files are somebody else's"] = lambda path, world: _given_away(path / "ranks")


OTHERS = tuple(name for name in CASES if name.partition(" ")[0] in (*FILES, *FOLDERS))
"""Those of which one file or folder is not what it should be, or holds what it should not."""
SPECIAL = tuple(name for name in CASES if name not in OTHERS)
HEAVY = frozenset(name for name in CASES if any(word in name for word in (
    "1,000", "8 MiB", "huge")))
"""What takes time by its size alone."""
ALIKE = frozenset(f"{name} is {kind}" for name in FILES for kind in ("a socket", "closed"))
"""What is refused where a FIFO or a folder is: each way to read it once is enough."""


def make(name: str, world: World, into: str | None = None) -> Path:
    """Make the folder of this case. `into`: the folder's name; None: one made of the case's."""
    folder = into or NAMES.get(name) or hashlib.sha256(name.encode()).hexdigest()[:8]
    path = world.runs / folder
    good(path, world)
    if name in CASES:
        CASES[name](path, world)
    return path

