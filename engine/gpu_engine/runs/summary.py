"""The few facts about a run that a list of a thousand needs, read quickly: no plan is checked and
no event is read. And choosing runs among them by what a person types:
`state:failed tag:lr train.lr=0.1 -old`.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from gpu_engine.common.clean import shown, shown_words
from gpu_engine.common.files import json_inside
from gpu_engine.common.values import show
from gpu_engine.runs import notes, sweep
from gpu_engine.runs.folder import Run, State
from gpu_engine.runs.notes import Notes
from gpu_engine.runs.sweep import Member

_MOST_KEYS, _LONGEST_KEY, _LONGEST = 300, 100, 200
"""Bounds of what is kept of a spec: its keys, and the characters of a key and of a value."""


@dataclass(frozen=True, slots=True)
class Digest:
    """What is known about a run without its events."""

    run: Run
    state: State
    notes: Notes
    task: str = ""
    """The task's class as module:Class, or the command; "" if the plan can't be read."""
    mode: str = ""
    """"" if the plan can't be read."""
    replicas: int = 1
    world_size: int | None = None
    steps: int | None = None
    """How many steps of a task were asked for, and how many epochs; None: by the other, or by the
    command."""
    epochs: int | None = None
    best: str | None = None
    sweep: Member | None = None
    """Its place in a sweep; None: it is in none."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The keys of its spec and their values as text, long ones cut: {"train.lr": "0.1"}."""

    @property
    def name(self) -> str:
        """The name that a person gave it, else the one that it was started with."""
        return self.notes.name or self.state.name

    @property
    def asked(self) -> Asked:
        """What it can be found by."""
        return Asked.of(id=self.run.id, name=self.name, preset=self.state.name, task=self.task,
                        mode=self.mode, state=self.state.state, tags=self.notes.tags,
                        note=self.notes.note, settings=self.settings)


def read(run: Run, before: Digest | None = None) -> Digest:
    """The digest of a run. What can't be read of its plan and its notes is left out. `before`: its
    digest a moment ago, in the same attempt, whose plan still holds."""
    state = run.state()
    if before is not None:
        return replace(before, state=state, notes=notes.read(run.path))
    plan = _table(json_inside(run.path, "plan.json"))
    spec = _table(plan.get("spec"))
    task, train = _table(spec.get("task")), _table(spec.get("train"))
    command, use = task.get("command"), task.get("use")
    ours = isinstance(use, str)
    what = shlex.join(shown_words([str(word) for word in command])) \
        if isinstance(command, list) else use if ours else ""
    mode, best = plan.get("mode"), train.get("best")
    replicas = _whole(plan.get("replicas")) or _whole(_table(plan.get("batch")).get("replicas"))
    return Digest(run, state, notes.read(run.path), what,
                  mode if isinstance(mode, str) else "", replicas or 1,
                  _whole(plan.get("world_size")), _whole(train.get("steps")) if ours else None,
                  _whole(train.get("epochs")) if ours else None,
                  best if ours and isinstance(best, str) else None,
                  sweep.read(run.path), dict(islice(_flat(spec), _MOST_KEYS)))


