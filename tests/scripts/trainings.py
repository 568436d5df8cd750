"""Several trainings, one after another in one process; the first argument says which."""

import sys
import time

import quick  # noqa: F401
import show
import torch

how = sys.argv[1]


def train(parameters, forward, steps, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(list(parameters), lr=0.05)
    for _ in range(steps):
        loss = forward()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        show.loss(loss)
        time.sleep(0.006)  # slow enough for each loss to be recorded


def folds():
    """A new model and a new optimizer for each training; the old ones are deleted."""
    for fold in range(4):
        model = show.toy(fold)
        train(model.parameters(), lambda model=model: (model(torch.randn(16, 8)) - 1).square()
              .mean(), 6 + fold)


def layers():
    """All optimizers exist from the beginning; each layer is trained separately."""
    nets = [torch.nn.Linear(8, 8) for _ in range(4)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.05) for net in nets]
    x = torch.randn(16, 8)
    for net, optimizer in zip(nets, optimizers):
        train((), lambda net=net, x=x: (net(x) - 1).square().mean(), 60, optimizer)
        x = net(x).detach()


def closures():
    """First Adam, then L-BFGS, whose closure calls backward() on two losses in turn."""
    model = show.toy(1)
    model[2].p = 0.0
    x = torch.randn(32, 8)
    train((), lambda: (model(x) - x[:, :1].sin()).square().mean(), 8,
          torch.optim.Adam(model.parameters(), lr=0.01))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)

    def closure():
        optimizer.zero_grad()
        losses = [(model(half) - half[:, :1].sin()).square().mean() for half in (x[:16], x[16:])]
        for loss in losses:
            loss.backward()
        return losses[0].item() + losses[1].item()

    for _ in range(5):
        show.loss(optimizer.step(closure))


def groups():
    """An optimizer that is stepped once for each group of its parameters, as DeepSpeed does."""
    model = show.toy(2)
    optimizer = torch.optim.Adam([{"params": [p]} for p in model.parameters()], lr=0.01)
    for _ in range(12):
        optimizer.zero_grad()
        loss = (model(torch.randn(16, 8)) - 1).square().mean()
        loss.backward()
        every = optimizer.param_groups
        for group in every:
            optimizer.param_groups = [group]
            optimizer.step()
        optimizer.param_groups = every
        show.loss(loss)


torch.manual_seed(0)
for part in how.split(","):
    globals()[part]()
