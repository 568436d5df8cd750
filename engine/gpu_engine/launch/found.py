"""The run that a command means, ready to be asked."""

from __future__ import annotations

from gpu_engine.runs import folder as runs


def find(name: str) -> runs.Run:
    """`runs.folder.find`; where the run is on hosts and nobody here holds it together any more, it
    is taken up again. Raises UserError."""
    from gpu_engine.spanning import parts

    run = runs.find(name)
    if parts.spans(run.path):
        from gpu_engine.launch.taking_up import take_up

        take_up(run)
    return run
