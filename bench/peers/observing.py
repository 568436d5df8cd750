"""Group "observe": a step of about 10 ms that is looked into: where its time goes."""

from __future__ import annotations

from .rounds import Program
from .starting import Command, loop, script, whole
from .surroundings import PYTHON

STEPS, WARM = 900, 100


def programs() -> dict[str, Program]:
    """Name → what runs its loop once."""
    def run(command: Command) -> Program:
        def measured() -> dict[str, float]:
            found = whole(command, STEPS, WARM, LOOP_HIDDEN="1024,1024")
            return {"step": found["step"], "cpu": found["cpu"]}
        return measured

    traceml = str(PYTHON.with_name("traceml"))
    return {
        "by hand": run(Command([loop("bare.py")])),
        "gpu-panel, own script": run(script(1)),
        "TraceML": run(Command([[traceml, "run", loop("with_traceml.py")[1]]])),
    }
