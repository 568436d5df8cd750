"""What a person can be told."""

from __future__ import annotations

from typing import Literal

Event = Literal["finished", "failed", "stopped", "stalled", "lost", "slow", "test", "message"]
"""The last two are no events of a run: a message that tries whether it arrives, and a text of the
person's own."""

EVENTS: dict[str, str] = {
    "finished": "the run has completed",
    "failed": "it has failed: the first cause",
    "stopped": "it was stopped",
    "stalled": "its ranks make no progress; once each time",
    "lost": "its supervisor was killed",
    "slow": "why it is slow is clear, or its memory is about to run out; once for each reason",
}
"""The names that `on` in notify.toml takes, and what each means."""

USUAL = ("finished", "failed", "stalled", "lost")
"""What an entry without `on` gets."""
