"""Trains in a thread that fails at its end, while the main thread succeeds."""

import threading
import time

import quick  # noqa: F401
import show
import torch


def train():
    model = show.toy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        loss = (model(torch.randn(16, 8)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        show.loss(loss)
        time.sleep(0.1)
    show.weights(model)
    raise ValueError("enough of it")


worker = threading.Thread(target=train, name="worker")
worker.start()
worker.join()
