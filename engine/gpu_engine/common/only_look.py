"""Whether this program only looks, as for `gpu-panel --readonly`: what a command does beside its
answer (set a queue going, hold a run on hosts together, ask Slurm, keep what was read) is left out.
"""

from __future__ import annotations

import os

VARIABLE = "GPU_PANEL_ONLY_LOOK"


def on() -> bool:
    """Whether it only looks."""
    return os.environ.get(VARIABLE) == "1"
