"""Choosing runs by what a person types: `state:failed tag:lr digits -old`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain

FIELDS = ("id", "name", "preset", "task", "mode", "tag", "state", "note")
_BEGINS = frozenset({"id", "mode", "state", "tag"})
"""Fields whose value must begin with what is asked for; in the others it may stand anywhere."""
_WORD = re.compile(r"""(?P<out>-?)(?:(?P<field>[a-z]+):)?(?:"(?P<whole>[^"]*)"?|(?P<text>\S*))""")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run can be found by. `texts`: for each of `FIELDS` its values in small letters."""

    texts: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, *, id: str, name: str, preset: str, task: str, mode: str, state: str,
           tags: tuple[str, ...], note: str) -> Asked:
        """`preset`: the name that the run was started with; `name`: the one that it was given
        afterwards, or the same."""
        return cls({"id": (id.lower(),), "name": (name.lower(),), "preset": (preset.lower(),),
                    "task": (task.lower(),), "mode": (mode.lower(),), "state": (state.lower(),),
                    "tag": tuple(t.lower() for t in tags), "note": (note.lower(),)})


@dataclass(frozen=True, slots=True)
class _Term:
    field: str | None
    text: str
    out: bool
    quoted: bool = False
    """Whether it is a text in any case, `"lr:3"`."""

    def holds(self, asked: Asked) -> bool:
        values = chain(*asked.texts.values()) if self.field is None else asked.texts[self.field]
        found = any(value.startswith(self.text) if self.field in _BEGINS else self.text in value
                    for value in values)
        return found != self.out


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
        as text. None: nothing."""
        for term in self.terms:
            word, colon, _ = term.text.partition(":")
            if term.field is None and colon and word.isalpha() and not term.quoted:
                return f"{word!r} is no field; there are {', '.join(FIELDS)}"
        return None


def parse(text: str) -> Query:
    """The query in `text`. Words stand for text in any field, `FIELD:TEXT` for text in one; `-`
    before a word leaves out what matches it; quotes hold blanks together: `name:"two words"`.
    Small and capital letters are the same. Any text is a query."""
    terms = []
    for found in _WORD.finditer(text.lower()):
        out, field, whole, word = found.group("out", "field", "whole", "text")
        value = word if whole is None else whole
        if field is not None and field not in FIELDS:
            value, field = f"{field}:{value}", None
        if value:  # else the word is half typed
            terms.append(_Term(field, value, bool(out), value == whole))
    return Query(text, tuple(terms))
