"""Group "train": the cost of a step and the start, alone and under DDP on two ranks."""

from __future__ import annotations

from .rounds import Program
from .starting import accelerate, by_hand, engine, fabric, lightning, script, torchrun, whole

STEPS, WARM = {1: 800, 2: 350}, {1: 200, 2: 100}


def programs(ranks: int) -> dict[str, Program]:
    """Name → what runs its loop once."""
    steps, warm = STEPS[ranks], WARM[ranks]

    def run(command):
        return lambda: whole(command(), steps, warm, LOOP_RANKS=str(ranks))

    found: dict[str, Program] = {
        "by hand": run(lambda: by_hand(ranks)),
        "gpu-panel, its engine": run(lambda: engine(ranks, steps)),
        "gpu-panel, own script": run(lambda: script(ranks)),
        "accelerate": run(lambda: accelerate(ranks)),
        "Fabric": run(lambda: fabric(ranks)),
        "Lightning, all off": run(lambda: lightning(ranks, "bare")),
    }
    if ranks > 1:
        found["torchrun"] = run(lambda: torchrun(ranks))
    else:
        found["Lightning, loss logged"] = run(lambda: lightning(ranks, "logged"))
    return found
