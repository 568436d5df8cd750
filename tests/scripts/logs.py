"""Passes values to loggers: TensorBoard's writer, from the module that the first argument names
(torch.utils.tensorboard or tensorboardX), and with "wandb" also W&B."""
# ruff: noqa: T201

import importlib
import os
import pathlib
import sys
import tempfile

import quick  # noqa: F401
import show
import torch

SummaryWriter = importlib.import_module(sys.argv[1]).SummaryWriter
os.environ["WANDB_SILENT"] = "true"
os.environ["WANDB_MODE"] = "offline"
folder = tempfile.mkdtemp()
model = show.toy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
writer = SummaryWriter(folder)
if "wandb" in sys.argv:
    import wandb

    run = wandb.init(dir=folder, project="p")
for step in range(6):
    loss = (model(torch.randn(16, 8)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    show.loss(loss)
    writer.add_scalar("train/loss", loss, step)
    writer.add_scalars("both", {"a": step, "b": torch.tensor(2.0 * step)}, step)
    writer.add_text("words", "none of ours", step)
    if "wandb" in sys.argv:
        wandb.log({"accuracy": step / 8, "epoch": step, "name": "text", "more": {"depth": step}})
        run.log({"step": 10 * step})
try:
    writer.add_scalar("no number")
except TypeError as err:
    print("TypeError", err)
writer.close()
if "wandb" in sys.argv:
    run.finish()
print(sorted(file.name[:19] for file in pathlib.Path(folder).iterdir()), flush=True)