def _flat(spec: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The keys of a spec and their values. A thousand runs have mostly the same: each text is kept
    once."""
    for section, keys in spec.items():
        for key, value in _table(keys).items():
            inner = value.items() if isinstance(value, dict) else [("", value)]
            for name, one in inner:
                dotted = f"{section}.{key}" + (f".{name}" if name else "")
                if len(dotted) <= _LONGEST_KEY and one is not None:
                    yield sys.intern(dotted), sys.intern(
                        shown(name, _text(one)) if key == "env" else _text(one))


def _text(value: object) -> str:
    """A value of a spec, as `--set` takes it where it is a plain one."""
    if isinstance(value, list):
        return ",".join("…" if isinstance(one, list) else _text(one)
                        for one in value[:_LONGEST])[:_LONGEST]
    return "…" if isinstance(value, dict) else show(value)[:_LONGEST]


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 53 else None


FIELDS = ("id", "name", "preset", "task", "mode", "tag", "state", "note")
_BEGINS = frozenset({"id", "mode", "state", "tag"})
"""Fields whose value must begin with what is asked for; in the others it may stand anywhere."""
_WORD = re.compile(r"""(?P<out>-?)(?:(?P<field>[a-z]+):|(?P<key>[a-z]+\.[^\s="]+)=)?"""
                   r"""(?:"(?P<whole>[^"]*)"?|(?P<text>\S*))""", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run can be found by. `texts`: for each of `FIELDS` its values in small letters."""

    texts: dict[str, tuple[str, ...]]
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, *, id: str, name: str, preset: str, task: str, mode: str, state: str,
           tags: tuple[str, ...], note: str, settings: Mapping[str, str] | None = None) -> Asked:
        """`preset`: the name that the run was started with; `name`: the one that it was given
        afterwards, or the same. `settings`: the keys of its spec, and their values."""
        texts = {"id": (id,), "name": (name,), "preset": (preset,), "task": (task,),
                 "mode": (mode,), "state": (state,), "tag": tags, "note": (note,)}
        return cls({field: tuple(map(str.lower, each)) for field, each in texts.items()},
                   settings or {})


@dataclass(frozen=True, slots=True)
class _Term:
    field: str | None
    text: str
    out: bool
    quoted: bool = False
    """Whether it is a text in any case, `"lr:3"`."""
    key: str | None = None
    """A key of the spec, whose value is the text and no more."""

    def holds(self, asked: Asked) -> bool:
        if self.key is not None:
            found = _same(asked.settings.get(self.key, "").lower(), self.text)
        elif self.field in _BEGINS:
            found = any(value.startswith(self.text) for value in asked.texts[self.field])
        else:
            fields = FIELDS if self.field is None else (self.field,)
            found = any(self.text in value for field in fields for value in asked.texts[field])
        return found != self.out


def _same(value: str, text: str) -> bool:
    """Whether they are the same text or the same number, as 0.002 and 2e-3."""
    try:
        return value == text or float(value) == float(text)
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Query:
    """Words that a run must match, all of them."""

    text: str
    """As it was typed."""
    terms: tuple[_Term, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.terms)

    def matches(self, asked: Asked) -> bool:
        """Whether a run is among those that were asked for."""
        return all(term.holds(asked) for term in self.terms)

    @property
    def doubt(self) -> str | None:
        """What may be wrong with it: a word before a colon that is no field, and so is looked for
        as text, or one before an equals sign that is no key. None: nothing."""
        from gpu_engine.spec import read, schema  # late: a list that is not filtered needs none

        for term in self.terms:
            if term.key is not None and not schema.is_key(term.key):
                return f"{term.key}: {read.unknown_key(term.key, schema.known_keys()).message}"
            word, colon, _ = term.text.partition(":")
            if term.field is None and colon and word.isalpha() and not term.quoted:
                return f"{word!r} is no field; there are {', '.join(FIELDS)}"
        return None


def parse(text: str) -> Query:
    """The query in `text`. Words stand for text in any field, `FIELD:TEXT` for text in one, and
    `KEY=VALUE` for runs whose spec has that: `train.lr=0.1`; `-` before a word leaves out what
    matches it; quotes hold blanks together: `name:"two words"`. Small and capital letters are the
    same, but in a key. Any text is a query."""
    terms = []
    for found in _WORD.finditer(text):
        out, field, key, whole, word = found.group("out", "field", "key", "whole", "text")
        value = (word if whole is None else whole).lower()
        if field is not None and field.lower() not in FIELDS:
            value, field = f"{field.lower()}:{value}", None
        if value:  # else the word is half typed
            quoted = value == (whole or "").lower()
            terms.append(_Term(field and field.lower(), value, bool(out), quoted, key))
    return Query(text, tuple(terms))
