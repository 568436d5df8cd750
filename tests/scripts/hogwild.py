"""Hogwild: three processes, without ranks, train one shared model at the same time."""

import time

import quick  # noqa: F401
import show
import torch


def train(number, model, barrier):
    torch.set_num_threads(1)
    torch.manual_seed(number)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    barrier.wait()
    for step in range(8 + number):
        loss = (model(torch.randn(16, 8)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        show.loss(loss, f"process {number} loss")
        time.sleep(0.01)
        if step == 0:
            barrier.wait()  # all have begun before the first ends


if __name__ == "__main__":
    context = torch.multiprocessing.get_context("fork")
    model = show.toy().share_memory()
    barrier = context.Barrier(3)
    children = [context.Process(target=train, args=(i, model, barrier)) for i in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
