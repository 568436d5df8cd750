"""What can be typed: presets, runs, devices, keys of the spec, and so on.

Called at each press of tab, so nothing here imports what is slow, starts a process or asks a
driver. A source returns what there is, as far as it can be read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_engine.common import paths
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import expanded, json_inside

if TYPE_CHECKING:
    from gpu_engine.common.values import Kind

_TOLD = 40
"""How many runs are shown with their state and name, for which two files are read."""
_LOOKED = 300
"""How many of the newest runs are looked into for those of one kind."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Something that can be typed."""

    value: str
    help: str = ""
    more: bool = False
    """Whether the word goes on: no blank is put behind it."""
    kind: str = "plain"
    """plain; file or command: the shell itself completes those."""


Source = Callable[[str], Iterable[Answer]]
"""Gets the word as far as it is typed; what does not begin so is left out afterwards."""

FILES = Answer("", kind="file")
COMMAND = Answer("", kind="command")


def presets(typed: str) -> list[Answer]:
    """Presets by name, and preset files and folders once a path is typed."""
    from gpu_engine.spec import presets as found

    named = [Answer(name) for name in found.names()]
    return named + _toml_files(typed)


def _toml_files(typed: str) -> list[Answer]:
    begin = typed[:typed.rfind("/") + 1]
    out: list[Answer] = []
    try:
        entries = sorted(expanded(begin or ".").glob("*"))  # none of a folder that can't be read
    except OSError:  # its name is too long
        return []
    for entry in entries:
        if entry.name.startswith(".") and not typed[len(begin):].startswith("."):
            continue
        if entry.is_dir():
            if typed:  # every folder here would hide the presets' names
                out.append(Answer(f"{begin}{entry.name}/", "folder", more=True))
        elif entry.suffix == ".toml":
            out.append(Answer(begin + entry.name, "file"))
    return out


def runs(typed: str) -> list[Answer]:
    """Ids of runs, the newest first, by the time at which something was last made in the folder."""
    return _runs(_ids(typed))


def live_runs(typed: str) -> list[Answer]:
    """Ids of runs that go on or wait; of all if there is none."""
    from gpu_engine.runs.state import LIVE

    ids = _ids(typed)
    live = [name for name in ids[:_LOOKED] if _state(name).get("state") in LIVE]
    return _runs(live or ids)


def waiting_runs(typed: str) -> list[Answer]:
    """Ids of runs in the queue."""
    return _runs([name for name in _ids(typed)[:_LOOKED] if _state(name).get("state") == "queued"])


def last_run(typed: str) -> list[Answer]:
    """`runs`, and the word for the newest one."""
    return [*runs(typed), Answer("last", "the newest run")] if _ids() else []


