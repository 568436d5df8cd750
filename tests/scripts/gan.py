"""Two optimizers, each with its own loss; the second steps every other time. A third one shares the
loss of the second."""

import quick  # noqa: F401
import show
import torch

torch.manual_seed(0)
g, d = torch.nn.Linear(4, 2), torch.nn.Linear(2, 1)
bias = torch.nn.Parameter(torch.zeros(2))
opt_d = torch.optim.Adam(d.parameters(), lr=0.01)
opt_g = torch.optim.SGD(g.parameters(), lr=0.05)
opt_b = torch.optim.SGD([bias], lr=0.05)
bce = torch.nn.functional.binary_cross_entropy_with_logits
for step in range(10):
    real, fake = torch.randn(16, 2) + 2, g(torch.randn(16, 4)) + bias
    one, two = bce(d(real), torch.ones(16, 1)), bce(d(fake.detach()), torch.zeros(16, 1))
    opt_d.zero_grad()
    one.backward()
    two.backward()
    opt_d.step()
    show.loss(one.item() + two.item())
    if step % 2:
        loss = bce(d(fake), torch.ones(16, 1))
        opt_g.zero_grad()
        opt_b.zero_grad()
        loss.backward()
        opt_g.step()
        opt_b.step()
        show.loss(loss, "second")
show.weights(g)
show.weights(d)
