"""Times as people give them: "22:00", "tomorrow 6:30", "+90m", "2026-11-23 22:00"."""

from __future__ import annotations

import datetime as dt
import re

from gpu_engine.common.errors import UserError

_SPAN = re.compile(r"\+(\d+(?:\.\d+)?)\s*(s|m|min|h|d)")
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_CLOCK = re.compile(r"(?:(today|tomorrow)\s+)?(\d{1,2}):(\d{2})")
_LONGEST = 366 * 86400.0


def moment(text: str, now: float) -> float:
    """The Unix seconds that `text` means, after `now`: an hour of the day is the next one. In the
    machine's time zone. Raises UserError if it is no time, has passed, or is over a year away."""
    found = _moment(text.strip(), now)
    if found is None:
        raise UserError(f"--begin {text}: no time that is understood; give 22:00, tomorrow 6:30, "
                        "+90m, or 2026-11-23 22:00")
    if found < now - 60:
        raise UserError(f"--begin {text}: that has passed")
    if found > now + _LONGEST:
        raise UserError(f"--begin {text}: that is more than a year away")
    return found


def _moment(text: str, now: float) -> float | None:
    if (span := _SPAN.fullmatch(text)) is not None:
        return now + float(span[1]) * _SECONDS[span[2]]
    today = dt.datetime.fromtimestamp(now)
    try:
        if (clock := _CLOCK.fullmatch(text)) is not None:
            then = today.replace(hour=int(clock[2]), minute=int(clock[3]), second=0, microsecond=0)
            if clock[1] == "tomorrow" or (clock[1] is None and then <= today):
                then += dt.timedelta(days=1)
            return then.timestamp()
        return dt.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