def _ids(typed: str = "") -> list[str]:
    try:
        with os.scandir(paths.runs_folder()) as entries:
            found = [(entry.stat(follow_symlinks=False).st_mtime, entry.name) for entry in entries
                     if entry.name.startswith(typed) and not entry.name.startswith(".")
                     and entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [name for _, name in sorted(found, reverse=True)]


def _state(name: str) -> dict[str, object]:
    found = json_inside(paths.runs_folder() / name, "state.json")
    return found if isinstance(found, dict) else {}


def _runs(ids: Sequence[str]) -> list[Answer]:
    return [Answer(name, _about(name) if i < _TOLD else "") for i, name in enumerate(ids)]


def _about(name: str) -> str:
    state = _state(name)
    notes = json_inside(paths.runs_folder() / name, "notes.json")
    own = notes.get("name") if isinstance(notes, dict) else None
    said = [state.get("state"), own or None, state.get("name")]
    return " · ".join(str(s) for s in said if s)


def sweeps(typed: str) -> list[Answer]:
    """Ids of sweeps, the newest first, from the newest runs."""
    found: dict[str, Answer] = {}
    for name in _ids()[:_LOOKED]:
        member = json_inside(paths.runs_folder() / name, "sweep.json")
        if isinstance(member, dict) and isinstance(member.get("sweep"), str):
            found.setdefault(member["sweep"], Answer(
                member["sweep"], f"{member.get('name', '')} · {member.get('of', '?')} runs"))
    return [*found.values(), Answer("last", "the newest sweep")] if found else []


def tags(typed: str) -> list[Answer]:
    """Tags of the newest runs."""
    found: dict[str, None] = {}
    for name in _ids()[:_LOOKED]:
        notes = json_inside(paths.runs_folder() / name, "notes.json")
        own = notes.get("tags") if isinstance(notes, dict) else None
        if isinstance(own, list):
            found |= dict.fromkeys(t for t in own if isinstance(t, str))
    return [Answer(tag) for tag in sorted(found)]


def hosts(typed: str) -> list[Answer]:
    """Hosts of hosts.toml."""
    from gpu_engine.remote.reach import file

    try:
        return [Answer(host.name, host.label or host.ssh or "") for host in file.read().values()]
    except UserError:
        return []


def modes(typed: str) -> list[Answer]:
    """Ways to parallelise."""
    from gpu_engine.spec import modes as found

    return [Answer(name, found.get(name).label) for name in found.names()]


def device_ids(typed: str) -> list[Answer]:
    """Ids of devices, also behind a comma: "0,1". GPUs are those that the kernel lists, as a driver
    may take seconds to answer."""
    head, comma, _ = typed.rpartition(",")
    given = head.split(",")
    return [Answer(f"{head}{comma}{one.value}", one.help) for one in _devices()
            if one.value not in given]


def _devices(root: Path = Path("/")) -> list[Answer]:
    found: list[Answer] = []
    cards = sorted((root / "proc/driver/nvidia/gpus").glob("*"))  # in PCI order, as NVML's numbers
    for index, card in enumerate(cards):
        try:
            text = (card / "information").read_text()
        except OSError:
            text = ""
        model = next((line.partition(":")[2].strip() for line in text.splitlines()
                      if line.startswith("Model:")), "")
        found.append(Answer(str(index), model))
    cores = len(os.sched_getaffinity(0))
    return found + [Answer(f"cpu:{i}", "CPU slot") for i in range(min(cores, 8))]


def assignments(typed: str, *, several: bool = False) -> list[Answer]:
    """`KEY=`, and then the values that the key can have; `several`: "amp.dtype=off,bf16"."""
    from gpu_engine.spec import schema

    every = schema.keys()
    key, equals, value = typed.partition("=")
    if not equals:
        from gpu_engine.spec.key_docs import docs

        told = docs()
        return [Answer(f"{name}=", told.get(name, "").partition(". ")[0], more=True)
                for name in every]
    found = every.get(key)
    if found is None:
        return []
    head, comma, last = value.rpartition(",")
    before = f"{key}={head}{comma}" if several else f"{key}="
    choices = _values(key, found.kind.without_none, last if several else value)
    given = head.split(",") if several else ()
    return [Answer(before + one.value, one.help, one.more) for one in choices
            if one.value not in given]


def _values(key: str, kind: Kind, typed: str) -> Iterable[Answer]:
    if key == "devices.ids":
        return device_ids(typed)
    if key == "devices.hosts":
        return hosts(typed)
    if key == "task.use":
        return tasks(typed)
    if kind.name == "bool":
        return [Answer("true"), Answer("false")]
    return [Answer(written) for written, _ in kind.choices]


def tasks(typed: str) -> list[Answer]:
    """The tasks that ship with gpu-panel."""
    from gpu_engine.spec import catalog

    return [Answer(one.use, one.doc.partition(".")[0]) for one in catalog.builtin()]


def filters(typed: str) -> list[Answer]:
    """Words of `--filter`: fields, and the values of some of them."""
    from gpu_engine.runs.query import FIELDS

    head, blank, word = typed.rpartition(" ")
    out, word = ("-", word[1:]) if word.startswith("-") else ("", word)
    before = f"{head}{blank}{out}"
    field, colon, _ = word.partition(":")
    if not colon:
        return [Answer(f"{before}{name}:", more=True) for name in FIELDS]
    known: dict[str, Source] = {"state": states, "mode": modes, "tag": tags, "preset": presets,
                                "id": runs}
    values = known[field]("") if field in known else ()
    return [Answer(f"{before}{field}:{one.value}", one.help) for one in values]


def columns(typed: str, *, sorting: bool = False) -> list[Answer]:
    """Columns of the list of runs, with commas between them; `sorting`: what it is sorted by."""
    from gpu_engine.report.columns import HOW
    from gpu_engine.report.listing import NAMES, ORDERS
    from gpu_engine.spec import schema

    head, comma, _ = typed.rpartition(",")
    names = ORDERS if sorting else NAMES
    return [Answer(f"{head}{comma}{name}") for name in (*names, *schema.known_keys())] \
        + [Answer(f"{head}{comma}{how}:", f"{what} of a value that runs recorded", more=True)
           for how, what in HOW.items()]


def states(typed: str) -> list[Answer]:
    """States of a run."""
    from typing import get_args

    from gpu_engine.runs.state import FINAL, LIVE, StateName

    return [Answer(name) for name in get_args(StateName) if name in LIVE | FINAL]


def of(*answers: Answer | Source) -> Source:
    """A source of all of these."""
    return lambda typed: [found for one in answers
                          for found in ([one] if isinstance(one, Answer) else one(typed))]
