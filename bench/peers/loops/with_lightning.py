"""The loop with Lightning's Trainer: with_lightning.py RANKS bare|logged

bare: without logger, progress bar and checkpoints. logged: as the Trainer comes, and the loss is
logged in each step.
"""

import os
import sys
import tempfile

import lightning as L
import work
from torch.nn import functional
from torch.optim import SGD

ranks, logged = int(sys.argv[1]), sys.argv[2] == "logged"


class Trained(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.marks = work.model(), work.Marks()

    def training_step(self, batch, number):
        x, y = batch
        self.marks.step()
        loss = functional.cross_entropy(self.net(x), y)
        if logged:
            self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return SGD(self.net.parameters(), lr=work.RATE)

    def train_dataloader(self):
        return work.loader(self.trainer.global_rank, ranks)

    def on_fit_start(self) -> None:
        work.settle(self.trainer.world_size)


off = {} if logged else {"logger": False, "enable_progress_bar": False,
                         "enable_checkpointing": False, "enable_model_summary": False}
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    L.Trainer(accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto",
              max_steps=work.STEPS + 1, use_distributed_sampler=False, **off).fit(Trained())
