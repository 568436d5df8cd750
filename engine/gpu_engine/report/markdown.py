"""A report as Markdown, with its charts as SVG files beside it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpu_engine.common.clean import clean
from gpu_engine.report.content import Section, Table
from gpu_engine.report.svg import Chart, draw, letter

_MEANS_SOMETHING = re.compile(r"([\\`*_{}\[\]<>#|~&!$])")


def page(title: str, sections: Sequence[Section], made: str, stem: str
         ) -> tuple[str, dict[str, str]]:
    """The text, and the charts: name of the file beside it → SVG. `stem`: what their names begin
    with."""
    lines, charts = [f"# {_text(title)}", ""], {}
    for section in sections:
        lines += [f"## {_text(section.title)}", ""]
        for part in section.parts:
            if isinstance(part, Chart):
                name = f"{stem}-{len(charts) + 1}.svg"
                charts[name] = draw(part, alone=True)
                if len(part.lines) > 1:
                    lines += [", ".join(f"{letter(i)} {_text(line.name)}" for i, line in
                                        enumerate(part.lines) if line.name), ""]
                lines += [f"![{_text(part.title)}]({name})", ""]
            elif isinstance(part, Table):
                lines += [*_table(part), ""]
            elif part.exact:
                lines += [*("    " + clean(line) for line in part.lines), ""]
            else:
                lines += [each for line in part.lines for each in (_text(line), "")]
    return "\n".join([*lines, _text(made), ""]), charts


def _table(table: Table) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(map(_text, cells)) + " |"

    return [line(table.head), "|" + "---|" * len(table.head), *map(line, table.rows)]


def _text(text: str) -> str:
    """A text that no character of makes into anything else."""
    return _MEANS_SOMETHING.sub(r"\\\1", clean(text))
