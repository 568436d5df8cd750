"""What is run: the Pythons of the panel, and the Pythons and torches of the ranks."""

from __future__ import annotations

PANEL = ("3.11", "3.12", "3.13", "3.14")
"""The Pythons in which panel, engine and agent run."""

RANKS = (
    ("3.10", "2.4"), ("3.10", "2.6"), ("3.10", "2.9"),
    ("3.11", "2.4"), ("3.11", "2.13"), ("3.11", "newest"),
    ("3.12", "2.6"), ("3.12", "newest"),
    ("3.13", "2.6"), ("3.13", "newest"),
    ("3.14", "2.9"), ("3.14", "newest"),
)
"""(Python, torch) of a rank: the oldest and the newest torch for each Python, and some between."""


def requirements(torch: str) -> tuple[str, str]:
    """What an installer is asked for: the last patch of a release, or the newest of all, and the
    NumPy that torch.compile wants."""
    return "torch" if torch == "newest" else f"torch=={torch}.*", "numpy"
