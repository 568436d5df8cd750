"""What a person has written on a run: a name, tags, a note and a verdict. It is in `notes.json` in
the run folder, which only the person's own commands and panel write, never the run itself."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import json_inside, reason, why_not_inside, write_json_inside
from gpu_engine.common.records import find_record
from gpu_engine.runs import trust
from gpu_engine.runs.trust import whose

FILE = "notes.json"
LONGEST_NAME, LONGEST_NOTE, MOST_TAGS = 64, 4000, 16
"""Characters of a name and of a note; tags of a run."""
_TAG = re.compile(r"\w[\w.:/+=-]{0,31}")


@dataclass(frozen=True, slots=True)
class Notes:
    """Name, tags, note and verdict of a run."""

    name: str | None = None
    """Shown in place of the name that the run was started with; None: it has no other."""
    tags: tuple[str, ...] = ()
    """In the order in which they were given, each once."""
    note: str = ""
    verdict: Literal["keep", "discard"] | None = None
    """What a person or an agent thinks of its result; None: they have not said."""

    def with_tags(self, added: Iterable[str], removed: Iterable[str] = ()) -> Notes:
        """With these tags added, and then those removed. Raises UserError if one can't be a tag, if
        a tag to be removed is not there, or if they get too many."""
        tags = list(self.tags)
        for tag in added:
            require_tag(tag)
            if tag not in tags:
                tags.append(tag)
        for tag in removed:
            if tag not in tags:
                there = "; it has " + ", ".join(tags) if tags else ", which has none"
                raise UserError(f"{tag!r} is no tag of the run{there}")
            tags.remove(tag)
        if len(tags) > MOST_TAGS:
            raise UserError(f"a run has at most {MOST_TAGS} tags; these would be {len(tags)}")
        return replace(self, tags=tuple(tags))


def read(run: Path) -> Notes:
    """What is written on the run in this folder; nothing if it has no such file, or if that can't
    be read (`require_readable` and `Run.odd` then say so)."""
    found = find_record(Notes, json_inside(run, FILE)) or Notes()
    tags = dict.fromkeys(t for t in found.tags if _TAG.fullmatch(t))
    return Notes((found.name or "")[:LONGEST_NAME] or None, tuple(tags)[:MOST_TAGS],
                 found.note[:LONGEST_NOTE], found.verdict)


def require_readable(run: Path) -> None:
    """Raise UserError if something is written on the run that can't be read."""
    if os.path.lexists(run / FILE) and (why := why_not_inside(run, FILE)):
        raise UserError(f"run {run.name}: {FILE} can't be read: {why}{whose(run)}")


def change(run: Path, changed: Callable[[Notes], Notes]) -> Notes:
    """Replace what is written on the run in this folder by what `changed` makes of it, and return
    that. Raises UserError if the result is not valid, the file can't be written, or the folder is
    not this user's alone; the old one is then still there."""
    trust.require_ours(run)
    require_readable(run)
    new = require_valid(changed(read(run)))
    try:
        write_json_inside(run, FILE, asdict(new))
    except OSError as err:
        raise UserError(f"run {run.name}: what you write on it can't be kept: {reason(err)}"
                        f"{whose(run)}") from None
    return new


def tag(run: Path, tags: Sequence[str]) -> None:
    """Add tags to a run. Raises UserError as `change`."""
    if tags:
        change(run, lambda now: now.with_tags(tags))


def stamp(run: Path) -> int:
    """Changes when something else is written on the run; 0 while nothing is."""
    try:
        return os.stat(f"{run}/{FILE}").st_mtime_ns  # noqa: PTH116  of thousands
    except OSError:
        return 0


def lines(notes: Notes) -> list[str]:
    """The notes for people, one thing a line; none if nothing is written."""
    out = [f"name: {notes.name}"] if notes.name else []
    out += [f"verdict: {notes.verdict}"] if notes.verdict else []
    out += [f"tags: {', '.join(notes.tags)}"] if notes.tags else []
    first, *rest = notes.note.splitlines() or [""]
    return [*out, *([f"note: {first}", *(f"      {line}" for line in rest)] if first else [])]


def require_tag(text: str) -> str:
    """`text`. Raises UserError if it can't be a tag."""
    if not _TAG.fullmatch(text):
        raise UserError(f"{text!r} can't be a tag: use at most 32 letters, digits and "
                        ". : / + = - _ and begin with a letter or digit")
    return text


def parse_tags(texts: Iterable[str]) -> list[str]:
    """The tags in texts that separate them by blanks or commas. Raises UserError if one can't be a
    tag."""
    return [require_tag(word) for text in texts for word in re.split(r"[\s,]+", text) if word]


def require_valid(new: Notes) -> Notes:
    """`new` without blanks around its texts. Raises UserError if a text or the tags are not as they
    may be."""
    name = (new.name or "").strip()
    if len(name) > LONGEST_NAME:
        raise UserError(f"a name has at most {LONGEST_NAME} characters; this has {len(name)}")
    if not name.isprintable():
        raise UserError("a name is one line of printable characters")
    if len(new.note) > LONGEST_NOTE:
        raise UserError(f"a note has at most {LONGEST_NOTE:,} characters; this has "
                        f"{len(new.note):,}")
    return Notes(name or None, (), new.note.strip(), new.verdict).with_tags(new.tags)
