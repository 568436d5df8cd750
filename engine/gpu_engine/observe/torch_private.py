"""What the observer needs of torch that has no public name. Each says what it buys, and what
happens where a torch lacks it."""

from __future__ import annotations

from typing import Any


def operations_of(group: Any) -> int:
    """How many collective operations a process group has begun. It tells ranks that made a group
    and then train apart, which nothing public does. Where it is gone, any error: nothing is told
    then."""
    return group._get_sequence_number_for_group()
