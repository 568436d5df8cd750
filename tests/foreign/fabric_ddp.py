import lightning
import torch
from made import loader, net, tell, tell_weights

fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
fabric.seed_everything(0)
model = net()
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
data = fabric.setup_dataloaders(loader())
for _ in range(2):
    for x, y in data:
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        if fabric.global_rank == 0:
            tell("loss", loss)
if fabric.global_rank == 0:
    tell_weights(model)
