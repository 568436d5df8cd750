"""The colours in which a screen was really painted."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from textual.color import Color
from textual.geometry import Region
from textual.screen import ModalScreen

DECORATION = frozenset("🔎│─╭╮╰╯└┌┐┘├┤░▁▂▃▄▅▆▇█▉▊▋▌▍▎▏▔▕┊╷╵▐▀╸╺━┃")
"""Frames, bars, scrollbars, an emoji that has its own colours: nothing to be read."""


def painted(app: Any) -> Iterator[tuple[str, Color, Color]]:
    """(text, its colour, its background) of everything sent to the terminal. The terminal's own
    sixteen colours are those of Textual's palettes for a dark and a light terminal."""
    palette = app.ansi_theme
    for segment in (segment for strip in _strips(app.screen) for segment in strip):
        style = segment.style
        if not segment.text.strip() or style is None:
            continue
        ink = style.color.get_truecolor(palette, True) if style.color \
            else palette.foreground_color
        ground = style.bgcolor.get_truecolor(palette, False) if style.bgcolor \
            else palette.background_color
        if style.reverse:
            ink, ground = ground, ink
        yield segment.text.strip(), Color(*ink), Color(*ground)


def _strips(screen: Any) -> Iterator[Any]:
    """The screen's lines; for a dialog only its own part, as the rest is faded."""
    strips = screen._compositor.render_strips()
    if not isinstance(screen, ModalScreen):
        yield from strips
        return
    box = Region.from_union([part.region for part in screen.query(
        ".sheet, .dialog, CommandInput, CommandList")])
    for strip in strips[box.y:box.bottom]:
        yield strip.crop(box.x, box.right)


def as_painted(app: Any) -> str:
    """The screen; below each line, a letter for the style of each cell."""
    letters: dict[str, str] = {}
    out = []
    for strip in app.screen._compositor.render_strips():
        marks = ""
        for segment in strip:
            style = str(segment.style)
            mark = letters.setdefault(style, chr(ord("A") + len(letters)))
            marks += (mark if segment.text.strip() or "on" in style else " ") * segment.cell_length
        text = "".join(segment.text for segment in strip)
        out += [text.rstrip(), marks.rstrip()]
    return "\n".join([*out, *(f"{mark} {style}" for style, mark in letters.items())])


@cache
def luminance(color: Color) -> float:
    """Relative luminance, https://www.w3.org/TR/WCAG22/#dfn-relative-luminance."""
    linear = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4
              for c in color.rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Color, other: Color) -> float:
    """https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio"""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def too_faint(app: Any) -> list[str]:
    """Everything illegible: text with a contrast below 4.5 : 1, curves below 3 : 1."""
    found = []
    for text, ink, ground in painted(app):
        if set(text) <= DECORATION | {" "}:
            continue
        curve = all("⠀" <= c <= "⣿" or c in DECORATION or c == " " for c in text)
        if (ratio := contrast(ink, ground)) < (3.0 if curve else 4.5):
            found.append(f"{ratio:.2f}: {text!r} {ink.hex} on {ground.hex}")
    return sorted(set(found))
