"""Group "log": what it costs to record the loss and the learning rate of each step."""

from __future__ import annotations

from .rounds import Program
from .starting import Command, loop, script, whole

STEPS, WARM = 1000, 200


def programs() -> dict[str, Program]:
    def run(command: Command) -> Program:
        return lambda: _of_a_step(whole(command, STEPS, WARM, WANDB_SILENT="true",
                                        WANDB_ERROR_REPORTING="false"))

    return {
        "nothing": run(Command([loop("logged.py", "none")])),
        "gpu-panel, own script": run(script(1, "logged.py", "none")),
        "TensorBoard": run(Command([loop("logged.py", "tensorboard")])),
        "W&B, offline": run(Command([loop("logged.py", "wandb")])),
        "Trackio": run(Command([loop("logged.py", "trackio")])),
    }


def _of_a_step(found: dict[str, float]) -> dict[str, float]:
    return {"step": found["step"], "cpu": found["cpu"]}
