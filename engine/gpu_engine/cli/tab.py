"""What tab offers in a shell, for `shell_complete=` of a parameter; click's own scripts ask.

A source is asked at each tab: it imports nothing slow, asks no driver and writes nothing. Names
come from folders, and the scripts put them on the person's line as they are: what a shell would
read as more than a plain word is not offered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

from gpu_engine.common import paths
from gpu_engine.common.clean import clean
from gpu_engine.common.files import json_inside

Offer = Callable[[click.Context, click.Parameter | None, str], list[CompletionItem]]
_NEWEST = 100
"""How many runs are looked into."""
_WORD = re.compile(r"[\w@+./][\w@%+=:,./-]*")


def offered(source: Callable[[str], Iterable[tuple[str, str]]], *, files: bool = False) -> Offer:
    """Offer the (word, help) pairs of `source` that begin as the word typed so far, with which it
    is called. `files`: where none does, the shell offers files."""

    def offer(ctx: click.Context, _: click.Parameter | None, typed: str) -> list[CompletionItem]:
        shells_own = [CompletionItem(typed, type="file")]
        if "command" in ctx.meta:  # a person's own, behind --
            return shells_own
        try:
            items = [CompletionItem(word, help=clean(told, 60)) for word, told in source(typed)
                     if word.startswith(typed) and _WORD.fullmatch(word) and clean(word) == word]
        except Exception:  # noqa: BLE001  an error would be printed into the line that is typed
            return []
        return items or (shells_own if files else [])

    return offer


def _runs(typed: str, *states: str) -> Iterable[tuple[str, str]]:
    for name in _newest(typed):
        state = json_inside(paths.runs_folder() / name, "state.json")
        state = state if isinstance(state, dict) else {}
        if not states or state.get("state") in states:
            yield name, f"{state.get('state', '')} {state.get('name', '')}"
    if not states:
        yield "last", "the newest run"


def _newest(typed: str = "") -> list[str]:
    with os.scandir(paths.runs_folder()) as entries:
        times = [(entry.stat(follow_symlinks=False).st_mtime, entry.name) for entry in entries
                 if entry.name.startswith(typed) and entry.is_dir(follow_symlinks=False)]
    return [name for _, name in sorted(times, reverse=True)[:_NEWEST]]


def _sweeps(_: str) -> Iterable[tuple[str, str]]:
    members = [json_inside(paths.runs_folder() / run, "sweep.json") for run in _newest()]
    ids = {str(m.get("sweep")): str(m.get("name")) for m in members if isinstance(m, dict)}
    return [*ids.items(), ("last", "the newest sweep")]


def _presets(_: str) -> Iterable[tuple[str, str]]:
    from gpu_engine.spec import presets

    return [(name, "") for name in presets.names()]


def _hosts(_: str) -> Iterable[tuple[str, str]]:
    from gpu_engine.remote.reach import file

    return [(host.name, host.label or host.ssh or "") for host in file.read().values()]


def _devices(typed: str) -> Iterable[tuple[str, str]]:
    cards = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    ids = [*map(str, range(cards)), *(f"cpu:{n}" for n in range(len(os.sched_getaffinity(0))))]
    before = typed[:typed.rfind(",") + 1]
    return [(before + one, "") for one in ids if one not in before.split(",")]


def _sets(typed: str, *, several: bool = False) -> Iterable[tuple[str, str]]:
    """`KEY=`, and once the key is clear `KEY=VALUE`; `several`: more values behind a comma."""
    from gpu_engine.spec import schema

    name, equals, value = typed.partition("=")
    keys = [key for key in schema.keys().values()
            if (key.dotted == name if equals else key.dotted.startswith(name))]
    if len(keys) != 1:
        return [(f"{key.dotted}=", "") for key in keys]
    key, kind = keys[0], keys[0].kind.without_none
    before = value[:value.rfind(",") + 1] if several else ""
    if source := {"devices.ids": _devices, "devices.hosts": _hosts}.get(key.dotted):
        values = [word for word, _ in source(value[len(before):])]
    else:
        values = ["true", "false"] if kind.name == "bool" else [text for text, _ in kind.choices]
        if not values and isinstance(key.default, int | float | str):
            values = [str(key.default)]
    words = [(f"{key.dotted}={before}{one}", "") for one in values]
    # Of a single word a shell takes the whole, and puts a blank behind it: "train.epochs= ".
    return words if equals else [(f"{key.dotted}=", ""), *(words or [(f"{key.dotted}=...", "")])]


runs, runs_or_files = offered(_runs), offered(_runs, files=True)
live_runs = offered(lambda typed: _runs(typed, "queued", "starting", "running", "stopping"))
waiting_runs = offered(lambda typed: _runs(typed, "queued"))
sweeps, hosts, devices = offered(_sweeps), offered(_hosts), offered(_devices)
presets = offered(_presets, files=True)
sets, grid = offered(_sets), offered(lambda typed: _sets(typed, several=True))


@add_completion_class
class Bash(BashComplete):
    """bash divides words at "=" and ":", and replaces the last part alone: here they are joined,
    and what bash has already is taken off the answers."""

    _has = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, typed = super().get_completion_args()
        words, joins = [""], False
        for part in (*args, typed):
            breaks = bool(part) and not part.strip("=:")
            words[-1:] = [words[-1] + part] if part and (joins or breaks) else [words[-1], part]
            joins = breaks
        self._has = words[-1] if joins else words[-1].removesuffix(typed)
        if self._has.startswith("--"):
            self._has = self._has.partition("=")[2]
        return words[1:-1], words[-1]

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{item.value.removeprefix(self._has)}"
