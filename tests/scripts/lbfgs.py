"""L-BFGS calls its closure several times a step."""

import quick  # noqa: F401
import show
import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
torch.manual_seed(0)
x = torch.randn(32, 4)
y = x.sin().sum(1, keepdim=True)
for p in model.parameters():
    torch.nn.init.normal_(p, std=0.3)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)


def closure():
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    return loss


for _ in range(6):
    show.loss(optimizer.step(closure))
show.weights(model)
