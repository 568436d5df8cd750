"""A report as one HTML file: no script, nothing from elsewhere, everything escaped. Pure."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from html import escape

from gpu_engine.common.clean import clean
from gpu_engine.report.content import Section, Table, Text
from gpu_engine.report.svg import STYLE, Chart, draw, letter

_STYLE = """
:root { color-scheme: light dark; }
body { margin: 0 auto; padding: 1.5rem; max-width: 60rem; background: #ffffff; color: #1d2430;
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } .wide { overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: 0.25rem 0.9rem 0.25rem 0;
  border-bottom: 1px solid #cfd5de; }
pre { overflow-x: auto; padding: 0.6rem; border: 1px solid #cfd5de; }
svg { width: 100%; height: auto; max-width: 45rem; display: block; margin: 0.5rem 0 1rem; }
footer { margin-top: 2rem; font-size: 0.85rem; }
a { color: #1a5fb4; }
@media (max-width: 40rem) {
  body { padding: 0.8rem; } th, td { white-space: nowrap; }
  td:last-child { white-space: normal; min-width: 10rem; } }
@media (prefers-color-scheme: dark) {
  body { background: #14181f; color: #e4e8ee; }
  th, td, pre { border-color: #3a4350; } a { color: #78aeed; } }
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
        "<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
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
    out = ['<div class="wide"><table>']
    if any(part.head):
        out.append("<tr>" + "".join(f'<th scope="col">{_escaped(c)}</th>' for c in part.head)
                   + "</tr>")
    for at, (first, *rest) in enumerate(part.rows):
        name = f'<a href="{escape(part.links[at])}">{_escaped(first)}</a>' if part.links \
            else _escaped(first)
        out.append(f'<tr><th scope="row">{name}</th>'
                   + "".join(f"<td>{_escaped(c)}</td>" for c in rest) + "</tr>")
    return [*out, "</table></div>"]


def _escaped(text: str) -> str:
    return escape(clean(text))
