"""Lightning's Trainer, and after it Fabric."""

import logging
import warnings

import frozen
import show
import torch
import without

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
without.packages("scipy", "transformers")
with frozen.imports():
    import lightning

data = torch.utils.data.DataLoader(torch.randn(96, 8, generator=torch.Generator().manual_seed(1)),
                                   batch_size=8)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = show.toy()
        self.total = 0.0

    def training_step(self, batch, index):
        loss = (self.net(batch) - 1).square().mean()
        self.total += (loss / 2).item()
        self.log("mean", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        self.log("held_out", (self.net(batch) - 2).square().mean(), batch_size=len(batch))

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            show.loss(self.trainer.callback_metrics["held_out"], "held")

    def on_train_batch_end(self, outputs, batch, index):
        if index % 2:
            show.loss(self.total)
            self.total = 0.0

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


model = Model()
trainer = lightning.Trainer(
    accelerator="cpu", devices=1, max_epochs=1, accumulate_grad_batches=2, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(model, data, data)
show.weights(model)

fabric = lightning.Fabric(accelerator="cpu", devices=1)
model = show.toy()
model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=0.01))
for x in fabric.setup_dataloaders(data):
    loss = (model(x) - 1).square().mean()
    fabric.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    show.loss(loss)
show.weights(model)
