"""The loop by hand, whose loss and learning rate are logged in each step: logged.py TOOL

TOOL: none, tensorboard, wandb (offline), trackio. What they write goes to the working directory.
"""

import os
import sys
from collections.abc import Callable

import torch
import work
from torch.nn import functional


def logger(tool: str) -> tuple[Callable[[int, torch.Tensor, float], None], Callable[[], None]]:
    """(what logs a step, what ends it)."""
    if tool == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter("tensorboard")

        def scalars(step: int, loss: torch.Tensor, lr: float) -> None:
            writer.add_scalar("loss", loss.item(), step)
            writer.add_scalar("lr", lr, step)
        return scalars, writer.close
    if tool == "wandb":
        import wandb

        run = wandb.init(mode="offline", project="peers", dir=".",
                         settings=wandb.Settings(console="off", silent=True))
        return lambda step, loss, lr: run.log({"loss": loss.item(), "lr": lr}), run.finish
    if tool == "trackio":
        import trackio

        trackio.init(project="peers", name="one")
        return lambda step, loss, lr: trackio.log({"loss": loss.item(), "lr": lr}), trackio.finish
    return lambda step, loss, lr: None, lambda: None


def main() -> None:
    work.settle(1)
    log, finish = logger(sys.argv[1])
    model = work.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=work.RATE)
    batches, marks, step = work.loader(0, 1), work.Marks(), 0
    while True:
        for x, y in batches:
            if not marks.step():
                finish()
                return
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            log(step, loss, optimizer.param_groups[0]["lr"])


if __name__ == "__main__":
    os.environ.setdefault("TRACKIO_DIR", "trackio")
    main()
