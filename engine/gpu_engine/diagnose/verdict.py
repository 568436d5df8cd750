"""What a rule says."""

from __future__ import annotations

from dataclasses import field

from gpu_engine.common.frozen import frozen


@frozen(slots=True)
class Verdict:
    """One thing that makes a run slow, or is about to end it."""

    code: str
    """One word, the same in every version."""
    text: str
    """One line for a person: what is slow and what would help."""
    figures: dict[str, float] = field(default_factory=dict)
    """What the text rests on; seconds, bytes and shares."""
    rank: int | None = None
    """The rank that it is about; None: all."""
    cost: float | None = None
    """About the share of the run's time that it takes; None: it is not a matter of time."""
