"""Parses the style sheets once for all panel tests."""

from __future__ import annotations

from typing import Any

import pytest
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot

from gpu_panel import themed


@pytest.fixture
def folded(home) -> None:
    """The form is folded, as it is in every panel but the first."""
    themed.write({"form": "folded"})


_parse = Stylesheet._parse_rules
_parsed: dict[Any, list[RuleSet]] = {}


def _parse_once(self: Stylesheet, css: str, *place: Any, **more: Any) -> list[RuleSet]:
    """Reuse a sheet that was parsed with the same variables, that is, in the same theme. Parsed
    rules are never changed; Textual also reuses them within one app."""
    key = css, place, tuple(more.items()), frozenset(self._variables.items())
    if key not in _parsed:
        _parsed[key] = _parse(self, css, *place, **more)
    return _parsed[key]


Stylesheet._parse_rules = _parse_once  # type: ignore[method-assign]

# The pilot's pause gives up after 30 s; a busy machine may take longer to show a screen.
Pilot._wait_for_screen.__defaults__ = (300.0,)
