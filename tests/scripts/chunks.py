"""Losses whose `backward()` is called in pieces: each chunk's inside the function that returns
their sum (as torchtitan's does), for two batches a step, halved with something added; each chunk's,
and then the activation's with its gradient."""

import quick  # noqa: F401
import show
import torch

body, head = show.toy(), torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, gradient, total):
        ctx.save_for_backward(gradient)
        return torch.tensor(total)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0] * gradient, None, None


def chunked(hidden):
    below, total = hidden.detach().requires_grad_(), 0.0
    for chunk in below.chunk(4):
        loss = head(chunk).square().sum() / len(hidden)
        loss.backward()
        total += loss.item()
    return below, total


for _ in range(5):
    whole = 0.0
    for _ in range(2):
        hidden = body(torch.randn(16, 8))
        below, total = chunked(hidden)
        loss = (head.weight.sum().square() + Sum.apply(hidden, below.grad, total)) / 2
        loss.backward()
        whole += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    show.loss(whole)
for _ in range(5):
    hidden = body(torch.randn(16, 8))
    below, total = chunked(hidden)
    hidden.backward(below.grad)
    optimizer.step()
    optimizer.zero_grad()
    show.loss(total)
show.weights(body)
