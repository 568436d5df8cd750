"""A run of many points, as each tool keeps it: curve.py TOOL POINTS. Written to the working
directory."""

import math
import random
import sys
from collections.abc import Iterator

import wandb_file


def losses(points: int) -> Iterator[float]:
    noise = random.Random(0)
    for step in range(points):
        yield 1.7 + 3.8 * math.exp(-6 * step / points) + noise.gauss(0, 0.05)


def main() -> None:
    tool, points = sys.argv[1], int(sys.argv[2])
    if tool == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter("tensorboard/run", max_queue=10000)
        for step, loss in enumerate(losses(points)):
            writer.add_scalar("loss", loss, step)
        writer.close()
    elif tool == "wandb":
        wandb_file.write(losses(points))
    elif tool == "trackio":
        from trackio.sqlite_storage import SQLiteStorage

        # As its own imports do; through trackio.log the database is behind for a long time.
        steps, values = range(points), [{"loss": loss} for loss in losses(points)]
        for at in range(0, points, 10_000):
            part = slice(at, at + 10_000)
            SQLiteStorage.bulk_log("peers", "one", values[part], steps=list(steps[part]))


if __name__ == "__main__":
    main()
