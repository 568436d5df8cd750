import torch
from made import loader, net, tell, tell_weights
from schedulefree import AdamWScheduleFree

model = net()
optimizer = AdamWScheduleFree(model.parameters(), lr=0.01)
optimizer.train()
for _ in range(2):
    for x, y in loader():
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tell("loss", loss)
optimizer.eval()
tell_weights(model)
