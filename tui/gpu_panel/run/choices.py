"""What each chart of the run screen showed last, kept in panel.json for the next screen."""

from __future__ import annotations

from gpu_panel import themed

_KEY = "curves"


def kept() -> dict[str, str]:
    """Chart → the key of its curves. Blocks: call it in a thread."""
    found = themed.read().get(_KEY)
    if not isinstance(found, dict):
        return {}
    return {k: v for k, v in found.items() if isinstance(k, str) and isinstance(v, str)}


def keep(chart: str, key: str) -> None:
    """Remember what a chart shows. Blocks. Raises OSError."""
    themed.write(themed.read() | {_KEY: kept() | {chart: key}})
