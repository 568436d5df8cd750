"""Lines of events files, written and read by the tests themselves. The file format is coded here a
second time, so that the engine's writer and reader are not only compared with each other."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from gpu_engine.events.reader import decoded
from gpu_engine.events.schema import Event


def line(kind: str, fields: dict[str, Any], *, t: float | None = None) -> bytes:
    """One event as a rank writes it."""
    event = {"t": round(time.time() if t is None else t, 3), "kind": kind} | fields
    return json.dumps(_told(event), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def from_dict(told: object) -> Event | None:
    """The event that the reader makes of a JSON object."""
    return decoded(json.dumps(_told(told)).encode())


def read(path: Path) -> list[dict[str, Any]]:
    """The events on complete lines, each as its JSON object; [] if there is no file."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.split(b"\n")[:-1] if line]


def read_what_parses(path: Path) -> list[dict[str, Any]]:
    """As `read`, for a damaged file: lines that are not JSON objects are left out."""
    found = []
    for text in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
        try:
            event = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and "kind" in event:
            found.append(event)
    return found


def append(path: Path, *lines: bytes) -> None:
    """Write events as a rank would."""
    with path.open("ab") as file:
        file.writelines(lines)


def _told(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {k: _told(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_told(v) for v in value]
    return value
