"""What tab offers in a shell, for `shell_complete=` of a parameter; click's own scripts ask.

A source is asked at each tab: it imports nothing slow, asks no driver and writes nothing. Names
come from folders, and the scripts put them on the person's line as they are: what a shell would
read as more than a plain word is not offered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

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


def _newest(typed: str) -> list[str]:
    with os.scandir(paths.runs_folder()) as entries:
        times = [(entry.stat(follow_symlinks=False).st_mtime, entry.name) for entry in entries
                 if entry.name.startswith(typed) and entry.is_dir(follow_symlinks=False)]
    return [name for _, name in sorted(times, reverse=True)[:_NEWEST]]


def _presets(_: str) -> Iterable[tuple[str, str]]:
    from gpu_engine.spec import presets

    return [(name, "") for name in presets.names()]


def _hosts(_: str) -> Iterable[tuple[str, str]]:
    from gpu_engine.remote.reach import hosts

    return [(host.name, host.label or host.ssh or "") for host in hosts.read().values()]


def _sets(typed: str) -> Iterable[tuple[str, str]]:
    """Keys of the spec: `KEY=`."""
    from gpu_engine.spec import schema

    found = [(f"{key}=", "") for key in schema.known_keys() if key.startswith(typed)]
    # Of a single word a shell takes the whole, and puts a blank behind it: "train.epochs= ".
    return [*found, (f"{found[0][0]}...", "")] if len(found) == 1 else found


runs, runs_or_files = offered(_runs), offered(_runs, files=True)
live_runs = offered(lambda typed: _runs(typed, "queued", "starting", "running", "stopping"))
waiting_runs = offered(lambda typed: _runs(typed, "queued"))
hosts, sets = offered(_hosts), offered(_sets)
presets = offered(_presets, files=True)
