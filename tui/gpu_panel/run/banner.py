"""The banner of a run as a widget."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from textual.content import Content
from textual.widgets import Static

from gpu_panel.common.painting import put


class Banner(Static):
    """What `text.banner` says, on a ground of its tone."""

    DEFAULT_CSS = """
    Banner {
        height: auto;
        padding: 0 1;
        &.-error { background: $error-muted; color: $text-error; }
        &.-warning { background: $warning-muted; color: $text-warning; }
        &.-success { background: $success-muted; color: $text-success; }
        &.-plain { background: $boost; }
    }
    """

    def show(self, lines: Sequence[str], tone: str) -> None:
        if not self.has_class(f"-{tone}"):
            self.set_classes(f"-{tone}")
        width, height = self.content_size
        as_high = len(lines) == height and all(cell_len(line) <= width for line in lines)
        put(self, Content("\n".join(lines)), layout=not as_high)
