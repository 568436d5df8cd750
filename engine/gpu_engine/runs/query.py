"""Choosing runs by what a person types: `state:failed tag:lr train.lr=0.1 -old`. Pure, and light:
the panel's first frame has it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

FIELDS = ("id", "name", "preset", "task", "mode", "tag", "state", "note", "verdict")
_BEGINS = frozenset({"id", "mode", "state", "tag", "verdict"})
"""Fields whose value must begin with what is asked for; in the others it may stand anywhere."""
_WORD = re.compile(r"""(?P<out>-?)(?:(?P<field>[a-z]+):|(?P<key>[a-z]+\.[^\s="]+)=)?"""
                   r"""(?:"(?P<whole>[^"]*)"?|(?P<text>\S*))""", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run can be found by."""

    texts: Mapping[str, Sequence[str]]
    """The values of each of `FIELDS`: `preset` is the name that the run was started with, `name`
    the one that it was given afterwards, or the same."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The keys of its spec, and their values."""


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
            found = any(value.lower().startswith(self.text) for value in asked.texts[self.field])
        else:
            fields = FIELDS if self.field is None else (self.field,)
            found = any(self.text in value.lower() for field in fields
                        for value in asked.texts[field])
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
