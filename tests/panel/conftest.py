"""What every panel test starts: an app, whose style sheets are the same each time."""

from __future__ import annotations

from typing import Any

from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot

_parse = Stylesheet._parse_rules
_parsed: dict[Any, list[RuleSet]] = {}


def _parse_once(self: Stylesheet, css: str, *place: Any, **more: Any) -> list[RuleSet]:
    """A sheet parsed with the same variables (so in the same theme) by an app before is not parsed
    again. Rules are only read once they are parsed: Textual keeps them too, for one app."""
    key = css, place, tuple(more.items()), frozenset(self._variables.items())
    if key not in _parsed:
        _parsed[key] = _parse(self, css, *place, **more)
    return _parsed[key]


Stylesheet._parse_rules = _parse_once  # type: ignore[method-assign]

# A pause of the pilot gives up after 30 s, which a busy machine can take to bring a screen up.
Pilot._wait_for_screen.__defaults__ = (300.0,)
