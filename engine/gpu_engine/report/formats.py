"""A report as one HTML file: no script, nothing from elsewhere, everything escaped. Pure."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from html import escape

from gpu_engine.common.clean import clean
from gpu_engine.report.content import Cell, Section, Table, Text
from gpu_engine.report.svg import STYLE, Chart, draw, letter

BEGINS = '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
"""By which a page that was written before is known."""
_NARROW = 3
"""Columns of a table that fits a phone as it is."""
_STYLE = """
:root { color-scheme: light dark; }
body { margin: 0 auto; padding: 1.5rem; max-width: 78rem; background: #ffffff; color: #1d2430;
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } .wide { overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: 0.25rem 0.9rem 0.25rem 0;
  border-bottom: 1px solid #cfd5de; }
.cards th, .cards td { white-space: nowrap; } .cards td:last-child { white-space: normal; }
.dim { color: #4a5563; } .good { color: #0a6b48; } .warn { color: #a94300; }
.bad { color: #b3202e; } .accent { color: #0b5fb0; }
svg.bar, svg.curve { display: inline-block; margin: 0 0.5rem 0 0; vertical-align: middle; }
svg.bar { width: 4rem; height: 0.6rem; } svg.curve { width: 6rem; height: 1.2rem; }
.bar .all { fill: #cfd5de; } .bar .part { fill: #0b5fb0; }
.warn .part { fill: #a94300; } .bad .part { fill: #b3202e; }
svg.curve path { fill: none; stroke: #0b5fb0; stroke-width: 1.6;
  vector-effect: non-scaling-stroke; }
pre { overflow-x: auto; padding: 0.6rem; border: 1px solid #cfd5de; }
svg { width: 100%; height: auto; max-width: 45rem; display: block; margin: 0.5rem 0 1rem; }
footer { margin-top: 2rem; font-size: 0.85rem; }
a { color: #1a5fb4; }
@media (max-width: 40rem) {
  body { padding: 0.8rem; } th, td { overflow-wrap: anywhere; }
  .cards tr:first-child { display: none; }
  .cards, .cards tbody, .cards tr, .cards th { display: block; }
  .cards th, .cards td { border: 0; padding: 0.1rem 0; white-space: normal; }
  .cards tr { border: 1px solid #cfd5de; border-radius: 0.4rem; padding: 0.5rem 0.7rem;
    margin-bottom: 0.7rem; }
  .cards td { display: flex; } .cards td:empty { display: none; }
  .cards td::before { content: attr(data-head); flex: 0 0 5.5rem; color: #4a5563; } }
@media (prefers-color-scheme: dark) {
  body { background: #14181f; color: #e4e8ee; }
  th, td, pre, .cards tr { border-color: #3a4350; } a { color: #78aeed; }
  .dim, .cards td::before { color: #b6c0cc; } .good { color: #5fd3a4; } .warn { color: #ffb070; }
  .bad { color: #ff8f95; } .accent { color: #6db3ff; }
  .bar .all { fill: #3a4350; } .bar .part { fill: #6db3ff; } .warn .part { fill: #ffb070; }
  .bad .part { fill: #ff8f95; } svg.curve path { stroke: #6db3ff; } }
""" + STYLE


def html(title: str, sections: Sequence[Section], made: str, every: int | None = None) -> str:
    """The page. `made`: when and by what it was made. `every`: seconds after which a browser loads
    it again."""
    digest = b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    again = [f'<meta http-equiv="refresh" content="{every}">'] if every else []
    body = [f"<h1>{_escaped(title)}</h1>"]
    for section in sections:
        name = f' id="{escape(section.name)}"' if section.name else ""
        body.append(f"<h2{name}>{_escaped(section.title)}</h2>")
        for part in section.parts:
            body += _part(part)
    return "\n".join([
        BEGINS,
        # Whatever a run's texts hold, a browser loads and runs nothing.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        f"style-src 'sha256-{digest}'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">', *again,
        f"<title>{_escaped(title)}</title>", f"<style>{_STYLE}</style>", "</head>", "<body>", *body,
        f"<footer>{_escaped(made)}</footer>", "</body>", "</html>", ""])


def _part(part: Table | Text | Chart) -> list[str]:
    if isinstance(part, Chart):
        named = ", ".join(f"{letter(i)} {line.name}" for i, line in enumerate(part.lines)
                          if line.name)
        return [*([f"<p>{_escaped(named)}</p>"] if len(part.lines) > 1 else []), draw(part)]
    if isinstance(part, Text):
        if part.exact:
            return ["<pre>" + "\n".join(map(_escaped, part.lines)) + "</pre>"]
        return [f"<p>{_escaped(line)}</p>" for line in part.lines]
    # On a phone each row of a wide table is a card, in which each cell names its column.
    cards = ' class="cards"' if len(part.head) > _NARROW else ""
    out = [f'<div class="wide"><table{cards}>']
    if any(part.head):
        out.append("<tr>" + "".join(f'<th scope="col">{_escaped(c)}</th>' for c in part.head)
                   + "</tr>")
    for at, (first, *rest) in enumerate(part.rows):
        name = _content(first)
        name = f'<a href="{escape(part.links[at])}">{name}</a>' if part.links else name
        out.append(f'<tr><th scope="row">{name}</th>' + "".join(
            f'<td data-head="{_escaped(head)}"{_style(cell)}>{_content(cell)}</td>'
            for head, cell in zip(part.head[1:], rest, strict=True)) + "</tr>")
    return [*out, "</table></div>"]


def _style(cell: str | Cell) -> str:
    return f' class="{cell.style}"' if isinstance(cell, Cell) and cell.style else ""


def _content(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return _escaped(cell)
    bar, curve = "", ""
    if cell.share is not None:
        bar = '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none">' \
            '<rect class="all" width="100" height="10"/><rect class="part" ' \
            f'width="{100 * min(max(cell.share, 0.0), 1.0):.0f}" height="10"/></svg>'
    if len(cell.curve) > 1:
        low, high = min(cell.curve), max(cell.curve)
        points = (f"{100 * at / (len(cell.curve) - 1):.1f} "
                  f"{19 - 18 * (value - low) / ((high - low) or 1.0):.1f}"
                  for at, value in enumerate(cell.curve))
        curve = '<svg class="curve" viewBox="0 0 100 20" preserveAspectRatio="none">' \
            f'<path d="M{"L".join(points)}"/></svg>'
    return bar + _escaped(cell.text) + curve


def _escaped(text: str) -> str:
    return escape(clean(text))
